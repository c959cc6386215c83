package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestMatchesAreRead(t *testing.T) {
	for _, test := range []struct {
		texts []string
		want  policy.Match
	}{
		{[]string{"host=a.example,host=b.example,port=443"}, policy.Match{Host: []string{"a.example", "b.example"}, Port: []string{"443"}}},
		{[]string{"host=a.example", "port=8000-8099"}, policy.Match{Host: []string{"a.example"}, Port: []string{"8000-8099"}}},
		{[]string{"command=a=b"}, policy.Match{Command: []string{"a=b"}}},
		{[]string{"longer-than=4h"}, policy.Match{LongerThan: "4h"}},
		{[]string{"longerThan=4h"}, policy.Match{LongerThan: "4h"}},
		{[]string{"cpus-over=8,memory-over=16GiB"}, policy.Match{CPUsOver: 8, MemoryOver: "16GiB"}},
		{[]string{`{"host": ["a.example"], "port": [443, "8000-8099"]}`}, policy.Match{Host: []string{"a.example"}, Port: []string{"443", "8000-8099"}}},
		{[]string{` {"host": "a.example", "port": 443}`}, policy.Match{Host: []string{"a.example"}, Port: []string{"443"}}},
		{[]string{`{"longer-than": "4h"}`}, policy.Match{LongerThan: "4h"}},
		{[]string{`{"cpusOver": 8, "memoryOver": "16GiB"}`}, policy.Match{CPUsOver: 8, MemoryOver: "16GiB"}},
		{[]string{`{"command": ["echo a, b"]}`}, policy.Match{Command: []string{"echo a, b"}}},
	} {
		m, err := parseMatch(test.texts)
		require.NoError(t, err, test.texts)
		require.Equal(t, test.want, *m, test.texts)
	}
}

func TestMatchesThatAreWrong(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"hots=a.example", `no field "hots"`},
		{"host", "use FIELD=VALUE"},
		{"host=", "use FIELD=VALUE"},
		{"longer-than=4h,longer-than=5h", "one value"},
		{"longer-than=4h,longerThan=5h", "twice"},
		{"cpus-over=many", "not a number"},
		{`{"host": {"a": 1}}`, "a text or a number"},
		{`{"host": null}`, "a text or a number"},
		{`{"longer-than": []}`, "one value"},
		{`{"cpus-over": 1.5}`, "not a number"},
		{`{"host": "a"} {"port": 1}`, "after the JSON"},
		{`{"host": `, "unexpected EOF"},
	} {
		_, err := parseMatch([]string{test.text})
		require.ErrorContains(t, err, test.want, test.text)
	}
}
