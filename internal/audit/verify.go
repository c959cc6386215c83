package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// VerifyOptions say more on what is checked.
type VerifyOptions struct {
	// From is the number of the record to begin at; what is before is not read. 0 is
	// the first there is.
	From uint64
	// Heads are records that somebody noted elsewhere: the log must have them.
	Heads []Head
}

// Report is what a check found.
type Report struct {
	First   uint64 `json:"first"` // numbers of the first and last record
	Last    uint64 `json:"last"`
	Records int    `json:"records"`
	// Head is the end of the log, to be noted elsewhere.
	Head Head `json:"head"`
	// Problems are what is not as it was written; none is a log that is whole.
	Problems []Problem `json:"problems"`
	// Unlisted counts the problems beyond the first hundred.
	Unlisted int `json:"unlisted,omitempty"`
	// Notes are what the log says of itself and is no tampering: repaired after a
	// crash, pruned, records lost because the disk was full.
	Notes []Problem `json:"notes"`
}

// Problem is something that is wrong with a log, and where.
type Problem struct {
	Seq     uint64 `json:"seq,omitempty"`     // the record that it is about
	Segment string `json:"segment,omitempty"` // name of the file
	Line    int    `json:"line,omitempty"`    // in it, from 1
	Text    string `json:"text"`
}

func (p Problem) String() string {
	if p.Segment == "" {
		return p.Text
	}
	return fmt.Sprintf("%s line %d: %s", p.Segment, p.Line, p.Text)
}

const maxProblems = 100

// Verify checks a log: that each record is as it was written, that each follows the
// one before, and that none is missing at the end. It may run while others write. An
// error means that it could not check, a *[WrongKeyError] that the key is another.
func Verify(dir string, key Key, o VerifyOptions) (Report, error) {
	v := &verifier{keys: key.uses(), o: o, noted: map[uint64]string{}}
	v.report.Problems, v.report.Notes = []Problem{}, []Problem{}
	files, err := v.begin(dir)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return v.report, err
	}
	for i, f := range files {
		if err := v.segment(v.list[i], f); err != nil {
			return v.report, err
		}
	}
	v.end()
	return v.report, nil
}

// verifier goes over a log once.
type verifier struct {
	keys keys
	o    VerifyOptions
	list []segment

	head    Head
	headErr error

	report  Report
	last    Head // the record of the highest number so far that is right
	right   int  // records that are
	wrong   []Problem
	begins  Head              // what the first record says was before it
	vouched map[uint64]string // ends of what was pruned: hashes by number
	noted   map[uint64]string // hashes of the numbers that somebody noted
	name    string
	line    int
}

