package sandbox

import "fmt"

// State is where a sandbox is in its life.
type State string

// The states. Ended and Failed are final; the record's reason says why.
const (
	Starting State = "starting" // being made; not seen by anybody else
	Running  State = "running"
	Ending   State = "ending" // being taken down; refuses traffic
	Ended    State = "ended"
	Failed   State = "failed" // never ran
)

// transitions is the whole life of a sandbox.
var transitions = map[State][]State{
	Starting: {Running, Failed},
	Running:  {Ending},
	Ending:   {Ended},
}

// checkTransition returns an error when a sandbox in state from may not become to.
func checkTransition(from, to State) error {
	for _, allowed := range transitions[from] {
		if allowed == to {
			return nil
		}
	}
	return fmt.Errorf("a sandbox that is %s cannot become %s", from, to)
}
