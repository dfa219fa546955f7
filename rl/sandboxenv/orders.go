package sandboxenv

import (
	"fmt"
	"strings"

	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/rl/env"
)

// Orders is a text task to see learning with: the terminal gives an order in words, and the agent has to choose the
// command that does it. The verifier looks at what became of the files, and shows the next order. Doing as told is a
// reward of 1; chance does it once in six times.
//
// Observation: which words the terminal shows, of a small vocabulary. Choices: six commands.
type Orders struct {
	Length int // orders of an episode; 0 is 8
}

// order is one kind of work. Its words are all that tells it from others; several have some in common.
type order struct {
	words   string
	command string
	check   string // exits with 0 where the work was done, and nothing else
}

// orders are the kinds, in the order of the choices. Each begins in a folder with the files a and b, of the text "x".
func orders() []order {
	const untouched = `[ -f a ] && [ "$(cat a)" = x ] && [ "$(cat b)" = x ]`
	return []order{
		{"make a new file", "touch new", untouched + " && [ -f new ] && [ ! -s new ]"},
		{"make a new folder", "mkdir new", untouched + " && [ -d new ]"},
		{"remove the old file", "rm a", "[ ! -e a ] && [ -f b ] && [ ! -e new ]"},
		{"rename the old file", "mv a new", `[ ! -e a ] && [ -f b ] && [ "$(cat new)" = x ]`},
		{"copy the old file", "cp a new", untouched + ` && [ "$(cat new)" = x ]`},
		{"empty the old file", ": > a", `[ -f a ] && [ ! -s a ] && [ -f b ] && [ ! -e new ]`},
	}
}

// vocabulary are the words that a terminal may show, in the order of the observation.
func vocabulary() []string {
	return []string{"make", "remove", "rename", "copy", "empty", "new", "old", "file", "folder", "a", "the", "done", "wrong"}
}

// Spec implements [Task].
func (Orders) Spec() env.Spec {
	spec, err := env.NewSpec("orders", 1, env.Reals(0, 1, len(vocabulary())), env.Discrete{N: len(orders())})
	if err != nil {
		panic(err) // it's constant
	}
	return spec
}

// Begin implements [Task].
func (o Orders) Begin(seed uint64) Episode {
	left := o.Length
	if left == 0 {
		left = 8
	}
	e := &ordersEpisode{rnd: env.NewRand(seed), left: left, all: orders()}
	e.now = e.rnd.IntN(len(e.all))
	return e
}

// ordersEpisode gives orders one after another.
type ordersEpisode struct {
	all  []order
	rnd  env.Rand
	now  int // the order that is to be done
	left int
}

// again is the folder as each order finds it, under the words of the order.
func (e *ordersEpisode) again(next int) string {
	return fmt.Sprintf("rm -rf /tmp/work && mkdir /tmp/work && cd /tmp/work && echo x > a && echo x > b && echo '%s'", e.all[next].words)
}

// Setup implements [Episode].
func (e *ordersEpisode) Setup() libdsec.Cmd { return libdsec.Cmd{Shell: e.again(e.now)} }

// Act implements [Episode].
func (e *ordersEpisode) Act(choices []int32) libdsec.Cmd {
	return libdsec.Cmd{Shell: e.all[choices[0]].command, Cwd: "/tmp/work"}
}

// Verify implements [Episode].
func (e *ordersEpisode) Verify() *libdsec.Cmd {
	next := e.rnd.IntN(len(e.all))
	script := fmt.Sprintf("cd /tmp/work && if %s; then echo done; else echo wrong; fi; %s", e.all[e.now].check, e.again(next))
	e.now = next
	return &libdsec.Cmd{Shell: script}
}

// Judge implements [Episode].
func (e *ordersEpisode) Judge(_, verified *libdsec.Result) Verdict {
	e.left--
	v := Verdict{Over: e.left == 0}
	if strings.HasPrefix(string(verified.Stdout), "done\n") {
		v.Reward = 1
	}
	return v
}

// Observe implements [Episode].
func (e *ordersEpisode) Observe(last *libdsec.Result, obs []float32) {
	shown := strings.Fields(string(last.Stdout))
	for i, word := range vocabulary() {
		obs[i] = 0
		for _, s := range shown {
			if s == word {
				obs[i] = 1
			}
		}
	}
}

var _ Task = Orders{}
