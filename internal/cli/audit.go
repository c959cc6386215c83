package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	ownapi "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/image"
)

func addAuditFlag(cmd *cobra.Command) {
	cmd.Flags().String("audit-keep", "90d,10GiB", "how long records of the audit log are kept, an age, a size or both, joined by a comma; \"all\" keeps them all")
}

// openAudit opens the audit log; one process, which keeps the data folder, removes
// what is old.
func openAudit(c config, log *slog.Logger, keep bool) (*audit.Log, error) {
	o := audit.Options{Log: log}
	if keep {
		var err error
		if o.Keep, err = parseKeep(c.AuditKeep); err != nil {
			return nil, err
		}
	}
	return audit.Open(audit.Dir(c.Data), o)
}

// parseKeep reads "90d,10GiB". Empty, which no flag has, is all.
func parseKeep(text string) (audit.Keep, error) {
	var keep audit.Keep
	if text == "" || text == "all" {
		return keep, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		age, err := parseAge(part)
		if err == nil && age >= time.Hour && keep.Age == 0 {
			keep.Age = age
			continue
		}
		size, err := image.ParseSize(part)
		if err != nil || size < 256<<20 || keep.Bytes != 0 {
			return keep, fmt.Errorf("--audit-keep %q: use an age of an hour or more like 90d or 12h, a size of 256MiB or more, both joined by a comma, or all", text)
		}
		keep.Bytes = int64(size)
	}
	return keep, nil
}

// parseAge is time.ParseDuration that knows days too.
func parseAge(text string) (time.Duration, error) {
	if days, is := strings.CutSuffix(text, "d"); is {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// recordServer records that the server did something by itself.
func (c *core) recordServer(what string, detail any) {
	c.gate.audit.Append(audit.Record{Kind: audit.Server, Actor: "server", What: what, Detail: audit.Detail(detail)})
}

// Bounds of what is recorded of a process, bytes.
const (
	maxProcessArg  = 512
	maxProcessArgs = 4096
)

// recordProcesses records the programs that are started in sandboxes, by whoever.
// Their variables are not recorded: what is secret is there.
func recordProcesses(trail audit.Appender) func(sandboxID, keyID string, p engine.Process) {
	return func(sandboxID, keyID string, p engine.Process) {
		r := audit.Record{Kind: audit.Exec, Actor: "sandbox:" + sandboxID, SandboxID: sandboxID, KeyID: keyID}
		if p.Missed > 0 {
			missed := r
			missed.What, missed.Reason = "processes missed", "more were started at once than could be told of, or one with too long arguments"
			missed.Detail = audit.Detail(map[string]int{"missed": p.Missed})
			trail.Append(missed)
		}
		if p.PID == 0 {
			return
		}
		args, cut := shortArgs(p.Args)
		r.What = "process"
		r.Detail = audit.Detail(struct {
			PID    int      `json:"pid"`
			Parent int      `json:"parent"`
			By     string   `json:"by,omitempty"`
			Binary string   `json:"binary"`
			Args   []string `json:"args"`
			Cut    bool     `json:"cut,omitempty"` // something of args is left out
		}{p.PID, p.Parent, shorten(p.By, maxProcessArg), shorten(p.Binary, maxProcessArg), args, cut})
		trail.Append(r)
	}
}

func shortArgs(args []string) (short []string, cut bool) {
	total := 0
	for _, arg := range args {
		if total += min(len(arg), maxProcessArg) + 1; total > maxProcessArgs {
			return short, true
		}
		cut = cut || len(arg) > maxProcessArg
		short = append(short, shorten(arg, maxProcessArg))
	}
	return short, cut
}

func newAudit() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "audit",
		Short: "Read and check the record of who did what",
		Long: `Read and check the audit log: API calls, sandboxes, commands, connections, secrets,
approvals and rules. Each record holds the hash of the one before; what was changed
or removed is found by "tombolo audit verify". The commands work with and without a
server, for root on its machine. "tail" and "export" read the log of a server elsewhere
too: give --url, and a key with the role audit in the variable TOMBOLO_API_KEY or in a
file, --key-file.`,
	}, newAuditTail(), newAuditVerify(), newAuditExport())
	addRemoteFlags(cmd, "audit")
	return cmd
}

// auditFlags say which records are wanted.
type auditFlags struct {
	sandbox, key, actor, decision, since, until string
	kinds                                       []string
}

func (f *auditFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.sandbox, "sandbox", "", "only those of a sandbox, by its id")
	flags.StringVar(&f.key, "key", "", "only those of a key and its sandboxes, by the key's id")
	flags.StringVar(&f.actor, "actor", "", "only what one did: owner, server, nobody, key:ID or sandbox:ID")
	flags.StringVar(&f.decision, "decision", "", "only what was decided so: allow, deny or ask")
	flags.StringSliceVar(&f.kinds, "kind", nil, "only those of these kinds: "+kindNames())
	flags.StringVar(&f.since, "since", "", "only later ones: a time like 2026-01-02T15:04:05Z, or an age like 2h or 7d")
}

