package audit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
)

// A row is who does something 12,000 times at one moment, and how many records of it are
// written: what fills the log pushes out what is older.
func TestNobodyButHoldersOfKeysFillsTheLog(t *testing.T) {
	const times = 12_000
	for _, tt := range []struct {
		actor string
		kind  audit.Kind
		want  int
	}{
		{"key:k", audit.API, times},
		{"owner", audit.API, times},
		{"server", audit.Lifecycle, times},
		{audit.Nobody, audit.API, 1001},
		{audit.Visitor, audit.Network, 1001},
		{"sandbox:s", audit.Network, 1001},
		{"sandbox:s", audit.Exec, 1001},
		{"token:s", audit.File, 1001}, // code inside can read the token, and hand it out
		{"token:s", audit.Exec, 10_001},
		{"volume:v", audit.API, 1001},
		{"volume:v", audit.File, 1001},
	} {
		t.Run(fmt.Sprint(tt.actor, " ", tt.kind), func(t *testing.T) {
			dir := folder(t)
			l := open(t, dir, audit.Options{})
			now := time.Now()
			for range times {
				l.Append(audit.Record{Time: now, Kind: tt.kind, Actor: tt.actor, What: "it"})
			}
			require.NoError(t, l.Close())
			all := records(t, dir, audit.Filter{Actor: tt.actor, Kinds: []audit.Kind{tt.kind}})
			require.Equal(t, tt.want, len(all))
			stand := 0
			for _, r := range all {
				stand += max(1, r.Count)
			}
			require.Equal(t, times, stand, "what was folded is counted")
		})
	}
}
