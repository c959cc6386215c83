package audit_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
)

// required are the attributes that OCSF 1.3 requires of each class we use, those of
// objects after a dot. All classes have those under 0.
var required = map[float64][]string{
	0:    {"activity_id", "category_uid", "class_uid", "metadata.product.vendor_name", "metadata.version", "severity_id", "time", "type_uid"},
	1001: {"actor.user", "device.type_id", "file.name", "file.type_id"},
	1007: {"actor.user", "device.type_id", "process.cmd_line", "process.uid"},
	3004: {"entity.name"},
	4001: {"src_endpoint", "dst_endpoint"},
	4002: {"dst_endpoint", "http_request.http_method", "http_request.url"},
	4003: {"src_endpoint", "dst_endpoint", "query.hostname"},
	6002: {"app.vendor_name"},
	6003: {"actor.user", "api.operation", "src_endpoint"},
}

func TestEventsHaveWhatOCSFRequires(t *testing.T) {
	sandbox := func(kind audit.Kind, what, decision string, detail any) audit.Record {
		return audit.Record{Kind: kind, Actor: "sandbox:sb", SandboxID: "sb", KeyID: "k", What: what, Decision: decision, Rule: "r", Detail: audit.Detail(detail)}
	}
	type d map[string]any
	tests := []struct {
		record   audit.Record
		typeUID  int
		contains string
	}{
		{sandbox(audit.Network, "connect", "allow", d{"protocol": "tcp", "host": "example.com", "address": "192.0.2.1", "port": 443}), 400101, `"disposition_id":1,`},
		{sandbox(audit.Network, "connect", "deny", d{"protocol": "tcp", "address": "192.0.2.1", "port": 22}), 400105, `"disposition_id":2,`},
		{sandbox(audit.Network, "connect", "ask", d{"host": "example.com", "port": 443}), 400199, `"disposition_id":14,`},
		{sandbox(audit.Network, "connect", "deny", d{}), 400105, `"name":"unknown"`},
		{sandbox(audit.Network, "request", "deny", d{"host": "example.com", "method": "POST", "path": "/v1"}), 400206, `"path":"/v1"`},
		{sandbox(audit.Network, "request", "deny", d{"host": "example.com", "method": "BREW", "path": "/v1"}), 400299, `"activity_name":"request"`},
		{sandbox(audit.Network, "resolve", "deny", d{"host": "example.com"}), 400301, `"query":{"hostname":"example.com"}`},
		{sandbox(audit.Secret, "use", "allow", d{"secret": "token", "host": "example.com"}), 300402, `"name":"token"`},
		{sandbox(audit.Exec, "process", "", d{"pid": 7, "parent": 1, "binary": "/bin/true", "command": "true"}), 100701, `"pid":7`},
		{audit.Record{Kind: audit.Exec, Actor: "key:k", SandboxID: "sb", What: "command", Detail: audit.Detail(d{"command": "ls -l", "user": "user"})}, 100701, `"cmd_line":"ls -l"`},
		{audit.Record{Kind: audit.File, Actor: "key:k", SandboxID: "sb", What: "read", Detail: audit.Detail(d{"file": "/etc/passwd"})}, 100102, `"name":"passwd"`},
		{audit.Record{Kind: audit.Approval, Actor: "key:k", SandboxID: "sb", What: "approve", Decision: "allow", ID: "h1"}, 300403, `"disposition_id":8,`},
		{audit.Record{Kind: audit.Policy, Actor: "owner", What: "apply", Detail: audit.Detail(d{"table": "server"})}, 300403, `"name":"server"`},
		{audit.Record{Kind: audit.Lifecycle, Actor: "key:k", SandboxID: "sb", What: "create"}, 600203, `"uid":"sb"`},
		{audit.Record{Kind: audit.Lifecycle, Actor: "server", SandboxID: "sb", What: "end"}, 600204, `"uid":"sb"`},
		{audit.Record{Kind: audit.Server, Actor: "server", What: "audit log damaged"}, 600299, `"severity_id":4`},
		{audit.Record{Kind: audit.API, Actor: "key:k", What: "DELETE /sandboxes/{id}", SandboxID: "sb", Detail: audit.Detail(d{"method": "DELETE", "status": 404, "client": "192.0.2.9:1000"})}, 600304, `"ip":"192.0.2.9"`},
		{audit.Record{Kind: audit.API, Actor: audit.Nobody, What: "GET /sandboxes", Decision: "deny", Detail: audit.Detail(d{"method": "GET", "status": 401})}, 600302, `"status_id":2`},
		{audit.Record{Kind: "new", Actor: "", What: ""}, 600299, `"name":"tombolo"`},
		{sandbox(audit.Network, "connect", "deny", d{"action": d{"kind": "egress", "host": "example.com", "port": 443}, "scope": d{"kind": "server"}}), 400105, `"hostname":"example.com"`},
		// What comes from a sandbox may be of any shape.
		{audit.Record{Kind: audit.Network, What: "connect", Decision: "deny", Detail: audit.Detail(d{"port": "x", "host": "example.com"})}, 400105, `"hostname":"example.com"`},
		{audit.Record{Kind: audit.Exec, What: "command", Detail: audit.Detail("text")}, 100701, `"cmd_line":"command"`},
	}
	dir := folder(t)
	l := open(t, dir, audit.Options{})
	for _, tt := range tests {
		l.Append(tt.record)
	}
	require.NoError(t, l.Close())
	var out bytes.Buffer
	require.NoError(t, audit.Export(t.Context(), dir, &out, audit.OCSF, "1.2.3", audit.Filter{}))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")[1:]
	require.Len(t, lines, len(tests))
	for i, tt := range tests {
		require.Contains(t, lines[i], tt.contains)
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &event))
		class := event["class_uid"].(float64)
		require.EqualValues(t, tt.typeUID, event["type_uid"], lines[i])
		require.Equal(t, class*100+event["activity_id"].(float64), event["type_uid"])
		require.Equal(t, float64(int(class)/1000), event["category_uid"])
		require.Greater(t, event["time"], 1.7e12, "milliseconds")
		for _, name := range append(required[0], required[class]...) {
			require.NotNil(t, member(event, name), "%s of %s", name, lines[i])
		}
	}
}

func member(of map[string]any, name string) any {
	head, rest, deeper := strings.Cut(name, ".")
	if !deeper {
		return of[head]
	}
	below, _ := of[head].(map[string]any)
	return member(below, rest)
}

func TestAnExportIsTheLogItself(t *testing.T) {
	dir := folder(t)
	fill(t, dir, 5, audit.Options{})
	var out bytes.Buffer
	require.NoError(t, audit.Export(t.Context(), dir, &out, audit.JSONL, "", audit.Filter{}))
	require.Equal(t, 6, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), verify(t, dir, audit.VerifyOptions{}).Head.Hash)
	require.Error(t, audit.Export(t.Context(), dir, &out, "xml", "", audit.Filter{}))
	require.ErrorIs(t, audit.Export(t.Context(), folder(t), &out, audit.OCSF, "", audit.Filter{}), audit.ErrNoLog)
}
