package sandbox

import "context"

// The steps that Config.OnStep is told of, as parts of a start, a resume, a pause
// or a copy.
const (
	stepTurn    = "turn"    // waiting, because enough others start at this moment
	stepNetwork = "network" // the gateway is made
	stepEngine  = "engine"  // processes are started or restored
	stepAgent   = "agent"   // the agent is told who it is
	stepSave    = "save"    // the state is written; the sandbox stands still
)

// step does one and tells who wants to know.
func (m *Manager) step(ctx context.Context, name string, do func(ctx context.Context) error) error {
	if m.config.OnStep == nil {
		return do(ctx)
	}
	ctx, end := m.config.OnStep(ctx, name)
	err := do(ctx)
	end(err)
	return err
}
