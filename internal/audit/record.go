package audit

import (
	"bytes"
	"encoding/json"
	"strings"
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

// bounded is r with nothing too long in it. Whether its detail is JSON is not looked at
// here, see WithDetail.
func bounded(r Record) Record {
	for _, s := range []*string{(*string)(&r.Kind), &r.Actor, &r.SandboxID, &r.KeyID, &r.What, &r.Decision, &r.Rule, &r.ID} {
		*s = cut(*s, maxName)
	}
	r.Reason = cut(r.Reason, maxText)
	if len(r.Detail) > MaxDetail {
		r.Detail = cutDetail(r.Detail)
	}
	return r
}

// WithDetail gives r with its Detail as the log writes it: made of DetailOf where it has
// none, JSON without space between, and not too long.
func (r Record) WithDetail() Record {
	if r.DetailOf != nil && len(r.Detail) == 0 {
		r.Detail = Detail(r.DetailOf)
	} else {
		r.Detail = plainDetail(r.Detail)
	}
	r.DetailOf = nil
	if len(r.Detail) > MaxDetail {
		r.Detail = cutDetail(r.Detail)
	}
	return r
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(cutMark)], "") + cutMark
}

// plainDetail puts in place of a detail that is not JSON one that says so and holds its
// beginning.
func plainDetail(d json.RawMessage) json.RawMessage {
	if len(d) == 0 {
		return nil
	}
	var plain bytes.Buffer
	plain.Grow(len(d))
	if json.Compact(&plain, d) != nil {
		return Detail(map[string]any{"invalid": strings.ToValidUTF8(string(d[:min(len(d), MaxDetail/8)]), "\uFFFD")})
	}
	return bytes.ToValidUTF8(plain.Bytes(), []byte("\uFFFD"))
}

// cutDetail is in place of a detail that is too long.
func cutDetail(d json.RawMessage) json.RawMessage {
	return Detail(map[string]any{"cut": len(d), "begins": strings.ToValidUTF8(string(d[:MaxDetail/8]), "\uFFFD")})
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

// noChain ends the JSON of a record that has neither detail nor place in a chain.
const noChain = `,"previous":"","hash":""}`

// seal gives the line of a record that has its number, its detail as [Record.WithDetail]
// makes it and the hash before, newline included, and its hash. The detail is put in as it
// is: the encoder would read it once more.
func (k keys) seal(r Record) (line []byte, hash string, err error) {
	detail, previous := r.Detail, r.Previous
	r.Detail, r.Previous, r.Hash = nil, "", ""
	raw, err := encode(r)
	if err != nil {
		return nil, "", err
	}
	body := bytes.TrimSuffix(raw, []byte(noChain))
	if len(detail) > 0 {
		body = append(append(body, `,"detail":`...), detail...)
	}
	body = append(append(append(body, `,"previous":"`...), previous...), '"')
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
