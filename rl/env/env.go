package env

import (
	"context"
	"errors"
	"fmt"
)

// Spec describes one kind of environment.
type Spec struct {
	Name string
	// Agents is how many rows each environment has: 1, or as many as agents act at once. The rows of an environment
	// are neighbours.
	Agents int
	Obs    Observations
	Act    Actions
	// Masked says that Buffers.ActionMasks tells which choices are open.
	Masked bool
}

// NewSpec lays out the two spaces.
func NewSpec(name string, agents int, obs, act Space) (Spec, error) {
	if agents < 1 {
		return Spec{}, fmt.Errorf("environment %s: %d agents", name, agents)
	}
	o, err := FlatObservations(obs)
	if err != nil {
		return Spec{}, fmt.Errorf("environment %s: %w", name, err)
	}
	a, err := FlatActions(act)
	if err != nil {
		return Spec{}, fmt.Errorf("environment %s: %w", name, err)
	}
	return Spec{Name: name, Agents: agents, Obs: o, Act: a}, nil
}

// ErrEpisodeOver is what an Env's Step returns after the episode has ended and before it's reset.
var ErrEpisodeOver = errors.New("step after the end of the episode: reset first")

// Batch is a number of environments of one kind that are stepped together, in place.
//
// Life: Bind once, Reset, any number of Step and Reset, Close. An error of Reset or Step is of the whole batch; what
// went wrong with one environment only (its sandbox was lost) is told by a Mask of 0 on its rows.
type Batch interface {
	Spec() Spec
	// Bind gives the buffers to work on: a whole number of environments. They belong to the caller, who between calls
	// reads anything and writes Actions and Numbers only: an environment may count on Obs being as it left it.
	Bind(b *Buffers) error
	// Reset starts an episode in every environment, each from its own seed; seeds has one for each environment. It
	// writes observations and masks, and zeroes rewards and flags.
	Reset(ctx context.Context, seeds []uint64) error
	// Step takes the actions and writes all else. Where a row is done (Terminals or Truncations is 1), Final has the
	// last observation of its episode, and Obs the first of the next. Masks is about the step just made: 0 where it
	// was none of the row's agent. A row of Masks 0 that isn't done after one that isn't done either is an episode
	// that broke off there; nothing may be learned across it.
	Step(ctx context.Context) error
	Close() error
}

// Env is one environment that doesn't reset itself. Its buffers have Spec().Agents rows.
type Env interface {
	Spec() Spec
	// Reset starts an episode. The same seed gives the same episode for the same actions, whatever came before. It
	// writes all of Obs, and of ActionMasks where the Spec has them, and nothing else.
	Reset(ctx context.Context, seed uint64, b *Buffers) error
	// Step takes the actions and writes Obs, Rewards, and the flags that are 1; the caller has called
	// Buffers.BeginStep. A row whose agent took no part any more gets Masks 0. The episode is over when each row is
	// done or has Masks 0; then Obs is the final observation, and another Step returns ErrEpisodeOver.
	Step(ctx context.Context, b *Buffers) error
	Close() error
}

// Stats sums up the episodes that have ended.
type Stats struct {
	Episodes int64 // rows whose episode ended: one per agent
	Return   float64
	Length   float64
	Score    float64 // what the environment calls success; in [0, 1] where there's a best
}

// Add adds the episodes of other.
func (s *Stats) Add(other Stats) {
	s.Episodes += other.Episodes
	s.Return += other.Return
	s.Length += other.Length
	s.Score += other.Score
}

// Mean returns the averages over the episodes: all zero where there were none.
func (s Stats) Mean() Stats {
	if s.Episodes == 0 {
		return Stats{}
	}
	n := float64(s.Episodes)
	return Stats{s.Episodes, s.Return / n, s.Length / n, s.Score / n}
}

// StatsTaker is a Batch (or a vector of them) that counts its episodes. TakeStats returns what was counted since the
// last call.
type StatsTaker interface{ TakeStats() Stats }

// Informer is an Env that has more to say about the last step of an agent.
type Informer interface {
	Info(agent int) map[string]float64
}
