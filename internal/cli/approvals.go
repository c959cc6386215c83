package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	ownapi "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

func newApprovals() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "approvals",
		Short: "See what waits for a person, and answer",
		Long: `See what waits for a person, and answer. On the machine of the server, as root, it
goes over the control socket, and needs no server for what a "tombolo run" waits for.
From elsewhere give --url, and the key of an approver in the variable TOMBOLO_API_KEY
or in a file, --key-file.`,
	}, newApprovalsList(), newApprovalsShow(), newApprovalsApprove(), newApprovalsDeny(), newApprovalsWatch(), newApprovalsGrants(), newApprovalsRevoke())
	addRemoteFlags(cmd, "approve")
	return cmd
}

// withApprovals gives a command the API of the server it is about. Without a server it
// answers by itself.
func withApprovals(run func(cmd *cobra.Command, api *ownapi.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		api, err := remote(cmd)
		if err != nil {
			return err
		}
		if api != nil {
			return run(cmd, api, args)
		}
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		client, _, err := control.Dial(cmd.Context(), c.Data)
		if errors.Is(err, control.ErrNoServer) {
			return withDesk(cmd.Context(), c, func(api *ownapi.Client) error { return run(cmd, api, args) })
		}
		if err != nil {
			return err
		}
		return run(cmd, ownerAPI(client), args)
	}
}

