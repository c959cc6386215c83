package image

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestADownloadThatCreepsIsGivenUp(t *testing.T) {
	began := time.Now()
	p := pace{since: began}
	require.NoError(t, p.check(began.Add(paceTime-time.Second), 1), "it has time")
	require.NoError(t, p.check(began.Add(paceTime), paceBytes))
	require.NoError(t, p.check(began.Add(2*paceTime-time.Second), paceBytes+1))
	require.ErrorContains(t, p.check(began.Add(2*paceTime), 2*paceBytes-1), "too slow")
}
