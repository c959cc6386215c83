package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	api "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/rules"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func newPolicy() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "policy",
		Short: "Say what sandboxes may do: check, apply, explain and show rules",
		Long: `Say what sandboxes may do. Rules are in a file in YAML, for the server, for keys and
for templates:

  server:
    default: {egress: deny}
    rules:
      - name: packages
        kind: egress
        decision: allow
        match: [{host: [pypi.org, files.pythonhosted.org], port: [443]}]
        matches: ["egress https://pypi.org/simple/"]

  tombolo policy check rules.yaml                                 is it right?
  tombolo policy explain --file rules.yaml egress github.com:22   what would it decide?
  tombolo policy apply rules.yaml                                 have it hold

On the machine of the server root needs no key. From elsewhere give --url, and a key with
the role policy in the variable TOMBOLO_API_KEY or in a file, --key-file.`,
	}, newPolicyCheck(), newPolicyApply(), newPolicyExplain(), newPolicyShow())
	addRemoteFlags(cmd, "policy")
	return cmd
}

// readRules reads a file of rules; "-" is the standard input.
func readRules(path string) ([]byte, error) {
	in := os.Stdin
	if path != "-" {
		var err error
		if in, err = os.Open(path); err != nil {
			return nil, err
		}
		defer in.Close()
	}
	data, err := io.ReadAll(io.LimitReader(in, policy.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// readPolicy reads and checks a file; "-" is the standard input.
func readPolicy(path string) (policy.File, error) {
	data, err := readRules(path)
	if err != nil {
		return policy.File{}, err
	}
	f, err := policy.ParseFile(data)
	if err != nil {
		return policy.File{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func newPolicyCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a file of rules, with the examples in it",
		Long: `Check a file of rules: its form, what it matches, and that each rule fits its
examples (matches) and none of its counter-examples (matches-not). It needs no server and
looks at no data folder, so the keys and templates that it names need not be there.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := readPolicy(args[0])
			if err != nil {
				return err
			}
			tables, err := f.Resolve(func(_ policy.ScopeKind, name string) (string, error) { return name, nil })
			if err != nil {
				return err
			}
			fmt.Printf("%s is right: %s\n", args[0], counted(tables))
			return nil
		},
	}
}

// counted says how much there is in tables.
func counted(tables []policy.Table) string {
	rules, examples := 0, 0
	for _, t := range tables {
		rules += len(t.Rules)
		for _, r := range t.Rules {
			examples += len(r.Matches) + len(r.MatchesNot)
		}
	}
	return fmt.Sprintf("%s, %s, %s", plural(len(tables), "table"), plural(rules, "rule"), plural(examples, "example"))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// keptRules are the rules of a server, or of a data folder that has none.
type keptRules struct {
	config config
	names  *rules.Names
	store  *sqlite.Store
	server *api.Client // nil without a server
}

// withRules opens the rules for a command: those of the server that --url names, or of the
// data folder.
func withRules(run func(cmd *cobra.Command, kept *keptRules, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		server, err := remote(cmd)
		if err != nil {
			return err
		}
		if server == nil {
			return withOwnRules(run)(cmd, args)
		}
		names, err := namesOf(cmd.Context(), server)
		if err != nil {
			return err
		}
		return run(cmd, &keptRules{names: names, server: server}, args)
	}
}

// namesOf are the names that a server has for its keys and templates. Who may not read its
// rules names them by their ids.
func namesOf(ctx context.Context, server *api.Client) (*rules.Names, error) {
	now, err := server.Policy(ctx)
	if api.HasCode(err, api.CodeRole) {
		return &rules.Names{}, nil
	}
	if err != nil {
		return nil, err
	}
	var keys []store.Key
	for _, k := range now.Keys {
		keys = append(keys, store.Key{ID: k.ID, Name: k.Name})
	}
	var templates []store.Template
	for _, t := range now.Templates {
		templates = append(templates, store.Template{ID: t.ID, Name: t.Name})
	}
	return rules.NewNames(keys, templates), nil
}

func withOwnRules(run func(cmd *cobra.Command, kept *keptRules, args []string) error) func(*cobra.Command, []string) error {
	return withStore(func(cmd *cobra.Command, records *sqlite.Store, args []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		names, err := rules.LoadNames(cmd.Context(), records)
		if err != nil {
			return err
		}
		kept := &keptRules{config: c, names: names, store: records}
		client, _, err := control.Dial(cmd.Context(), c.Data)
		switch {
		case err == nil:
			kept.server = ownerAPI(client)
		case !errors.Is(err, control.ErrNoServer):
			return err
		}
		return run(cmd, kept, args)
	})
}

// now are the tables there are, and what names them for a change.
func (k *keptRules) now(ctx context.Context) (api.Policy, error) {
	if k.server != nil {
		return k.server.Policy(ctx)
	}
	tables, err := rules.Read(ctx, k.store)
	return api.Policy{Tables: tables}, err
}

// replace has tables hold in place of those that were read, unless dry.
func (k *keptRules) replace(ctx context.Context, tables []policy.Table, read api.Policy, dry bool) error {
	if k.server != nil {
		_, err := k.server.PutPolicy(ctx, api.Policy{Tables: tables, Revision: read.Revision}, dry)
		return err
	}
	if dry {
		return nil
	}
	log, err := newLogger(k.config)
	if err != nil {
		return err
	}
	trail, err := openAudit(k.config, log, false)
	if err != nil {
		return err
	}
	if err := rules.Write(ctx, k.store, tables); err != nil {
		return errors.Join(err, trail.Close())
	}
	recordRules(trail, "owner", read.Tables, tables)
	return trail.Close()
}

func newPolicyApply() *cobra.Command {
	var asJSON, dry bool
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Have the rules of a file hold, in place of all there are",
		Long: `Have the rules of a file hold, in place of all there are of the server, of keys and of
templates; those of single sandboxes stay. It prints what changes. On a running server they
hold at once, for open connections and running sandboxes too; else from its next start.`,
		Args: cobra.ExactArgs(1),
		RunE: withRules(func(cmd *cobra.Command, kept *keptRules, args []string) error {
			f, err := readPolicy(args[0])
			if err != nil {
				return err
			}
			tables, err := f.Resolve(kept.names.ID)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			before, err := kept.now(cmd.Context())
			if err != nil {
				return err
			}
			if err := kept.replace(cmd.Context(), tables, before, dry); err != nil {
				return err
			}
			changes := rules.Changes(before.Tables, tables)
			if asJSON {
				return printJSON(append([]rules.Change{}, changes...))
			}
			for _, c := range changes {
				fmt.Println(changeLine(kept.names, c))
			}
			fmt.Println(kept.applied(len(changes), dry))
			return nil
		}),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only print what would change")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// changeLine is "+ server: rule packages: allow".
func changeLine(names *rules.Names, c rules.Change) string {
	sign := map[string]string{"added": "+", "removed": "-", "changed": "~"}[c.What]
	what := "rule " + c.Rule
	if c.Default != "" {
		what = "default for " + string(c.Default)
	}
	decision := string(c.After)
	switch {
	case c.What == "removed":
		decision = string(c.Before)
	case c.What == "changed" && c.Before != c.After:
		decision = string(c.Before) + " -> " + string(c.After)
	}
	return fmt.Sprintf("%s %s: %s: %s", sign, names.Scope(c.Scope), what, decision)
}

func (k *keptRules) applied(changes int, dry bool) string {
	switch {
	case changes == 0:
		return "nothing changes"
	case dry:
		return plural(changes, "change") + ", not made: this was a dry run"
	case k.server != nil:
		return plural(changes, "change") + "; the rules hold now"
	}
	return plural(changes, "change") + "; the rules hold from the next start of the server"
}

func newPolicyShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the rules there are, as a file for apply",
		Long: `Print the rules of the server, of keys and of templates in the form that apply reads.
Those of single sandboxes are not among them.`,
		Args: cobra.NoArgs,
		RunE: withRules(func(cmd *cobra.Command, kept *keptRules, _ []string) error {
			now, err := kept.now(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(append([]policy.Table{}, now.Tables...))
			}
			text, err := policy.FormatFile(now.Tables, kept.names.Name)
			if err != nil {
				return err
			}
			_, err = os.Stdout.Write(text)
			return err
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// explainFlags say of which sandbox, and by which rules, an action is to be judged.
type explainFlags struct{ file, key, template, sandbox string }

func newPolicyExplain() *cobra.Command {
	var asJSON bool
	var flags explainFlags
	cmd := &cobra.Command{
		Use:   "explain ACTION…",
		Short: "Tell what is decided about an action, by which rule and why",
		Long: `Tell what is decided about an action, by which rule and why. Actions are written so:

  egress https://api.example.com/v1/x POST    a request; GET where no method is given
  egress github.com:22                        a connection, of which no request is known
  egress tcp github.com:22                    one of which no request is seen: TLS that passes unseen, or neither
  egress udp 1.1.1.1:53                       datagrams
  egress api.example.com                      a name, whatever comes of it
  secret github https://api.github.com/user Authorization
  exec "rm -rf /"                             also: exec user=root language=python "…"
  file-out /home/user/x                       also: file-out volume=ID /x
  port 8080
  lifetime 2h
  resources 4 8GiB
  snapshot fork

Add "at ADDRESS" to a connection or request by name to say what the name resolves to. Without
--file the rules of the server are asked, with its --key and --template, or those
of a --sandbox. The exit code is 0 whatever the decision is.`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		explain := func(cmd *cobra.Command, kept *keptRules, args []string) error {
			e, err := flags.explain(cmd.Context(), kept, args)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(e)
			}
			printExplanation(kept.names, e)
			return nil
		}
		if flags.file != "" { // it needs no data folder, and nobody's rights
			return explain(cmd, &keptRules{names: &rules.Names{}}, args)
		}
		return withRules(explain)(cmd, args)
	}
	cmd.Flags().StringVar(&flags.file, "file", "", "a file of rules to ask in place of the server's")
	cmd.Flags().StringVar(&flags.key, "key", "", "name or id of the key of the sandbox")
	cmd.Flags().StringVar(&flags.template, "template", "", "name or id of the template of the sandbox")
	cmd.Flags().StringVar(&flags.sandbox, "sandbox", "", "id of a sandbox that there is: with its key, template and own rules")
	addJSONFlag(cmd, &asJSON)
	cmd.Flags().SetInterspersed(false) // what follows the action's first word is the action
	return cmd
}

func (f explainFlags) explain(ctx context.Context, kept *keptRules, words []string) (api.Explanation, error) {
	action, err := policy.ParseAction(words...)
	if err != nil {
		return api.Explanation{}, err
	}
	if f.sandbox != "" && (f.file != "" || f.key != "" || f.template != "") {
		return api.Explanation{}, errors.New("--sandbox has a key, a template and rules of its own: give it alone")
	}
	request := api.ExplainRequest{SandboxID: f.sandbox, Action: words}
	if f.file == "" {
		if err := f.resolve(&request, kept.names.ID); err != nil {
			return api.Explanation{}, err
		}
		if kept.server != nil {
			return kept.server.Explain(ctx, request)
		}
	}
	if f.sandbox != "" {
		return api.Explanation{}, errors.New("--sandbox needs a server: there is none on this data folder")
	}
	var tables []policy.Table
	if f.file != "" {
		tables, err = f.tables(&request)
	} else {
		tables, err = rules.Read(ctx, kept.store)
	}
	if err != nil {
		return api.Explanation{}, err
	}
	return explainBy(tables, request, action)
}

// tables reads the file; its scopes are known by their names, and so are the flags'.
func (f explainFlags) tables(request *api.ExplainRequest) ([]policy.Table, error) {
	byName := func(_ policy.ScopeKind, name string) (string, error) { return name, nil }
	file, err := readPolicy(f.file)
	if err != nil {
		return nil, err
	}
	if err := f.resolve(request, byName); err != nil {
		return nil, err
	}
	return file.Resolve(byName)
}

func (f explainFlags) resolve(request *api.ExplainRequest, id func(policy.ScopeKind, string) (string, error)) (err error) {
	if f.key != "" {
		if request.KeyID, err = id(policy.KeyScope, f.key); err != nil {
			return err
		}
	}
	if f.template != "" {
		request.TemplateName = f.template
		request.TemplateID, err = id(policy.TemplateScope, f.template)
	}
	return err
}

func explainBy(tables []policy.Table, request api.ExplainRequest, action policy.Action) (api.Explanation, error) {
	var book policy.Book
	if err := book.Replace(tables); err != nil {
		return api.Explanation{}, err
	}
	e := api.Explanation{
		Subject: policy.Subject{KeyID: request.KeyID, TemplateID: request.TemplateID, TemplateName: request.TemplateName},
		Action:  action,
	}
	set := book.For(e.Subject)
	e.Verdict, e.Tables = set.Judge(action), set.Explain(action)
	if e.Verdict.Needs != 0 {
		e.Needs = e.Verdict.Needs.String()
	}
	return e, nil
}

func printExplanation(names *rules.Names, e api.Explanation) {
	fmt.Printf("%s\n", e.Action)
	fmt.Printf("  %s\n", verdictLine(names, e))
	for _, t := range e.Tables {
		fmt.Printf("%s:\n", names.Scope(t.Scope))
		for _, r := range t.Rules {
			line := fmt.Sprintf("  rule %s fits: %s", r.Name, r.Decision)
			if r.Fit != policy.Yes.String() {
				line = fmt.Sprintf("  rule %s may fit, which depends on %s: %s", r.Name, r.Needs, r.Decision)
			}
			if r.Reason != "" {
				line += " (" + printable(r.Reason) + ")"
			}
			fmt.Println(line)
		}
		switch {
		case t.Silent:
			fmt.Printf("  says nothing of this\n")
		case len(t.Rules) == 0:
			fmt.Printf("  no rule fits; default: %s\n", t.Default)
		case t.Default != "" && len(t.Possible) > 1:
			fmt.Printf("  default, if none fits: %s\n", t.Default)
		}
	}
	if len(e.Tables) == 0 {
		fmt.Println("there are no rules for this sandbox")
	}
}

// verdictLine says what is decided and by what.
func verdictLine(names *rules.Names, e api.Explanation) string {
	v := e.Verdict
	if v.Decision == "" {
		words := make([]string, len(v.Possible))
		for i, d := range v.Possible {
			words[i] = string(d)
		}
		return fmt.Sprintf("%s: that depends on %s", strings.Join(words, " or "), e.Needs)
	}
	switch v.Rule {
	case "":
		return fmt.Sprintf("%s: no table says anything of it", v.Decision)
	case policy.DefaultRule:
		return fmt.Sprintf("%s: the default of %s", v.Decision, names.Scope(v.Scope))
	}
	line := fmt.Sprintf("%s: rule %s of %s", v.Decision, v.Rule, names.Scope(v.Scope))
	if v.Reason != "" {
		line += " (" + printable(v.Reason) + ")"
	}
	return line
}
