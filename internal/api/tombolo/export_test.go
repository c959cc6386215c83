package tombolo

import "time"

// SetHeartbeat makes streams speak more often than people need.
func (a *API) SetHeartbeat(d time.Duration) { a.heartbeat = d }

// FeedLength is how many changes a stream can catch up with.
const FeedLength = feedLength

// MaxStreamsOfKey is how many streams a key may have.
const MaxStreamsOfKey = maxStreamsOfKey

// Routes are the patterns of all routes, without the prefix.
func Routes() (patterns []string) {
	for _, r := range (&API{}).table() {
		patterns = append(patterns, r.method+" "+r.path)
	}
	return patterns
}
