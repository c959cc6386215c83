package process

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

func TestSlowSubscriberIsDroppedAndOthersGoOn(t *testing.T) {
	p := newProcess(nil, &spawn.Process{PID: 1}, &pb.StartRequest{}, &files{}, 20*time.Millisecond)
	cut := make(chan struct{})
	slow, err := p.subscribe(func() { close(cut) })
	require.NoError(t, err)
	quick, err := p.subscribe(func() {})
	require.NoError(t, err)
	const events = 4 * queueLength
	read := make(chan int)
	go func() {
		n := 0
		for range events {
			<-quick.events
			n++
		}
		read <- n
	}()
	for range events {
		p.publish(stdoutEvent([]byte("x")))
	}
	require.Equal(t, events, <-read)
	<-slow.dropped
	<-cut
	require.Len(t, slow.events, queueLength)
}

func TestSubscribersAreLimited(t *testing.T) {
	p := newProcess(nil, &spawn.Process{PID: 1}, &pb.StartRequest{}, &files{}, time.Second)
	var last *subscriber
	for range subscriberLimit {
		sub, err := p.subscribe(func() {})
		require.NoError(t, err)
		last = sub
	}
	_, err := p.subscribe(func() {})
	require.Error(t, err)
	p.unsubscribe(last)
	_, err = p.subscribe(func() {})
	require.NoError(t, err)
}
