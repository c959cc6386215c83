package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func addJSONFlag(cmd *cobra.Command, value *bool) {
	cmd.Flags().BoolVar(value, "json", false, "print JSON")
}

func printJSON(v any) error {
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// printTable prints rows under headings, in columns.
func printTable(headings []string, rows [][]string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(headings, "\t")))
	return flushRows(w, rows)
}

// printColumns prints rows in columns, without headings.
func printColumns(rows [][]string) error {
	return flushRows(tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0), rows)
}

func flushRows(w *tabwriter.Writer, rows [][]string) error {
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// confirm asks on the terminal and returns an error unless the answer is yes.
func confirm(question string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return errors.New("there is no terminal to ask on: add --yes to do it without a question")
	}
	fmt.Fprint(os.Stderr, question+" [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n') // what was typed before an error counts
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was done")
}
