package audit

import (
	"context"
	"fmt"
	"io"
)

// Format is one of those that records are exported in.
type Format string

// The formats: the lines of the log, or events of the Open Cybersecurity Schema
// Framework, a line of JSON each.
const (
	JSONL Format = "jsonl"
	OCSF  Format = "ocsf"
)

// Export writes the records that fit, oldest first. version is the product's, for OCSF.
func Export(ctx context.Context, dir string, w io.Writer, format Format, version string, f Filter) error {
	if format != JSONL && format != OCSF {
		return fmt.Errorf("there is no format %q, only %s and %s", format, JSONL, OCSF)
	}
	return Read(ctx, dir, f, func(r Record, line []byte) error {
		if format == OCSF {
			var err error
			if line, err = encode(ToOCSF(r, version)); err != nil {
				return fmt.Errorf("record %d: %w", r.Seq, err)
			}
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		_, err := io.WriteString(w, "\n")
		return err
	})
}