func newApprovalsList() *cobra.Command {
	var asJSON, all bool
	var sandboxID string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what waits, oldest first",
		Args:  cobra.NoArgs,
		RunE: withApprovals(func(cmd *cobra.Command, api *ownapi.Client, _ []string) error {
			f := approval.Filter{SandboxID: sandboxID, States: []approval.State{approval.Pending}, Most: limit}
			if all {
				f.States = nil
			}
			holds, err := api.Approvals(cmd.Context(), f)
			if err != nil {
				return err
			}
			slices.Reverse(holds)
			if asJSON {
				return printJSON(holds)
			}
			var rows [][]string
			for _, h := range holds {
				rows = append(rows, []string{
					h.ID, age(h.CreatedAt), cmp.Or(h.Subject.SandboxID, "-"), visible(h.Action.String()), h.Rule, standing(h),
				})
			}
			return printTable([]string{"id", "age", "sandbox", "action", "rule", "state"}, rows)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also what was decided or is over")
	cmd.Flags().StringVar(&sandboxID, "sandbox", "", "of this sandbox only")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many, the newest")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func age(t time.Time) string { return time.Since(t).Round(time.Second).String() }

// standing says how a hold stands: how long it waits on, or how it ended.
func standing(h approval.Hold) string {
	switch {
	case h.State == approval.Pending:
		return fmt.Sprintf("%d waiting, until %s", h.Waiting, when(h.Deadline))
	case h.Answer != nil:
		return fmt.Sprintf("%s by %s", h.State, h.Answer.Approver)
	}
	return string(h.State)
}

func newApprovalsShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show all of what waits, or waited",
		Args:  cobra.ExactArgs(1),
		RunE: withApprovals(func(cmd *cobra.Command, api *ownapi.Client, args []string) error {
			h, err := api.Approval(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(h)
			}
			printHold(h)
			return nil
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func printHold(h approval.Hold) {
	line := func(name, text string) {
		if text != "" {
			fmt.Printf("%-9s %s\n", name, text)
		}
	}
	line("id", h.ID)
	line("state", standing(h))
	line("action", visible(h.Action.String()))
	line("hash", h.Hash)
	line("sandbox", h.Subject.SandboxID)
	line("key", h.Subject.KeyID)
	line("template", cmp.Or(h.Subject.TemplateName, h.Subject.TemplateID))
	line("rule", fmt.Sprintf("%s of %s", h.Rule, h.Scope))
	line("because", visible(h.Reason))
	line("asked", when(h.CreatedAt)+times(h.Count))
	line("deadline", when(h.Deadline))
	if h.Proposed != nil {
		line("proposed", proposed(h))
	}
	if a := h.Answer; a != nil {
		line("answer", fmt.Sprintf("%s by %s at %s %s", h.State, a.Approver, when(a.At), visible(a.Reason)))
	}
}

// proposed writes what a sandbox proposes.
func proposed(h approval.Hold) string {
	return fmt.Sprintf("%s %s (the sandbox says: %s)", h.Proposed.ID, words(h.Proposed.Match), visible(h.Proposed.Reason))
}

// times says how often, when that is more than once.
func times(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(", %d times", n)
}

// visible writes what does not show on a terminal, or changes how the rest shows, as
// an escape: a person is to see all that is approved.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
	}
	return b.String()
}

// words writes a match on one line.
func words(m policy.Match) string {
	raw, err := json.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return visible(string(raw))
}

// answerFlags are the flags of approve.
type answerFlags struct {
	reach, scope, reason string
	match                []string
	proposed             string
}

func newApprovalsApprove() *cobra.Command {
	var asJSON bool
	var flags answerFlags
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Let an action that waits go on",
		Long: `Let an action that waits go on, and print what exactly was approved. What is
approved is the action that this command reads; if it is another one by then, the
server refuses the answer.

  --for once       this very action, one time
  --for sandbox    equal actions, or those that --match names, while the sandbox lives
  --for 2h         the same, for a time
  --for rule       those that --match names, or just like this one, from now on, in
                   the scope that --scope names

--match takes the fields of a rule's match, host=api.example.com,port=443 or
longer-than=4h, or JSON where a value has a comma in it.
--as-proposed takes the match of the proposal that you read. It names its id, since the
sandbox may propose something else meanwhile; then the server refuses the answer.`,
		Args: cobra.ExactArgs(1),
		RunE: withApprovals(func(cmd *cobra.Command, api *ownapi.Client, args []string) error {
			if flags.proposed == "" && cmd.Flags().Changed("as-proposed") {
				return errors.New("--as-proposed needs the id of the proposal that you read; `tombolo approvals show` prints it")
			}
			h, err := api.Approval(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			req, err := flags.request(h)
			if err != nil {
				return err
			}
			return giveAnswer(cmd.Context(), api, h, req, asJSON)
		}),
	}
	cmd.Flags().StringVar(&flags.reach, "for", "once", "what it is good for: once, sandbox, a duration or rule")
	cmd.Flags().StringArrayVar(&flags.match, "match", nil, "what is approved beyond this very action; repeatable")
	cmd.Flags().StringVar(&flags.proposed, "as-proposed", "", "take the match of the proposal with this id, as show prints it")
	cmd.Flags().StringVar(&flags.scope, "scope", "sandbox", "where a rule holds: server, key, template or sandbox")
	cmd.Flags().StringVar(&flags.reason, "reason", "", "why, for the record")
	cmd.MarkFlagsMutuallyExclusive("match", "as-proposed")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// request is the answer that the flags say to a hold.
func (f answerFlags) request(h approval.Hold) (req ownapi.AnswerRequest, err error) {
	req = ownapi.AnswerRequest{Approve: true, Hash: h.Hash, Reason: f.reason, Reach: approval.Reach(f.reach)}
	switch req.Reach {
	case approval.Once, approval.ForSandbox:
	case approval.ByRule:
		req.Scope.Kind = policy.ScopeKind(f.scope)
	default:
		duration, err := parseAge(f.reach)
		if err != nil {
			return req, fmt.Errorf("--for %q: use once, sandbox, a duration such as 2h, or rule", f.reach)
		}
		req.Reach, req.Duration = approval.ForTime, ownapi.Duration(duration)
	}
	switch {
	case len(f.match) > 0:
		req.Match, err = parseMatch(f.match)
	case f.proposed != "":
		req.Proposal = f.proposed
	case req.Reach == approval.ByRule:
		match, has := approval.Narrow(h.Action)
		if !has {
			return req, errors.New("say by --match what the rule is about, as in --match longer-than=4h or --match cpus-over=8,memory-over=16GiB")
		}
		req.Match = &match
	}
	return req, err
}

// giveAnswer answers a hold and prints what was said.
func giveAnswer(ctx context.Context, api *ownapi.Client, h approval.Hold, req ownapi.AnswerRequest, asJSON bool) error {
	h, err := api.Answer(ctx, h.ID, req)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(h)
	}
	fmt.Printf("%s: %s\n  sandbox %s, hash %s\n", told(h), visible(h.Action.String()), cmp.Or(h.Subject.SandboxID, "none yet"), h.Hash)
	return nil
}

// told says how far an answer reaches.
func told(h approval.Hold) string {
	a := h.Answer
	if a == nil || !a.Approve {
		return string(h.State)
	}
	what := "this very action"
	if a.Match != nil {
		what = words(*a.Match)
	}
	switch a.Reach {
	case approval.ForSandbox:
		return "approved " + what + " while the sandbox lives"
	case approval.ForTime:
		return fmt.Sprintf("approved %s for %s", what, a.Duration)
	case approval.ByRule:
		return fmt.Sprintf("approved %s from now on for %s", what, a.Scope)
	}
	return "approved once"
}

func newApprovalsDeny() *cobra.Command {
	var asJSON bool
	var reason string
	cmd := &cobra.Command{
		Use:   "deny ID",
		Short: "Refuse an action that waits",
		Args:  cobra.ExactArgs(1),
		RunE: withApprovals(func(cmd *cobra.Command, api *ownapi.Client, args []string) error {
			h, err := api.Approval(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return giveAnswer(cmd.Context(), api, h, ownapi.AnswerRequest{Hash: h.Hash, Reason: reason}, asJSON)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; who asked is told")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newApprovalsWatch() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print what waits, and every change, until interrupted",
		Args:  cobra.NoArgs,
		RunE: withApprovals(func(cmd *cobra.Command, api *ownapi.Client, _ []string) error {
			ctx := cmd.Context()
			encoder := json.NewEncoder(os.Stdout) // one on each line
			err := api.Watch(ctx, func(change ownapi.Change) error {
				h := change.Hold
				if h == nil {
					return nil
				}
				if asJSON {
					return encoder.Encode(h)
				}
				_, err := fmt.Printf("%s  %s  %s  %s  %s\n", when(time.Now()), h.ID, cmp.Or(h.Subject.SandboxID, "-"), standing(*h), visible(h.Action.String()))
				if h.State == approval.Pending && h.Proposed != nil && err == nil {
					_, err = fmt.Printf("  proposed %s\n", proposed(*h))
				}
				return err
			}, func(err error) {
				fmt.Fprintf(os.Stderr, "the connection broke and is made again: %v\n", err)
			})
			if ctx.Err() != nil {
				return nil // interrupted
			}
			return err
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newApprovalsGrants() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "List what was approved and still holds",
		Args:  cobra.NoArgs,
		RunE: withApprovals(func(cmd *cobra.Command, api *ownapi.Client, _ []string) error {
			grants, err := api.Grants(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(grants)
			}
			var rows [][]string
			for _, g := range grants {
				what := "the action of " + g.HoldID
				if g.Match != nil {
					what = words(*g.Match)
				}
				rows = append(rows, []string{g.ID, string(g.Reach), g.Scope.String(), string(g.Kind), what, g.Approver, when(g.Until)})
			}
			return printTable([]string{"id", "for", "scope", "kind", "what", "approved by", "until"}, rows)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newApprovalsRevoke() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke GRANT-ID",
		Short: "Take back what was approved; connections that it let through end",
		Args:  cobra.ExactArgs(1),
		RunE: withApprovals(func(cmd *cobra.Command, api *ownapi.Client, args []string) error {
			err := api.Revoke(cmd.Context(), args[0])
			if err == nil {
				fmt.Printf("revoked %s\n", args[0])
			}
			return err
		}),
	}
}
