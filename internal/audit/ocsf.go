package audit

import (
	"encoding/json"
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// ocsfVersion is the version of the schema that events are made for
// (https://schema.ocsf.io/1.3.0).
const ocsfVersion = "1.3.0"

// Classes of the schema; a thousand is a category.
const (
	ocsfFile        = 1001 // File System Activity
	ocsfProcess     = 1007 // Process Activity
	ocsfEntity      = 3004 // Entity Management
	ocsfNetwork     = 4001 // Network Activity
	ocsfHTTP        = 4002 // HTTP Activity
	ocsfDNS         = 4003 // DNS Activity
	ocsfApplication = 6002 // Application Lifecycle
	ocsfAPI         = 6003 // API Activity
)

// ocsfOther is the activity of what a class has no name for; activity_name says it.
const ocsfOther = 99

// words are the members of a detail that events are made of; their names are the
// same in the details of all kinds.
type words struct {
	Protocol string     `json:"protocol"`
	Host     string     `json:"host"`
	Address  netip.Addr `json:"address"`
	Port     int        `json:"port"`
	Method   string     `json:"method"`
	Path     string     `json:"path"`
	Command  string     `json:"command"`
	User     string     `json:"user"`
	Cwd      string     `json:"cwd"`
	PID      int        `json:"pid"`
	Parent   int        `json:"parent"`
	Binary   string     `json:"binary"`
	Args     []string   `json:"args"`
	File     string     `json:"file"`
	Secret   string     `json:"secret"`
	Client   string     `json:"client"`
	Status   int        `json:"status"`
	Table    string     `json:"table"`
	Name     string     `json:"name"`
}

// detailWords reads what it can of a detail, one member at a time: one of another
// type does not hide the rest.
func detailWords(detail json.RawMessage) words {
	var w words
	var of struct {
		Action json.RawMessage `json:"action"`
	}
	if json.Unmarshal(detail, &of) == nil && len(of.Action) > 0 && of.Action[0] == '{' {
		detail = of.Action // of what was decided, the action says the most
	}
	if json.Unmarshal(detail, &w) == nil {
		return w
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(detail, &members) != nil {
		return w
	}
	for name, value := range members {
		one, err := json.Marshal(map[string]json.RawMessage{name: value})
		if err == nil {
			before := w
			if json.Unmarshal(one, &w) != nil {
				w = before
			}
		}
	}
	return w
}

// ToOCSF makes an event of the Open Cybersecurity Schema Framework of a record. The
// whole record goes with it as "unmapped". version is the product's.
func ToOCSF(r Record, version string) map[string]any {
	w := detailWords(r.Detail)
	class, activity, event := ocsfClass(r, w)
	event["class_uid"] = class
	event["category_uid"] = class / 1000
	event["activity_id"] = activity
	event["type_uid"] = class*100 + activity
	if activity == ocsfOther {
		event["activity_name"] = r.What
	}
	event["time"] = r.Time.UnixMilli()
	event["severity_id"] = ocsfSeverity(r)
	event["actor"] = map[string]any{"user": ocsfUser(r.Actor)}
	event["message"] = strings.TrimSpace(strings.Join([]string{string(r.Kind), r.Decision, r.What, r.Reason}, " "))
	metadata := map[string]any{
		"version":  ocsfVersion,
		"product":  map[string]any{"name": "Tombolo", "vendor_name": "Tombolo", "version": version},
		"log_name": "audit", "sequence": r.Seq, "uid": r.Hash,
	}
	if r.ID != "" {
		metadata["correlation_uid"] = r.ID
	}
	if profiles := ocsfDecision(event, r); len(profiles) > 0 {
		metadata["profiles"] = profiles
	}
	event["metadata"] = metadata
	if r.Count > 1 {
		event["count"] = r.Count
	}
	r.Hash = "" // it is in the metadata
	event["unmapped"] = r
	return event
}

// ocsfClass gives a record its class and activity, and the members of that class.
func ocsfClass(r Record, w words) (class, activity int, event map[string]any) {
	switch r.Kind {
	case API:
		class, activity = ocsfAPI, ocsfMethod(w.Method, r.What)
		event = map[string]any{
			"api": map[string]any{"operation": r.What, "service": map[string]any{"name": "tombolo"}}, "src_endpoint": ocsfClient(w.Client),
		}
		if w.Status > 0 {
			event["status_code"] = strconv.Itoa(w.Status)
			event["status_id"] = 1
			if w.Status >= 400 {
				event["status_id"] = 2
			}
		}
		if r.SandboxID != "" {
			event["resources"] = []any{map[string]any{"uid": r.SandboxID, "type": "sandbox"}}
		}
	case Exec:
		class, activity = ocsfProcess, 1
		event = map[string]any{"process": ocsfProcessOf(r, w), "device": ocsfDevice(r)}
	case File:
		class, activity = ocsfFile, ocsfFileActivity(r.What)
		file := w.File
		if file == "" {
			file = w.Path
		}
		event = map[string]any{"file": map[string]any{"name": path.Base("/" + file), "path": file, "type_id": 0}, "device": ocsfDevice(r)}
	case Network:
		return ocsfConnection(r, w)
	case Secret, Approval, Policy:
		name := first(w.Name, w.Secret, w.Table, r.Rule, r.What)
		class, activity = ocsfEntity, ocsfVerb(r.What)
		event = map[string]any{"entity": map[string]any{"type": string(r.Kind), "name": name, "uid": first(r.ID, name)}}
		if r.Reason != "" {
			event["comment"] = r.Reason
		}
	default:
		class, activity = ocsfApplication, ocsfRunning(r.What)
		app := map[string]any{"name": "sandbox", "vendor_name": "Tombolo", "uid": r.SandboxID}
		if r.SandboxID == "" {
			app = map[string]any{"name": "tombolo", "vendor_name": "Tombolo"}
		}
		event = map[string]any{"app": app}
	}
	return class, activity, event
}

func ocsfConnection(r Record, w words) (class, activity int, event map[string]any) {
	to := map[string]any{}
	if w.Host != "" {
		to["hostname"] = w.Host
	}
	if w.Address.IsValid() {
		to["ip"] = w.Address.String()
	}
	if w.Port > 0 {
		to["port"] = w.Port
	}
	event = map[string]any{"src_endpoint": map[string]any{"uid": first(r.SandboxID, r.Actor), "name": "sandbox"}, "dst_endpoint": to}
	if w.Protocol != "" {
		event["connection_info"] = map[string]any{"protocol_name": w.Protocol, "direction_id": 2} // outbound
	}
	switch {
	case w.Method != "":
		event["http_request"] = map[string]any{
			"http_method": w.Method, "url": map[string]any{"hostname": w.Host, "path": w.Path, "port": w.Port},
		}
		if w.Status > 0 {
			event["http_response"] = map[string]any{"code": w.Status}
		}
		class, activity = ocsfHTTP, ocsfHTTPMethod(w.Method)
	case asksForName(r.What):
		event["query"] = map[string]any{"hostname": w.Host}
		event["dst_endpoint"] = map[string]any{"name": "gateway", "port": 53}
		class, activity = ocsfDNS, 1
	default:
		class = ocsfNetwork
		switch r.Decision {
		case "allow":
			activity = 1 // open
		case "deny":
			activity = 5 // refuse
		default:
			activity = ocsfOther
		}
	}
	if class != ocsfDNS && len(to) == 0 {
		to["name"] = "unknown"
	}
	return class, activity, event
}

// asksForName tells a question for a name from what connects.
func asksForName(what string) bool {
	verb, _, _ := strings.Cut(what, " ")
	return verb == "dns" || verb == "resolve" || verb == "lookup" || strings.HasPrefix(what, "look up")
}

func ocsfProcessOf(r Record, w words) map[string]any {
	p := map[string]any{"uid": first(r.ID, strconv.FormatUint(r.Seq, 10)), "cmd_line": first(w.Command, strings.Join(w.Args, " "), r.What)}
	if w.PID > 0 {
		p["pid"] = w.PID
	}
	if w.Binary != "" {
		p["file"] = map[string]any{"name": path.Base(w.Binary), "path": w.Binary, "type_id": 1}
		p["name"] = path.Base(w.Binary)
	}
	if w.Parent > 0 {
		p["parent_process"] = map[string]any{"pid": w.Parent}
	}
	if w.Cwd != "" {
		p["working_directory"] = w.Cwd
	}
	if w.User != "" {
		p["user"] = map[string]any{"name": w.User}
	}
	return p
}

// ocsfDevice is the sandbox as a virtual machine (type 6).
func ocsfDevice(r Record) map[string]any {
	return map[string]any{"uid": first(r.SandboxID, "unknown"), "type_id": 6, "type": "Virtual", "hostname": r.SandboxID}
}

// ocsfUser is who did it: an administrator (2), a system account (3) or a user (1).
func ocsfUser(actor string) map[string]any {
	kind, id, _ := strings.Cut(actor, ":")
	switch kind {
	case "owner":
		return map[string]any{"name": "root", "uid": "owner", "type_id": 2}
	case "server", "sandbox":
		return map[string]any{"name": actor, "uid": first(id, kind), "type_id": 3}
	case "", Nobody:
		return map[string]any{"name": Nobody, "uid": Nobody, "type_id": 0}
	}
	return map[string]any{"name": actor, "uid": first(id, kind), "type_id": 1}
}

func ocsfClient(client string) map[string]any {
	if at, err := netip.ParseAddrPort(client); err == nil {
		return map[string]any{"ip": at.Addr().Unmap().String(), "port": at.Port()}
	}
	return map[string]any{"name": "this machine"}
}

// ocsfDecision writes what was decided, in the profile security_control.
func ocsfDecision(event map[string]any, r Record) []string {
	switch r.Decision {
	case "allow":
		event["action_id"], event["disposition_id"] = 1, 1
		if r.Kind == Approval {
			event["disposition_id"] = 8 // approved
		}
	case "deny":
		event["action_id"], event["disposition_id"] = 2, 2 // blocked
	case "ask":
		event["action_id"], event["disposition_id"] = 0, 14 // delayed
	default:
		return nil
	}
	if r.Rule != "" {
		event["firewall_rule"] = map[string]any{"name": r.Rule, "uid": r.Rule}
	}
	return []string{"security_control"}
}

// ocsfSeverity is 1 informational, 2 low, 4 high.
func ocsfSeverity(r Record) int {
	switch {
	case r.Kind == Server && (r.What == whatDamage || r.What == whatLost):
		return 4
	case r.Decision == "deny":
		return 2
	}
	return 1
}

// ocsfMethod is create, read, update or delete.
func ocsfMethod(method, what string) int {
	if method == "" {
		method, _, _ = strings.Cut(what, " ")
	}
	switch method {
	case "POST":
		return 1
	case "GET", "HEAD", "OPTIONS":
		return 2
	case "PUT", "PATCH":
		return 3
	case "DELETE":
		return 4
	}
	return ocsfOther
}

func ocsfHTTPMethod(method string) int {
	for i, known := range []string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "PATCH"} {
		if method == known {
			return i + 1
		}
	}
	return ocsfOther
}

// ocsfVerb is create, read, update or delete, by the verb of what was done.
func ocsfVerb(what string) int {
	verb, _, _ := strings.Cut(what, " ")
	switch verb {
	case "create", "hold", "ask", "propose", "grant", "add":
		return 1
	case "use", "put", "read":
		return 2
	case "update", "replace", "set", "apply", "change", "write", "approve", "deny", "answer", "expire", "expired", "approved", "denied":
		return 3
	case "delete", "remove", "revoke":
		return 4
	}
	return ocsfOther
}

func ocsfFileActivity(what string) int {
	verb, _, _ := strings.Cut(what, " ")
	switch verb {
	case "create", "make", "upload":
		return 1
	case "read", "download", "get", "list":
		return 2
	case "write", "update":
		return 3
	case "delete", "remove":
		return 4
	case "rename", "move":
		return 5
	}
	return ocsfOther
}

// ocsfRunning is start or stop.
func ocsfRunning(what string) int {
	verb, _, _ := strings.Cut(what, " ")
	switch verb {
	case "create", "start", "resume", "fork", "created", "resumed", "forked":
		return 3
	case "pause", "end", "kill", "stop", "paused", "ended":
		return 4
	}
	return ocsfOther
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
