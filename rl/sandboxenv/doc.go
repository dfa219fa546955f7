// Package sandboxenv makes environments of terminal tasks in real sandboxes, which it reaches through libdsec alone.
//
//	pool, err := sandboxenv.NewPool(client, api.Spec{Image: "busybox"}, 16)
//	maker := sandboxenv.Maker(pool, sandboxenv.Orders{}, sandboxenv.Config{})
//	result, err := train.Run(ctx, cfg, maker, train.Hooks{})
//
// A step runs the commands of all rows at once, each in its own sandbox, over the client's one Aether connection: a
// step takes about as long as its slowest command, not as all of them. What a command earned is for a second one to
// say, the verifier.
//
// Each episode has a sandbox of its own, made afresh: the pool keeps some warm, so that an episode rarely waits for one,
// and stops those that are used up behind the learner's back. (A fork of a sandbox that is set up would do as well and
// cost less; DSec has no fork yet.)
//
// What is the agent's doing is data: a command that fails, isn't found, or runs into the time-out of a step, which kills
// its whole tree. What is DSec's is never a reward: where a sandbox, its aether or the connection was lost, or the
// verifier came to no end, the row's mask is 0, its episode has broken off, and the next one begins in another sandbox.
// An error of the whole batch is only what no row gets over.
//
// What happens in a sandbox isn't a function of the seed alone, as it is in rl/envs: time-outs and failures come from the
// machine. A task that prints the same for the same commands gives the same episodes as long as none of that happens.
package sandboxenv

import (
	"errors"
	"fmt"
	"time"

	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/rl/env"
)

// Task is what there is to do. It's shared by all rows.
type Task interface {
	// Spec has one agent, and as many choices as there are commands to choose from.
	Spec() env.Spec
	// Begin starts an episode; the same seed is the same episode.
	Begin(seed uint64) Episode
}

// Episode is a task being done in one sandbox. Its methods are called one after another.
type Episode interface {
	// Setup prepares a fresh sandbox. It has to exit with 0.
	Setup() libdsec.Cmd
	// Act is the command of an action.
	Act(choices []int32) libdsec.Cmd
	// Verify is the command that judges what the last Act has done; nil: the result of Act itself is enough.
	Verify() *libdsec.Cmd
	// Judge says what the results came to; verified is nil where there was no verifier.
	Judge(acted, verified *libdsec.Result) Verdict
	// Observe writes the whole observation, after Setup or after Judge, from the last command's result.
	Observe(last *libdsec.Result, obs []float32)
}

// Verdict is what a step came to.
type Verdict struct {
	Reward float32
	Over   bool // the task is over, well or badly
}

// Config says how the steps are made. Zero values are defaults.
type Config struct {
	MaxSteps int           // an episode is truncated after so many; 0: never
	Timeout  time.Duration // of each command; 0 is 10 s
	// Grace is how long after its Timeout a command's end may be told; then it's taken for lost. 0 is 10 s.
	Grace time.Duration
	// Tries is how many sandboxes in a row may fail a row before that's an error of the batch; 0 is 5.
	Tries int
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.Tries == 0 {
		c.Tries = 5
	}
	return c
}

// Validate reports every fault.
func (c Config) Validate() error {
	if min(c.MaxSteps, c.Tries) < 0 || min(c.Timeout, c.Grace) < 0 {
		return fmt.Errorf("sandbox environment: %d steps, time-out %v and %v, %d tries", c.MaxSteps, c.Timeout, c.Grace, c.Tries)
	}
	return nil
}

// Cost is what has been spent.
type Cost struct {
	Steps    int64         // of all rows, masked ones too
	Masked   int64         // of them: failures of DSec
	TimedOut int64         // commands that were killed for taking too long
	Commands int64         // actions, verifiers and set-ups
	Episodes int64         // that have begun: sandboxes used
	Running  time.Duration // what Commands took until their end was told, added up
	Waiting  time.Duration // for fresh sandboxes, added up
}

func (c *Cost) add(o Cost) {
	c.Steps += o.Steps
	c.Masked += o.Masked
	c.TimedOut += o.TimedOut
	c.Commands += o.Commands
	c.Episodes += o.Episodes
	c.Running += o.Running
	c.Waiting += o.Waiting
}

var errClosed = errors.New("sandbox environment: the pool is closed")
