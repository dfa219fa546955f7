package edge

import (
	"bytes"
	"maps"
	"slices"
)

// environ is a list of "K=V" in which each name occurs once, in the place where it came first.
type environ struct {
	list  [][]byte
	index map[string]int
}

func newEnvironment(size int) *environ {
	return &environ{list: make([][]byte, 0, size), index: make(map[string]int, size)}
}

func (e *environ) set(kv []byte) {
	name := kv
	if i := bytes.IndexByte(kv, '='); i >= 0 {
		name = kv[:i]
	}
	if at, ok := e.index[string(name)]; ok {
		e.list[at] = kv
		return
	}
	e.index[string(name)] = len(e.list)
	e.list = append(e.list, kv)
}

// with is the environment plus what one command adds; it shares the list where nothing is added.
func (e *environ) with(more [][]byte) [][]byte {
	if len(more) == 0 {
		return e.list
	}
	out := newEnvironment(len(e.list) + len(more))
	for _, kv := range e.list {
		out.set(kv)
	}
	for _, kv := range more {
		out.set(kv)
	}
	return out.list
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

func environOf(list []string) *environ {
	e := newEnvironment(len(list))
	for _, kv := range list {
		e.set([]byte(kv))
	}
	return e
}
