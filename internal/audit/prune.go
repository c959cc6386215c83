package audit

import (
	"fmt"
	"os"
	"time"
)

// Keep says how long records are kept. A limit that is 0 is none.
type Keep struct {
	Age   time.Duration // of the newest record of a segment
	Bytes int64         // of all segments
}

const pruneEvery = time.Hour

// prune removes old segments, and first writes the record from which the chain can
// still be checked.
func (l *Log) prune() {
	if l.keep == (Keep{}) {
		return
	}
	if err := l.chain.prune(l.keep, time.Now()); err != nil {
		l.log.Error("old segments of the audit log are not removed", "error", err)
	}
}

// pruned is the detail of a record about pruning.
type pruned struct {
	Through  uint64 `json:"through"` // the last record that was removed
	Hash     string `json:"hash"`    // its hash
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"`
}

func (c *chain) prune(keep Keep, now time.Time) error {
	return c.locked(func() error {
		notes, err := c.refresh()
		if err != nil {
			return err
		}
		if err := c.writeNotes(notes); err != nil {
			return err
		}
		list, err := segments(c.dir)
		if err != nil {
			return err
		}
		old, why, err := c.outdated(list, keep, now)
		if err != nil || old == 0 {
			return err
		}
		next, err := c.keys.readFirst(list[old])
		if err != nil {
			return err
		}
		if next.Seq == 0 {
			return fmt.Errorf("the first record of %s is not right; `tombolo audit verify` says more", list[old].path)
		}
		p := pruned{Through: next.Seq - 1, Hash: next.Previous, Segments: old}
		for _, s := range list[:old] {
			p.Bytes += s.size
		}
		if err := c.writeNotes([]Record{note(whatPrune, why, p)}); err != nil {
			return err
		}
		for _, s := range list[:old] {
			if err := os.Remove(s.path); err != nil {
				return err
			}
		}
		return nil
	})
}

// outdated tells how many of the oldest segments are to go, and why the last of
// them. The one that is written to stays.
func (c *chain) outdated(list []segment, keep Keep, now time.Time) (old int, why string, err error) {
	var total int64
	for _, s := range list {
		total += s.size
	}
	for ; old < len(list)-1; old++ {
		next, err := c.keys.readFirst(list[old+1])
		if err != nil {
			return 0, "", err
		}
		aged := keep.Age > 0 && next.Seq > 0 && now.Sub(next.Time) > keep.Age
		large := keep.Bytes > 0 && total > keep.Bytes
		switch {
		case aged:
			why = fmt.Sprintf("older than %s", keep.Age)
		case large:
			why = fmt.Sprintf("more than %d bytes", keep.Bytes)
		default:
			return old, why, nil
		}
		total -= list[old].size
	}
	return old, why, nil
}
