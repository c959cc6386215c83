package sandbox_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func TestChangesOfNetworkOptionsDoNotUndoEachOther(t *testing.T) {
	w := sandboxtest.New(t)
	comesIn := sandbox.NetworkOptions{PrivateTraffic: true, MaskRequestHost: "localhost", HTTPSPorts: []uint16{8443}}
	info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, KeyID: "k", Timeout: time.Minute, Network: comesIn})
	require.NoError(t, err)

	const times = 50
	var both sync.WaitGroup
	for _, change := range []func(*sandbox.NetworkOptions){
		func(o *sandbox.NetworkOptions) { o.Connections++ },
		func(o *sandbox.NetworkOptions) { o.BandwidthOut++ },
	} {
		both.Go(func() {
			for range times {
				if _, err := w.Manager.SetNetwork(t.Context(), info.ID, change); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	info, err = w.Manager.SetNetwork(t.Context(), info.ID, func(o *sandbox.NetworkOptions) {
		o.PrivateTraffic, o.MaskRequestHost, o.HTTPSPorts, o.DenyInternet = false, "", nil, true
	})
	require.NoError(t, err)
	want := comesIn
	want.Connections, want.BandwidthOut, want.DenyInternet = times, times, true
	require.Equal(t, want, info.Network, "what comes in is said at create only")
}
