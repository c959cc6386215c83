package audit

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// The bounds of a record, bytes.
const (
	MaxDetail = 8 << 10 // of Detail
	maxText   = 1 << 10 // of Reason
	maxName   = 256     // of every other string
	// maxLine bounds a line of a segment: a byte of a string takes six at most.
	maxLine = MaxDetail + 6*(maxText+8*maxName) + 1<<10
)

// cutMark ends a string that was cut.
const cutMark = "…(cut)"

// Detail makes a record's detail of a value, which must be one that JSON can hold.
func Detail(v any) json.RawMessage {
	raw, err := encode(v)
	if err != nil {
		raw, _ = encode(map[string]string{"error": "the detail could not be encoded: " + err.Error()})
	}
	return raw
}

// bounded is r with nothing too long in it, and a detail that is JSON.
func bounded(r Record) Record {
	for _, s := range []*string{(*string)(&r.Kind), &r.Actor, &r.SandboxID, &r.KeyID, &r.What, &r.Decision, &r.Rule, &r.ID} {
		*s = cut(*s, maxName)
	}
	r.Reason = cut(r.Reason, maxText)
	r.Detail = boundedDetail(r.Detail)
	return r
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(cutMark)], "") + cutMark
}

// boundedDetail puts in place of a detail that is too long, or not JSON, one that
// says so and holds its beginning.
func boundedDetail(d json.RawMessage) json.RawMessage {
	switch {
	case len(d) == 0:
		return nil
	case len(d) > MaxDetail:
		return Detail(map[string]any{"cut": len(d), "begins": strings.ToValidUTF8(string(d[:MaxDetail/8]), "\uFFFD")})
	case !json.Valid(d):
		return Detail(map[string]any{"invalid": strings.ToValidUTF8(string(d[:min(len(d), MaxDetail/8)]), "\uFFFD")})
	case !utf8.Valid(d):
		return bytes.ToValidUTF8(d, []byte("\uFFFD"))
	}
	return d
}

// encode is json.Marshal that leaves <, > and & as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// hashMember is what stands between what is hashed and the hash.
const hashMember = `,"hash":"`

// seal gives the line of a record that has its number and the hash before, newline
// included, and its hash.
func (k keys) seal(r Record) (line []byte, hash string, err error) {
	r.Hash = ""
	raw, err := encode(r)
	if err != nil {
		return nil, "", err
	}
	body := bytes.TrimSuffix(raw, []byte(hashMember+`"}`))
	hash = k.mac(k.record, body)
	line = append(body, hashMember...)
	line = append(line, hash...)
	return append(line, "\"}\n"...), hash, nil
}

// hashDigits is the length of a hash in a line.
const hashDigits = 64

// open takes a line apart, without its newline, and tells whether its hash is right.
// Of a line where it is not, the record is what the line claims, if anything.
func (k keys) open(line []byte) (r Record, ok bool) {
	if json.Unmarshal(line, &r) != nil {
		return Record{}, false
	}
	at := len(line) - len(hashMember) - hashDigits - len(`"}`)
	if at < 0 || !bytes.HasPrefix(line[at:], []byte(hashMember)) {
		return r, false
	}
	return r, k.same(k.mac(k.record, line[:at]), string(line[at+len(hashMember):len(line)-2]))
}
