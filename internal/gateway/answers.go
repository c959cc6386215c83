package gateway

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// What is kept of answers of name servers, for each network.
const (
	maxAnswers    = 128
	maxAnswerSize = 2 << 10          // bytes of one, packed, with its name; a longer one is not kept
	maxAnswerSum  = 64 << 10         // bytes of all: it is the server's memory
	maxAnswerAge  = 60 * time.Second // whatever its records say
	maxAbsenceAge = 10 * time.Second // that there is no such name, or no such record
)

// answerCache keeps answers of name servers for as long as their records say. It is
// below every judgement: who asks it has asked the policy whether the name may be asked
// for now, and judges the addresses that it returns.
type answerCache struct {
	mu   sync.Mutex
	kept map[answerKey]keptAnswer
	sum  int // bytes of all kept
}

type answerKey struct {
	name   string
	kind   uint16 // of records
	dnssec bool
}

// keptAnswer is packed: that is the smallest form, and each reader makes a message of
// its own of it.
type keptAnswer struct {
	packed []byte
	since  time.Time
	until  time.Time
}

func newAnswerCache() *answerCache { return &answerCache{kept: map[answerKey]keptAnswer{}} }

// find returns nil when there is no answer, or none any more. Its records say how long
// they hold from now on.
func (c *answerCache) find(key answerKey, now time.Time) *dns.Msg {
	c.mu.Lock()
	kept, ok := c.kept[key]
	if ok && !now.Before(kept.until) {
		c.drop(key)
		ok = false
	}
	c.mu.Unlock()
	if !ok {
		return nil
	}
	answer := new(dns.Msg)
	if answer.Unpack(kept.packed) != nil {
		return nil
	}
	age := uint32(now.Sub(kept.since) / time.Second)
	for _, records := range [][]dns.RR{answer.Answer, answer.Ns} {
		for _, record := range records {
			header := record.Header()
			header.Ttl -= min(age, header.Ttl)
		}
	}
	return answer
}

func (c *answerCache) add(key answerKey, answer *dns.Msg, now time.Time) {
	age := holdsFor(key, answer)
	if age <= 0 {
		return
	}
	// Records beside the answer are for nobody here.
	plain := &dns.Msg{MsgHdr: answer.MsgHdr, Compress: true, Question: answer.Question, Answer: answer.Answer, Ns: answer.Ns}
	packed, err := plain.Pack()
	size := len(packed) + len(key.name)
	if err != nil || size > maxAnswerSize {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(key)
	if !c.hasRoom(size) {
		c.makeRoom(now, size)
	}
	c.sum += size
	c.kept[key] = keptAnswer{packed: packed, since: now, until: now.Add(age)}
}

func (c *answerCache) hasRoom(size int) bool {
	return len(c.kept) < maxAnswers && c.sum+size <= maxAnswerSum
}

// makeRoom forgets what does not hold any more, or else any.
func (c *answerCache) makeRoom(now time.Time, size int) {
	for key, kept := range c.kept {
		if !now.Before(kept.until) {
			c.drop(key)
		}
	}
	for key := range c.kept {
		if c.hasRoom(size) {
			return
		}
		c.drop(key)
	}
}

func (c *answerCache) drop(key answerKey) {
	if kept, known := c.kept[key]; known {
		c.sum -= len(kept.packed) + len(key.name)
		delete(c.kept, key)
	}
}

// holdsFor is how long an answer may be kept: no longer than any of its records says,
// and that there is nothing as long as the zone says (RFC 2308, 5).
func holdsFor(key answerKey, answer *dns.Msg) time.Duration {
	if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return 0
	}
	age, found := maxAnswerAge, false
	for _, record := range answer.Answer {
		age = min(age, seconds(record.Header().Ttl))
		found = found || record.Header().Rrtype == key.kind
	}
	if found {
		return age
	}
	for _, record := range answer.Ns {
		if zone, ok := record.(*dns.SOA); ok {
			return min(age, maxAbsenceAge, seconds(min(zone.Hdr.Ttl, zone.Minttl)))
		}
	}
	return 0
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

// ask asks the name servers, unless they have answered before.
func (n *Network) ask(ctx context.Context, question dns.Question, dnssec bool) (*dns.Msg, error) {
	key := answerKey{strings.ToLower(question.Name), question.Qtype, dnssec}
	if answer := n.answers.find(key, time.Now()); answer != nil {
		return answer, nil
	}
	answer, err := n.resolvers.ask(ctx, question, dnssec)
	if err != nil {
		return nil, err
	}
	n.answers.add(key, answer, time.Now())
	return answer, nil
}