func (f *auditFlags) addUntil(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.until, "until", "", "only earlier ones, in the same forms")
}

func kindNames() string {
	var names []string
	for _, k := range audit.Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

func (f *auditFlags) filter(now time.Time) (audit.Filter, error) {
	filter := audit.Filter{Sandbox: f.sandbox, Key: f.key, Actor: f.actor, Decision: f.decision}
	if !slices.Contains([]string{"", "allow", "deny", "ask"}, f.decision) {
		return filter, fmt.Errorf("--decision %q: use allow, deny or ask", f.decision)
	}
	for _, name := range f.kinds {
		if !slices.Contains(audit.Kinds(), audit.Kind(name)) {
			return filter, fmt.Errorf("--kind %q: use %s", name, kindNames())
		}
		filter.Kinds = append(filter.Kinds, audit.Kind(name))
	}
	var err error
	if filter.Since, err = parseMoment("--since", f.since, now); err != nil {
		return filter, err
	}
	filter.Until, err = parseMoment("--until", f.until, now)
	return filter, err
}

// parseMoment reads a time or an age; empty is the zero time.
func parseMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := parseAge(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s %q: use a time like 2026-01-02T15:04:05Z or 2026-01-02, or an age like 2h or 7d", flag, text)
}

// auditError explains an error of reading the log.
func auditError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: only root reads the audit log, run it with sudo", err)
	}
	return err
}

func newAuditTail() *cobra.Command {
	var flags auditFlags
	var follow, asJSON bool
	var last int
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Show the last records, and with -f those to come",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			if last < 0 || last > 1_000_000 {
				return errors.New("--lines must be 0 to 1000000")
			}
			show := func(r audit.Record, line []byte) error {
				if asJSON {
					_, err := fmt.Printf("%s\n", line)
					return err
				}
				_, err := fmt.Println(describe(r))
				return err
			}
			server, err := remote(cmd)
			if err != nil {
				return err
			}
			if server != nil {
				return readRemote(cmd.Context(), server, filter, last, follow, show)
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			return auditError(audit.Tail(cmd.Context(), audit.Dir(c.Data), filter, last, follow, show))
		},
	}
	flags.add(cmd)
	cmd.Flags().IntVarP(&last, "lines", "n", 20, "how many of those there are")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with those to come")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the records as they are in the log, a line of JSON each")
	return cmd
}

// readRemote reads the log of a server elsewhere: the last records, with follow those to
// come; all of them where last is -1.
func readRemote(ctx context.Context, server *ownapi.Client, f audit.Filter, last int, follow bool, each func(audit.Record, []byte) error) error {
	if last == 0 && !follow {
		return nil
	}
	q := url.Values{}
	for name, value := range map[string]string{"sandbox": f.Sandbox, "key": f.Key, "actor": f.Actor, "decision": f.Decision} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	var kinds []string
	for _, kind := range f.Kinds {
		kinds = append(kinds, string(kind))
	}
	if len(kinds) > 0 {
		q.Set("kind", strings.Join(kinds, ","))
	}
	if last >= 0 {
		q.Set("last", strconv.Itoa(last))
	}
	if follow {
		q.Set("follow", "true")
	}
	err := server.Audit(ctx, q, func(line json.RawMessage) error {
		var r audit.Record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("the server sent what is no record: %w", err)
		}
		return each(r, line)
	})
	if ctx.Err() != nil {
		return nil // interrupted
	}
	return err
}

func exportRemote(ctx context.Context, server *ownapi.Client, w io.Writer, format audit.Format, f audit.Filter) error {
	return readRemote(ctx, server, f, -1, false, func(r audit.Record, line []byte) error {
		formatted, err := audit.Line(r, line, format, version())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", formatted)
		return err
	})
}

// describe is a record as one line for people.
func describe(r audit.Record) string {
	words := []string{r.Time.UTC().Format("2006-01-02 15:04:05.000Z"), fmt.Sprintf("%-9s", r.Kind), fmt.Sprintf("%-5s", r.Decision), r.Actor, r.What}
	if r.Count > 1 {
		words = append(words, fmt.Sprintf("(%d times)", r.Count))
	}
	if r.SandboxID != "" && r.Actor != "sandbox:"+r.SandboxID {
		words = append(words, "sandbox="+r.SandboxID)
	}
	if detail := describeDetail(r.Detail); detail != "" {
		words = append(words, detail)
	}
	if r.Rule != "" {
		words = append(words, "rule="+r.Rule)
	}
	if r.ID != "" {
		words = append(words, "id="+r.ID)
	}
	if r.Reason != "" {
		words = append(words, strconv.Quote(r.Reason))
	}
	return printable(strings.ReplaceAll(strings.Join(words, "  "), "\t", " "))
}

