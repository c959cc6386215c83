package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/wholefile"
)

// approvalHookID is the webhook that --approval-webhook names.
const approvalHookID = "00000000-0000-4000-8000-617070726f76"

func addApprovalFlags(cmd *cobra.Command) {
	cmd.Flags().String("approval-webhook", "", "URL that is told what waits for an approval, of all keys: a chat bridge; its secret is in keys/approval-webhook.key of the data folder (default: none)")
	cmd.Flags().String("approval-timeout", "5m", "how long an action waits for a person before it is refused, 24h at most")
}

// approvalPatience is what --approval-timeout says; 0, the default, where a command has
// no such flag.
func approvalPatience(c config) (time.Duration, error) {
	if c.ApprovalTimeout == "" {
		return 0, nil
	}
	patience, err := time.ParseDuration(c.ApprovalTimeout)
	if err != nil || patience < time.Second || patience > 24*time.Hour {
		return 0, fmt.Errorf("--approval-timeout %q: give a time from 1s to 24h, such as 10m", c.ApprovalTimeout)
	}
	return patience, nil
}

// keepApprovalHook makes the webhook for approvals what the settings say, with a secret
// that it makes the first time.
func keepApprovalHook(ctx context.Context, c config, hooks *event.Webhooks) error {
	if c.ApprovalWebhook == "" {
		return hooks.Keep(ctx, approvalHookID, nil)
	}
	secret, err := approvalHookSecret(c.Data)
	if err != nil {
		return fmt.Errorf("the secret of the approval webhook: %w", err)
	}
	name, enabled := "approvals", true
	err = hooks.Keep(ctx, approvalHookID, &event.Spec{Name: &name, URL: &c.ApprovalWebhook, Kinds: &event.Approvals, Secret: &secret, Enabled: &enabled})
	if err != nil {
		return fmt.Errorf("--approval-webhook: %w", err)
	}
	return nil
}

func approvalHookSecret(data string) (string, error) {
	file := filepath.Join(data, "keys", "approval-webhook.key")
	raw, err := os.ReadFile(file)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	secret := newWebhookSecret()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return secret, wholefile.Write(file, 0o600, []byte(secret+"\n"))
}

// recordApprovals has the changes of holds recorded as events of their sandboxes, for
// webhooks. It is an approval.Config.OnChange.
func recordApprovals(records store.Sandboxes, events *event.Recorder, log *slog.Logger) func(approval.Hold) {
	return func(h approval.Hold) {
		e := sandbox.Event{
			Kind: event.ApprovalRequested, Time: h.CreatedAt, Info: infoOf(records, h),
			Detail: h.Action.String(),
		}
		if h.State != approval.Pending {
			e.Kind, e.Time = event.ApprovalDecided, h.EndedAt
		}
		var err error
		if e.Data, err = h.Notice().JSON(); err != nil {
			log.Error("an approval was told to nobody", "hold", h.ID, "error", err)
			return
		}
		events.Record(e)
	}
}

// tellRefusals has what the network refuses told as events. It is a
// guard.Config.OnRefusal.
func tellRefusals(refusals *event.Refusals) func(policy.Subject, guard.Refusal) {
	return func(s policy.Subject, r guard.Refusal) {
		if r.Kind != policy.Egress && r.Kind != policy.Secret {
			return // callers hear of theirs by the answer
		}
		refusals.Tell(sandbox.Event{
			Kind: event.NetworkRefused, Time: r.Time, Detail: r.Reason,
			Info: sandbox.Info{ID: s.SandboxID, KeyID: s.KeyID, TemplateID: s.TemplateID},
		}, r.What+"\x00"+r.Rule, func(repeats event.Repeats) any {
			return struct {
				Refusal guard.Refusal `json:"refusal"`
				event.Repeats
			}{r, repeats}
		})
	}
}

// infoOf is what events say of the sandbox of a hold.
func infoOf(records store.Sandboxes, h approval.Hold) sandbox.Info {
	info := sandbox.Info{ID: h.Subject.SandboxID, KeyID: h.Subject.KeyID, TemplateID: h.Subject.TemplateID}
	if s, err := records.Sandbox(context.Background(), info.ID); err == nil {
		info.Metadata, info.BuildID = s.Metadata, s.TemplateBuild
		info.StartedAt, info.EndAt = s.StartedAt, s.EndAt
		info.CPUs, info.MemoryBytes = s.CPUs, s.MemoryBytes
	}
	return info
}
