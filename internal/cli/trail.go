package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// target names what a command changed, and what it is now, without anything secret.
type target map[string]any

// trail is the audit log as a command writes it, for what does not go through a server.
// Whoever can change the data folder is its owner.
type trail struct{ log audit.Appender }

// changed records that a command changed something. keyID is the key that it belongs to.
func (t trail) changed(what, keyID string, of target) {
	t.log.Append(audit.Record{Kind: audit.API, Actor: "owner", KeyID: keyID, What: what, Detail: audit.Detail(struct {
		API    string `json:"api"`
		Target target `json:"target"`
	}{"command line", of})})
}

// started records that a command is started in a sandbox.
func (t trail) started(info sandbox.Info, e execution) {
	words := make([]string, len(e.argv))
	for i, arg := range e.argv {
		words[i] = quoted(arg)
	}
	a := policy.Action{Kind: policy.Exec, Command: strings.Join(words, " "), User: e.user, Cwd: e.cwd}
	detail := struct {
		Action any    `json:"action"`
		API    string `json:"api"`
	}{guard.Shortened(a), "command line"}
	t.log.Append(audit.Record{Kind: audit.Exec, Actor: "owner", SandboxID: info.ID, KeyID: info.KeyID, What: "start", Detail: audit.Detail(detail)})
}

// quoted writes an argument as a shell would need it, where it is not plain.
func quoted(arg string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	if arg != "" && strings.Trim(arg, plain) == "" {
		return arg
	}
	return shellQuote(arg)
}

// withTrail opens the audit log first, so that nothing is done that could not be recorded.
func withTrail(c config, run func(t trail) error) error {
	logger, err := newLogger(c)
	if err != nil {
		return err
	}
	log, err := openAudit(c, logger, false)
	if err != nil {
		return fmt.Errorf("nothing was done, since it could not be recorded: %w", auditError(err))
	}
	return errors.Join(run(trail{log}), log.Close())
}

// withChanges is withStore for a command that changes something.
func withChanges(run func(cmd *cobra.Command, records *sqlite.Store, t trail, args []string) error) func(*cobra.Command, []string) error {
	return withStore(func(cmd *cobra.Command, records *sqlite.Store, args []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		return withTrail(c, func(t trail) error { return run(cmd, records, t, args) })
	})
}

// trail is the log of this process's core.
func (c *core) trail() trail { return trail{c.gate.audit} }
