package flame

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Stack is what was found running, the outermost function first, and how often or how long.
type Stack struct {
	Frames []string
	Value  int64
}

// node is a box of the graph.
type node struct {
	name  string
	value int64 // its own and that of all above it
	above map[string]*node
}

func (n *node) child(name string) *node {
	c := n.above[name]
	if c == nil {
		c = &node{name: name, above: map[string]*node{}}
		n.above[name] = c
	}
	return c
}

// children are in the order of their names, so that one function is at the same place in two graphs.
func (n *node) children() []*node {
	out := make([]*node, 0, len(n.above))
	for _, name := range slices.Sorted(maps.Keys(n.above)) {
		out = append(out, n.above[name])
	}
	return out
}

// tree puts stacks together.
func tree(stacks []Stack) *node {
	root := &node{name: "all", above: map[string]*node{}}
	for _, s := range stacks {
		if s.Value <= 0 {
			continue
		}
		n := root
		n.value += s.Value
		for _, f := range s.Frames {
			n = n.child(f)
			n.value += s.Value
		}
	}
	return root
}

// depth is how many boxes are on top of each other, those that are narrower than least not counted.
func (n *node) depth(least int64) int {
	deepest := 0
	for _, c := range n.above {
		if c.value >= least {
			deepest = max(deepest, c.depth(least))
		}
	}
	return deepest + 1
}

// Share is what a function has of a profile, from 0 to 1.
type Share struct {
	Function string
	Own      float64 // while it ran itself
	All      float64 // while it was on the stack; once, however often it was there
}

// Shares are the functions of a profile, those with most of it first.
func Shares(stacks []Stack) []Share {
	byName, sum := map[string]*Share{}, 0.0
	at := func(name string) *Share {
		if byName[name] == nil {
			byName[name] = &Share{Function: name}
		}
		return byName[name]
	}
	for _, s := range stacks {
		v := float64(s.Value)
		sum += v
		for i, f := range s.Frames {
			if !slices.Contains(s.Frames[:i], f) {
				at(f).All += v
			}
		}
		if n := len(s.Frames); n > 0 {
			at(s.Frames[n-1]).Own += v
		}
	}
	var all []Share
	for _, s := range byName {
		all = append(all, Share{s.Function, s.Own / max(sum, 1), s.All / max(sum, 1)})
	}
	slices.SortFunc(all, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.All, a.All), strings.Compare(a.Function, b.Function))
	})
	return all
}

// kernelMark is behind the names of functions of the kernel.
const kernelMark = " [k]"

// colour tells kinds of functions apart.
func colour(name string) string {
	switch {
	case strings.HasSuffix(name, kernelMark):
		return "#e69f00"
	case strings.Contains(name, "github.com/dsec-io/dsec/"):
		return "#56b4e9"
	case strings.HasPrefix(name, "runtime.") || strings.HasPrefix(name, "internal/runtime/"):
		return "#bbbbbb"
	case strings.HasPrefix(name, "net/") || strings.HasPrefix(name, "net."):
		return "#cc79a7"
	}
	return "#8fd3b6"
}
