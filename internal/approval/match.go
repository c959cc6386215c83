package approval

import (
	"reflect"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// checkMatch allows a match that fits an action and says something of it.
func checkMatch(m policy.Match, a policy.Action) error {
	match, err := m.Compile(a.Kind)
	if err != nil {
		return invalid("the match: %s", err)
	}
	if reflect.ValueOf(m).IsZero() {
		return invalid("the match says nothing, so it would be about every action of the kind %s", a.Kind)
	}
	if match.Fits(a) != policy.Yes {
		return invalid("the match does not fit the action that waits: %s", a)
	}
	return nil
}
