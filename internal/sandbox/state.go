package sandbox

import "fmt"

// State is where a sandbox is in its life.
type State string

// The states. Ended and Failed are final; the record's reason says why.
const (
	Starting State = "starting" // being made; not seen by anybody else
	Running  State = "running"
	Pausing  State = "pausing" // being saved; takes no new requests
	Paused   State = "paused"
	Resuming State = "resuming" // being brought back
	Ending   State = "ending"   // being taken down; refuses traffic
	Ended    State = "ended"
	Failed   State = "failed" // never ran
)

// transitions is the whole life of a sandbox.
var transitions = map[State][]State{
	Starting: {Running, Failed},
	Running:  {Pausing, Ending},
	Pausing:  {Running, Paused, Ending},
	Paused:   {Resuming, Ending},
	Resuming: {Running, Paused, Ending},
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