// What is shown of a detail and of each member of it, bytes.
const (
	longestDetail = 400
	longestMember = 120
)

// describeDetail shows the members of a detail as words.
func describeDetail(detail json.RawMessage) string {
	var members map[string]json.RawMessage
	if len(detail) == 0 || json.Unmarshal(detail, &members) != nil {
		return shorten(string(detail), longestDetail)
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		value := string(members[name])
		var text string
		if json.Unmarshal(members[name], &text) == nil && text != "" && !strings.ContainsAny(text, " \t\n\"") {
			value = text
		}
		words = append(words, name+"="+shorten(value, longestMember)) // none hides the others
	}
	return shorten(strings.Join(words, " "), longestDetail)
}

func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func newAuditVerify() *cobra.Command {
	var asJSON bool
	var heads []string
	var from uint64
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that no record was changed, added or removed",
		Long: `Check that no record was changed, added or removed, and print the head: the number
and the hash of the last record. Exit code 1 says that something is wrong.

Who is root on this machine has the key of the log and could write all of it anew.
Against that helps a head that was noted elsewhere:

  tombolo audit verify --head 4711:9f86d0…`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if server, err := remote(cmd); server != nil || err != nil {
				return cmp.Or(err, errors.New("only on its own machine a log can be verified, where its key is; note elsewhere what `tombolo audit tail --url … -n 1 --json` shows"))
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			o := audit.VerifyOptions{From: from}
			for _, text := range heads {
				head, err := parseHead(text)
				if err != nil {
					return err
				}
				o.Heads = append(o.Heads, head)
			}
			report, err := verifyAudit(c, o)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(report)
			} else {
				err = printReport(report)
			}
			if err == nil && len(report.Problems) > 0 {
				return exitCode(1)
			}
			return err
		},
	}
	cmd.Flags().StringArrayVar(&heads, "head", nil, "NUMBER:HASH that was printed earlier and kept elsewhere; repeatable")
	cmd.Flags().Uint64Var(&from, "from", 0, "begin at the record of this number, for a quick check")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func verifyAudit(c config, o audit.VerifyOptions) (audit.Report, error) {
	key, err := audit.ReadKey(audit.KeyFile(c.Data))
	if errors.Is(err, fs.ErrNotExist) {
		return audit.Report{}, fmt.Errorf("%w (without it nothing can be checked)", err)
	}
	if err != nil {
		return audit.Report{}, auditError(err)
	}
	report, err := audit.Verify(audit.Dir(c.Data), key, o)
	return report, auditError(err)
}

func parseHead(text string) (audit.Head, error) {
	number, hash, _ := strings.Cut(strings.TrimSpace(text), ":")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || len(hash) != 64 {
		return audit.Head{}, fmt.Errorf("--head %q: use NUMBER:HASH as `tombolo audit verify` prints it", text)
	}
	return audit.Head{Seq: seq, Hash: strings.ToLower(hash)}, nil
}

func printReport(r audit.Report) error {
	for _, n := range r.Notes {
		fmt.Printf("note: %s\n", printable(n.String()))
	}
	for _, p := range r.Problems {
		fmt.Printf("PROBLEM: %s\n", printable(p.String()))
	}
	if r.Unlisted > 0 {
		fmt.Printf("PROBLEM: and %d more\n", r.Unlisted)
	}
	fmt.Printf("records %d to %d, %d lines\nhead: %d:%s\n", r.First, r.Last, r.Records, r.Head.Seq, r.Head.Hash)
	if len(r.Problems) == 0 {
		fmt.Println("the log is whole")
	}
	return nil
}

func newAuditExport() *cobra.Command {
	var flags auditFlags
	var format, output string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write records for other tools: lines of JSON, ours or OCSF's",
		Long: `Write records for other tools. The format jsonl is the log as it is, with its hashes;
ocsf has each record as an event of the Open Cybersecurity Schema Framework, a line
of JSON each.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			server, err := remote(cmd)
			if err != nil {
				return err
			}
			if server != nil {
				return toFile(output, func(w io.Writer) error { return exportRemote(cmd.Context(), server, w, audit.Format(format), filter) })
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			return toFile(output, func(w io.Writer) error {
				return auditError(audit.Export(cmd.Context(), audit.Dir(c.Data), w, audit.Format(format), version(), filter))
			})
		},
	}
	flags.add(cmd)
	flags.addUntil(cmd)
	cmd.Flags().StringVar(&format, "format", string(audit.JSONL), "jsonl or ocsf")
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write to (default: stdout)")
	return cmd
}

// toFile has something written to a file that only its owner reads, or to stdout.
func toFile(path string, write func(io.Writer) error) error {
	out := os.Stdout
	if path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		out = f
	}
	buffered := bufio.NewWriterSize(out, 1<<20)
	err := errors.Join(write(buffered), buffered.Flush())
	if path != "" {
		err = errors.Join(err, out.Close())
	}
	return err
}
