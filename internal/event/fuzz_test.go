package event

import (
	"net/http"
	"testing"
	"time"
)

func FuzzRetryAfter(f *testing.F) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, seed := range []string{"", "0", "120", "-1", "1e9", "99999999999999999999", "Wed, 04 Mar 2026 05:07:07 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		wait := retryAfter(http.Header{"Retry-After": {value}}, now)
		if wait < 0 || wait > maxRetryAfter {
			t.Fatalf("%q: %s", value, wait)
		}
	})
}
