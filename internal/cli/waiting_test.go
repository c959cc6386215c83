package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestWhoWaitsIsToldOnce(t *testing.T) {
	var out strings.Builder
	w := newWaiting(config{Data: "/srv/it's"}, "k1")
	w.to = &out
	hold := func(id, sandbox, key string) approval.Hold {
		return approval.Hold{
			ID: id, State: approval.Pending, CreatedAt: w.began.Add(time.Second), Deadline: time.Now().Add(time.Minute),
			Subject: policy.Subject{SandboxID: sandbox, KeyID: key}, Action: policy.Action{Kind: policy.Egress, Host: id + ".example", Port: 443},
		}
	}
	old := hold("old", "", "k1")
	old.CreatedAt = w.began.Add(-time.Minute)
	over := hold("over", "i1", "k1")
	over.State = approval.Expired
	w.see(hold("making", "", "k1"))
	w.see(hold("of-another-key", "", "k2"))
	w.see(old)
	w.see(hold("early", "i1", "k1"))
	w.see(hold("not-mine", "i2", "k1"))
	w.is("i1")
	w.see(hold("later", "i1", "k1"))
	w.see(hold("later", "i1", "k1"))
	w.see(hold("another-is-made", "", "k1"))
	w.see(over)
	for _, told := range []string{"making", "early", "later"} {
		require.Equal(t, 1, strings.Count(out.String(), "approve "+told+` --data '/srv/it'\''s'`), out.String())
		require.Contains(t, out.String(), told+".example")
	}
	require.Equal(t, 3, strings.Count(out.String(), "waits for a person"), "no others are of this command: %s", out.String())
}
