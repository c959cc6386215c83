package certs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCertificateIsMadeAnewBeforeItEnds(t *testing.T) {
	dir := t.TempDir()
	start := time.Now()
	require.NoError(t, makeAuthority(dir, Domain{Name: "sbx.localhost"}, start))
	a, err := OpenAuthority(dir)
	require.NoError(t, err)
	first, err := a.certificate(start)
	require.NoError(t, err)
	later, err := a.certificate(start.Add(leafLife - renewAhead - time.Hour))
	require.NoError(t, err)
	require.Same(t, first, later)
	later, err = a.certificate(start.Add(leafLife - renewAhead + time.Hour))
	require.NoError(t, err)
	require.NotSame(t, first, later)
	require.True(t, later.Leaf.NotAfter.After(first.Leaf.NotAfter))

	last, err := a.certificate(a.cert.NotAfter.Add(-time.Hour))
	require.NoError(t, err)
	require.False(t, last.Leaf.NotAfter.After(a.cert.NotAfter), "no certificate outlives its authority")
	_, err = a.certificate(a.cert.NotAfter.Add(time.Hour))
	require.ErrorContains(t, err, "--replace")
}