// begin opens what is there at one moment.
func (v *verifier) begin(dir string) (files []*os.File, err error) {
	lock, err := lockForReading(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if v.list, err = segments(dir); err != nil {
		return nil, err
	}
	v.head, v.headErr = v.keys.readHead(dir)
	var wrongKey *WrongKeyError
	if errors.As(v.headErr, &wrongKey) {
		return nil, v.headErr
	}
	if v.headErr != nil && !errors.Is(v.headErr, errNoHead) && !errors.Is(v.headErr, errBadHead) {
		return nil, v.headErr
	}
	if len(v.list) == 0 && errors.Is(v.headErr, errNoHead) {
		return nil, ErrNoLog
	}
	for len(v.list) > 1 && v.o.From > 0 && v.list[1].first <= v.o.From {
		v.list = v.list[1:]
	}
	for _, s := range v.list {
		f, err := os.Open(s.path)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	v.vouched = map[uint64]string{}
	for _, h := range v.o.Heads {
		v.noted[h.Seq] = ""
	}
	return files, nil
}

// lockForReading waits until nobody writes, where there is a lock to wait for.
func lockForReading(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if errors.Is(err, os.ErrNotExist) {
		if f, err = os.Open(dir); errors.Is(err, os.ErrNotExist) { // a copy without its lock
			return nil, ErrNoLog
		}
	}
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_SH); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (v *verifier) problem(seq uint64, format string, args ...any) {
	v.add(Problem{Seq: seq, Segment: v.name, Line: v.line, Text: fmt.Sprintf(format, args...)})
}

func (v *verifier) add(p Problem) {
	if len(v.report.Problems) >= maxProblems {
		v.report.Unlisted++
		return
	}
	v.report.Problems = append(v.report.Problems, p)
}

// segment checks one file, as far as it went when the check began.
func (v *verifier) segment(s segment, f *os.File) error {
	v.name, v.line = filepath.Base(s.path), 0
	lines := newLines(io.NewSectionReader(f, 0, s.size))
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		v.line++
		v.report.Records++
		r, ok := v.keys.open(line)
		if !ok {
			v.wrong = append(v.wrong, Problem{Seq: r.Seq, Segment: v.name, Line: v.line})
			if len(v.wrong) > 10*maxProblems { // nothing is right here
				v.settle(v.last.Seq+1+uint64(len(v.wrong)), false)
			}
			continue
		}
		if v.line == 1 && r.Seq != s.first {
			v.problem(r.Seq, "the file has the name of record %d and begins with record %d", s.first, r.Seq)
		}
		v.record(r)
	}
	if lines.torn > 0 {
		v.line++
		if v.name != filepath.Base(v.list[len(v.list)-1].path) {
			v.problem(0, "the last line is not whole, and later records are in another file")
		} else {
			v.report.Notes = append(v.report.Notes, Problem{Segment: v.name, Line: v.line, Text: fmt.Sprintf("the last line is not whole (%d bytes), as a crash leaves it; the next start repairs it", lines.torn)})
		}
	}
	return nil
}

// record checks one whose hash is right.
func (v *verifier) record(r Record) {
	v.right++
	if _, wanted := v.noted[r.Seq]; wanted {
		v.noted[r.Seq] = r.Hash
	}
	if v.right == 1 {
		v.report.First = r.Seq
		v.begins = Head{Seq: r.Seq - 1, Hash: r.Previous}
		if n := len(v.wrong); n > 0 {
			v.begins = Head{} // what is before the first cannot be told
			v.settle(r.Seq, true)
		}
		v.last = Head{r.Seq, r.Hash}
		v.remember(r)
		return
	}
	switch {
	case r.Seq == v.last.Seq && r.Hash == v.last.Hash:
		v.settle(r.Seq, false)
		v.problem(r.Seq, "record %d is here twice", r.Seq)
		return
	case r.Seq <= v.last.Seq:
		v.settle(r.Seq, false)
		v.problem(r.Seq, "record %d is out of its place, after record %d", r.Seq, v.last.Seq)
		return
	}
	missing := r.Seq - v.last.Seq - 1
	changed := uint64(len(v.wrong))
	v.settle(r.Seq, missing > 0)
	switch {
	case missing > changed:
		v.problem(r.Seq, "%s missing before record %d", numbers(v.last.Seq+1, r.Seq-1), r.Seq)
	case missing == 0 && r.Previous != v.last.Hash:
		v.problem(r.Seq, "record %d does not follow the record %d that is before it", r.Seq, v.last.Seq)
	}
	v.last = Head{r.Seq, r.Hash}
	v.remember(r)
}

func numbers(from, to uint64) string {
	if from == to {
		return fmt.Sprintf("record %d is", from)
	}
	return fmt.Sprintf("records %d to %d are", from, to)
}

// settle says of the lines whose hash is wrong what happened to them: changed, when
// numbers are missing that they may have had, or added.
func (v *verifier) settle(next uint64, missing bool) {
	for _, p := range v.wrong {
		switch {
		case missing && p.Seq > 0:
			p.Text = fmt.Sprintf("record %d was changed after it was written", p.Seq)
		case missing:
			p.Text = fmt.Sprintf("a record before %d was changed into what is no record", next)
		case p.Seq > 0:
			p.Text = fmt.Sprintf("what says it is record %d was added: whoever wrote it does not have the key", p.Seq)
		default:
			p.Text = "this is no record"
		}
		v.add(p)
	}
	v.wrong = nil
}

// remember keeps what a record says about the log itself.
func (v *verifier) remember(r Record) {
	if r.Kind != Server {
		return
	}
	note := func() {
		if len(v.report.Notes) < maxProblems {
			v.report.Notes = append(v.report.Notes, Problem{Seq: r.Seq, Segment: v.name, Line: v.line, Text: fmt.Sprintf("record %d of %s: %s: %s", r.Seq, r.Time.Format("2006-01-02 15:04:05Z"), r.What, r.Reason)})
		}
	}
	switch r.What {
	case whatDamage:
		v.problem(r.Seq, "record %d says that at %s the log was found damaged: %s", r.Seq, r.Time.Format("2006-01-02 15:04:05Z"), r.Reason)
	case whatRepair, whatLost, whatFold:
		note()
	case whatPrune:
		var p pruned
		if json.Unmarshal(r.Detail, &p) == nil {
			v.vouched[p.Through] = p.Hash
		}
		note()
	}
}

// end checks both ends of the log.
func (v *verifier) end() {
	v.name, v.line = "", 0
	if v.right == 0 && v.report.Records > 0 {
		v.wrong = nil
		v.problem(0, "none of the %d lines was written with this key: it is another's, or everything was replaced", v.report.Records)
	}
	v.settle(v.last.Seq+1+uint64(len(v.wrong)), v.head.Seq > v.last.Seq)
	v.report.Last, v.report.Head = v.last.Seq, v.last
	v.checkBegin()
	switch {
	case errors.Is(v.headErr, errNoHead):
		v.problem(0, "the file head is missing: whether records are missing at the end cannot be told")
	case errors.Is(v.headErr, errBadHead):
		v.problem(0, "the file head was changed: whether records are missing at the end cannot be told")
	case v.head.Seq > v.last.Seq:
		v.problem(v.head.Seq, "%s missing at the end: record %d was the last on the disk", numbers(v.last.Seq+1, v.head.Seq), v.head.Seq)
	}
	for _, h := range v.o.Heads {
		v.checkNoted(h)
	}
}

// checkBegin tells a log whose beginning was pruned from one whose beginning was
// removed.
func (v *verifier) checkBegin() {
	if v.o.From > 0 || v.right == 0 || v.begins.Seq == 0 {
		return
	}
	if hash, pruned := v.vouched[v.begins.Seq]; !pruned || hash != v.begins.Hash {
		v.problem(v.begins.Seq, "%s missing at the beginning, and no record says that they were pruned", numbers(1, v.begins.Seq))
	}
}

func (v *verifier) checkNoted(h Head) {
	hash := v.noted[h.Seq]
	switch {
	case hash == h.Hash:
	case hash != "":
		v.problem(h.Seq, "record %d has the hash %s, and %s was noted: the log was written anew", h.Seq, hash, h.Hash)
	case h.Seq > v.last.Seq:
		v.problem(h.Seq, "the log ends with record %d, and record %d was noted", v.last.Seq, h.Seq)
	case h.Seq == v.begins.Seq && h.Hash == v.begins.Hash:
	case h.Seq < v.report.First:
		v.report.Notes = append(v.report.Notes, Problem{Seq: h.Seq, Text: fmt.Sprintf("record %d, which was noted, is not among those that were checked", h.Seq)})
	default:
		v.problem(h.Seq, "record %d, which was noted, is missing", h.Seq)
	}
}
