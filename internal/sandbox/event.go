package sandbox

import (
	"encoding/json"
	"time"
)

// EventKind names what happened to a sandbox.
type EventKind string

// The kinds of events.
const (
	EventCreated      EventKind = "created"
	EventUpdated      EventKind = "updated" // its timeout was changed
	EventPaused       EventKind = "paused"
	EventResumed      EventKind = "resumed"
	EventCheckpointed EventKind = "checkpointed" // a snapshot was taken or it was forked
	EventEnded        EventKind = "ended"
)

// Event says that something happened to a sandbox.
type Event struct {
	Kind EventKind
	Time time.Time
	Info Info // after it
	// Detail in words: why it was paused or ended, what was made of it.
	Detail string
	// Data is what events that others than the core tell of have besides, as JSON.
	Data json.RawMessage
}

// emit tells of an event. No lock is held.
func (m *Manager) emit(kind EventKind, s *sandbox, detail string) {
	if m.config.OnEvent != nil {
		m.config.OnEvent(Event{Kind: kind, Time: time.Now().UTC(), Info: s.snapshotInfo(), Detail: detail})
	}
}
