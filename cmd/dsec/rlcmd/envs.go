package rlcmd

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/rl/env"
	"github.com/dsec-io/dsec/rl/envs"
)

// listed is what is told of an environment.
type listed struct {
	Name         string `json:"name"`
	Agents       int    `json:"agents"`
	Observation  []int  `json:"observation"` // shape
	Of           string `json:"of"`          // its elements' type
	Choices      []int  `json:"choices"`     // how many there are, for each choice of an action
	UsualPolicy  string `json:"usual_policy"`
	UsualSteps   int64  `json:"usual_steps"`
	usualNetwork []int
}

func envsCommand(h Host) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "envs",
		Short:   "List the environments",
		Example: "  dsec rl envs\n  dsec rl envs --json | jq -r '.[].name'",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := list()
			if err != nil {
				return err
			}
			if asJSON {
				return wrote(encode(h, all))
			}
			t := tabwriter.NewWriter(h.Stdout, 0, 0, 3, ' ', 0)
			fmt.Fprintln(t, "ENV\tAGENTS\tOBSERVATION\tCHOICES\tUSUAL POLICY\tUSUAL STEPS")
			for _, l := range all {
				fmt.Fprintf(t, "%s\t%d\t%s %s\t%s\t%s %s\t%d\n", l.Name, l.Agents, times(l.Observation), l.Of, times(l.Choices),
					l.UsualPolicy, times(l.usualNetwork), l.UsualSteps)
			}
			return wrote(t.Flush())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

// list asks one of each for what it is.
func list() ([]listed, error) {
	var all []listed
	for _, name := range envs.Names() {
		spec, err := specOf(name)
		if err != nil {
			return nil, err
		}
		cfg := usual(name)
		l := listed{
			Name: name, Agents: spec.Agents, Observation: spec.Obs.Shape, Of: spec.Obs.DType.String(), Choices: spec.Act.Choices,
			UsualPolicy: policyMLP, UsualSteps: cfg.Steps, usualNetwork: cfg.Net.Hidden,
		}
		if cfg.Net.LSTM > 0 {
			l.UsualPolicy = policyLSTM
		}
		all = append(all, l)
	}
	return all, nil
}

func specOf(name string) (env.Spec, error) {
	maker, err := envs.Maker(name)
	if err != nil {
		return env.Spec{}, err
	}
	b, err := maker(1)
	if err != nil {
		return env.Spec{}, err
	}
	return b.Spec(), b.Close()
}

func times(n []int) string {
	words := make([]string, len(n))
	for i, v := range n {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, "x")
}

func encode(h Host, v any) error {
	e := json.NewEncoder(h.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
