package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// generation is one of the two forms of create and connect.
type generation struct {
	defaultTimeout time.Duration
	// timeoutRequired: connect must say one.
	timeoutRequired bool
}

var (
	v1 = generation{defaultTimeout: 15 * time.Second, timeoutRequired: true} // clients to 2.50
	v2 = generation{defaultTimeout: 300 * time.Second}                       // clients from 2.51
)

// maxTimeout is the limit where a key has none; it keeps sums of times far from
// overflowing.
const maxTimeout = 10 * 365 * 24 * time.Hour

// Limits of what is kept for a sandbox.
const (
	maxTemplateLen   = 256
	maxMetadata      = 256
	maxMetadataBytes = 64 << 10
	maxEnvVars       = 1024
	maxEnvBytes      = 256 << 10
	maxEnvVarBytes   = 96 << 10 // one string of a program's environment may have 128 KiB
)

type newSandbox struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *int64            `json:"timeout"` // seconds
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"envVars"`
	AutoPause           bool              `json:"autoPause"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory"`
	AutoResume          struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Network      networkOptions `json:"network"`
	VolumeMounts []volumeMount  `json:"volumeMounts"`
	// MCP are the MCP servers that the client starts in the sandbox once it is there
	// (cmd/mcp-gateway); for the server there is nothing to do.
	MCP map[string]json.RawMessage `json:"mcp"`
	laterOptions
}

// create starts a sandbox. "secure" of the older form is not read: a sandbox
// always has a token.
func (a *api) create(g generation) handler {
	return func(w http.ResponseWriter, r *http.Request, k store.Key) error {
		var body newSandbox
		if err := decode(w, r, &body, false); err != nil {
			return err
		}
		req, err := createRequest(body, g, k)
		if err == nil {
			err = readOwn(r.Header, &req)
		}
		if err != nil {
			return err
		}
		t, err := a.template(r.Context(), k, body.TemplateID)
		if err != nil {
			return err
		}
		req.Template = t.BuildID
		asked := struct {
			newSandbox
			Own [2][]string `json:"own"`
		}{body, [2][]string{r.Header.Values(rulesHeader), r.Header.Values(networkHeader)}}
		info, err := once(a.repeats, r, k, asked, func(ctx context.Context) (sandbox.Info, error) {
			return a.sandboxes.Create(ctx, req)
		})
		if errors.Is(err, sandbox.ErrTemplateNotFound) { // deleted just now
			return templateNotFound(body.TemplateID)
		}
		if err != nil {
			return fmt.Errorf("create a sandbox of template %q: %w", body.TemplateID, err)
		}
		record.Sandbox(r.Context(), info.ID)
		record.Note(r.Context(), "template", t.ID)
		writeJSON(w, http.StatusCreated, a.created(info))
		return nil
	}
}

// createRequest checks everything but the template, which it leaves out.
func createRequest(body newSandbox, g generation, k store.Key) (sandbox.CreateRequest, error) {
	timeout, err := timeout(body.Timeout, g.defaultTimeout, k)
	if err != nil {
		return sandbox.CreateRequest{}, err
	}
	lifecycle, err := body.lifecycle()
	if err != nil {
		return sandbox.CreateRequest{}, err
	}
	network, err := body.Network.parse(body.AllowInternetAccess != nil && !*body.AllowInternetAccess)
	if err != nil {
		return sandbox.CreateRequest{}, err
	}
	if err := errors.Join(body.laterOptions.check(), checkTemplate(body.TemplateID), checkMetadata(body.Metadata), checkEnvVars(body.EnvVars)); err != nil {
		return sandbox.CreateRequest{}, err
	}
	return sandbox.CreateRequest{
		KeyID:     k.ID,
		Quota:     sandbox.QuotaOf(k),
		Timeout:   timeout,
		Metadata:  body.Metadata,
		EnvVars:   body.EnvVars,
		Lifecycle: lifecycle,
		Network:   network,
		Volumes:   coreMounts(body.VolumeMounts),
	}, nil
}

// lifecycle checks what goes together, by the rules that clients check too.
// autoPauseMemory without autoPause is of no consequence.
func (b newSandbox) lifecycle() (sandbox.Lifecycle, error) {
	diskOnly := b.AutoPauseMemory != nil && !*b.AutoPauseMemory
	switch {
	case b.AutoResume.Enabled && !b.AutoPause:
		return sandbox.Lifecycle{}, invalid("autoResume needs autoPause: true, since only a sandbox that is paused at its timeout can be resumed by traffic")
	case b.AutoResume.Enabled && diskOnly:
		return sandbox.Lifecycle{}, invalid("autoResume needs the memory: leave autoPauseMemory: false out, or autoResume and connect to the sandbox to resume it")
	}
	return sandbox.Lifecycle{
		PauseOnTimeout: b.AutoPause,
		DiskOnly:       b.AutoPause && diskOnly,
		AutoResume:     b.AutoResume.Enabled,
	}, nil
}

// timeout checks the seconds a request gave; nil takes the default, or the key's
// limit where that is less.
func timeout(seconds *int64, byDefault time.Duration, k store.Key) (time.Duration, error) {
	limit := maxTimeout
	if k.MaxTimeout > 0 {
		limit = min(limit, k.MaxTimeout)
	}
	if seconds == nil {
		return min(byDefault, limit), nil
	}
	if *seconds <= 0 {
		return 0, invalid("timeout must be more than 0 seconds, not %d", *seconds)
	}
	if *seconds > int64(limit/time.Second) {
		return 0, invalid("timeout must be at most %d seconds with this key, not %d", limit/time.Second, *seconds)
	}
	return time.Duration(*seconds) * time.Second, nil
}

func checkTemplate(template string) error {
	if template == "" {
		return invalid("templateID is missing: give the id or name of a template (`tombolo template list` shows them)")
	}
	if len(template) > maxTemplateLen {
		return invalid("templateID has %d bytes, at most %d are possible", len(template), maxTemplateLen)
	}
	return nil
}

func checkMetadata(metadata map[string]string) error {
	if len(metadata) > maxMetadata {
		return invalid("metadata has %d entries, at most %d are possible", len(metadata), maxMetadata)
	}
	if n := bytesOf(metadata); n > maxMetadataBytes {
		return invalid("metadata has %d bytes, at most %d are possible", n, maxMetadataBytes)
	}
	return nil
}

func checkEnvVars(vars map[string]string) error {
	if len(vars) > maxEnvVars {
		return invalid("envVars has %d entries, at most %d are possible", len(vars), maxEnvVars)
	}
	if n := bytesOf(vars); n > maxEnvBytes {
		return invalid("envVars has %d bytes, at most %d are possible", n, maxEnvBytes)
	}
	for name, value := range vars {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return invalid("envVars: %q cannot be the name of a variable", name)
		}
		if strings.Contains(value, "\x00") {
			return invalid("envVars: the value of %s has a zero byte", name)
		}
		if n := len(name) + len(value); n > maxEnvVarBytes {
			return invalid("envVars: %.64s has %d bytes, at most %d are possible", name, n, maxEnvVarBytes)
		}
	}
	return nil
}

func bytesOf(m map[string]string) int {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

func templateNotFound(template string) error {
	return failure(http.StatusNotFound, "template '%s' not found: `tombolo template list` shows what is here, `tombolo template build` makes one", template)
}
