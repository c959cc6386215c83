package image

import (
	"fmt"
	"io"
	"regexp"
	"strings"
)

// WriteProgress returns a Builder's Progress that writes a line for each event.
func WriteProgress(w io.Writer) func(Event) {
	return func(e Event) {
		fmt.Fprintf(w, "%s  %5.1fs  %s\n", e.Template, e.Elapsed.Seconds(), e.Text)
	}
}

var (
	aptPlan    = regexp.MustCompile(`^\d+ upgraded, (\d+) newly installed`)
	aptFetched = regexp.MustCompile(`^Fetched ([\d,.]+ .?B) in`)
)

// condense turns a line that apt, mmdebstrap or pip printed into what a person
// who waits wants to see, empty for nothing.
func condense(line string) string {
	if m := aptPlan.FindStringSubmatch(line); m != nil && m[1] != "0" {
		return fmt.Sprintf("installing %s packages", m[1])
	}
	if m := aptFetched.FindStringSubmatch(line); m != nil {
		return "downloaded " + m[1]
	}
	if text, ok := strings.CutPrefix(line, "I: "); ok && strings.HasSuffix(text, "...") {
		return strings.TrimSuffix(text, "...")
	}
	if names, ok := strings.CutPrefix(line, "Installing collected packages: "); ok {
		return fmt.Sprintf("installing %d Python packages", strings.Count(names, ",")+1)
	}
	if names, ok := strings.CutPrefix(line, "Successfully installed "); ok {
		return fmt.Sprintf("installed %d Python packages", len(strings.Fields(names)))
	}
	return ""
}
