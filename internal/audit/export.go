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
	if _, err := Line(Record{}, nil, format, version); err != nil {
		return err
	}
	return Read(ctx, dir, f, func(r Record, line []byte) error {
		formatted, err := Line(r, line, format, version)
		if err != nil {
			return err
		}
		if _, err := w.Write(formatted); err != nil {
			return err
		}
		_, err = io.WriteString(w, "\n")
		return err
	})
}

// Line is the line of a record in a format, without its end.
func Line(r Record, line []byte, format Format, version string) ([]byte, error) {
	switch format {
	case JSONL:
		return line, nil
	case OCSF:
		line, err := encode(ToOCSF(r, version))
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", r.Seq, err)
		}
		return line, nil
	}
	return nil, fmt.Errorf("there is no format %q, only %s and %s", format, JSONL, OCSF)
}
