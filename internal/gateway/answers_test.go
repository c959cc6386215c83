package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

func answered(t *testing.T, name string, kind uint16, rcode int, records []string, authority ...string) (answerKey, *dns.Msg) {
	t.Helper()
	query := new(dns.Msg)
	query.SetQuestion(name, kind)
	answer := new(dns.Msg)
	answer.SetRcode(query, rcode)
	for _, text := range records {
		record, err := dns.NewRR(text)
		require.NoError(t, err)
		answer.Answer = append(answer.Answer, record)
	}
	for _, text := range authority {
		record, err := dns.NewRR(text)
		require.NoError(t, err)
		answer.Ns = append(answer.Ns, record)
	}
	return answerKey{name: name, kind: kind}, answer
}

func TestAnswersAreKeptForAsLongAsTheySay(t *testing.T) {
	const soa = "example. 300 SOA ns.example. admin.example. 1 1 1 1 "
	for _, row := range []struct {
		why       string
		kind      uint16
		rcode     int
		records   []string
		authority string
		want      time.Duration
	}{
		{"as the record says", dns.TypeA, dns.RcodeSuccess, []string{"a.example. 7 A 198.51.100.1"}, "", 7 * time.Second},
		{"as the shortest says", dns.TypeA, dns.RcodeSuccess, []string{"a.example. 3 CNAME b.example.", "b.example. 30 A 198.51.100.1"}, "", 3 * time.Second},
		{"not for long", dns.TypeA, dns.RcodeSuccess, []string{"a.example. 86400 A 198.51.100.1"}, "", maxAnswerAge},
		{"it says not to", dns.TypeA, dns.RcodeSuccess, []string{"a.example. 0 A 198.51.100.1"}, "", 0},
		{"no such name, as the zone says", dns.TypeA, dns.RcodeNameError, nil, soa + "5", 5 * time.Second},
		{"no such name, not for long", dns.TypeA, dns.RcodeNameError, nil, soa + "3600", maxAbsenceAge},
		{"no such record", dns.TypeA, dns.RcodeSuccess, []string{"a.example. 60 CNAME b.example."}, soa + "5", 5 * time.Second},
		{"nothing, and nobody says for how long", dns.TypeA, dns.RcodeNameError, nil, "", 0},
		{"a failure", dns.TypeA, dns.RcodeServerFailure, nil, soa + "5", 0},
		{"too long", dns.TypeTXT, dns.RcodeSuccess, longTexts(), "", 0},
	} {
		var authority []string
		if row.authority != "" {
			authority = []string{row.authority}
		}
		key, answer := answered(t, "a.example.", row.kind, row.rcode, row.records, authority...)
		c, now := newAnswerCache(), time.Now()
		c.add(key, answer, now)
		if row.want == 0 {
			require.Nil(t, c.find(key, now), row.why)
			require.Empty(t, c.kept, row.why)
			continue
		}
		require.NotNil(t, c.find(key, now.Add(row.want-1)), row.why)
		require.Nil(t, c.find(key, now.Add(row.want)), row.why)
		require.Empty(t, c.kept, "%s: it is forgotten", row.why)
	}
}

func longTexts() (records []string) {
	for i := range 100 {
		records = append(records, fmt.Sprintf(`a.example. 60 TXT "a text of some length, %d"`, i))
	}
	return records
}

func TestKeptAnswersSayHowLongTheyStillHold(t *testing.T) {
	key, answer := answered(t, "a.example.", dns.TypeA, dns.RcodeSuccess, []string{"a.example. 30 A 198.51.100.1"})
	c, now := newAnswerCache(), time.Now()
	c.add(key, answer, now)
	first := c.find(key, now.Add(12*time.Second))
	require.EqualValues(t, 18, first.Answer[0].Header().Ttl)
	first.Answer[0].(*dns.A).A[0] = 10
	require.Equal(t, "198.51.100.1", c.find(key, now).Answer[0].(*dns.A).A.String(), "each has a message of its own")
	require.Nil(t, c.find(answerKey{name: key.name, kind: dns.TypeTXT}, now))
	require.Nil(t, c.find(answerKey{name: key.name, kind: dns.TypeA, dnssec: true}, now))
}

func TestFewAnswersAreKept(t *testing.T) {
	c, now := newAnswerCache(), time.Now()
	var last answerKey
	for i := range 10 * maxAnswers {
		name := fmt.Sprintf("n%d.example.", i)
		key, answer := answered(t, name, dns.TypeA, dns.RcodeSuccess, []string{name + " 60 A 198.51.100.1"})
		c.add(key, answer, now)
		last = key
		require.LessOrEqual(t, len(c.kept), maxAnswers)
	}
	require.NotNil(t, c.find(last, now))
}

func TestLongAnswersAreKeptInBounds(t *testing.T) {
	c, now := newAnswerCache(), time.Now()
	var last answerKey
	for i := range maxAnswers {
		name := fmt.Sprintf("n%d.example.", i%100) // some come again
		var records []string
		for _, record := range longTexts()[:40] {
			records = append(records, strings.Replace(record, "a.example.", name, 1))
		}
		key, answer := answered(t, name, dns.TypeTXT, dns.RcodeSuccess, records)
		c.add(key, answer, now)
		last = key
		kept := 0
		for key, answer := range c.kept {
			kept += len(answer.packed) + len(key.name)
		}
		require.LessOrEqual(t, kept, maxAnswerSum)
		require.Equal(t, kept, c.sum)
	}
	require.NotNil(t, c.find(last, now))
	require.Greater(t, len(c.kept), 10)
}
