package spec

import (
	"bytes"
	"maps"
	"slices"
	"strings"
)

// Environ is a list of "K=V" in which each name occurs once, in the place where it came first.
type Environ struct {
	list  [][]byte
	index map[string]int
}

func newEnvironment(size int) *Environ {
	return &Environ{list: make([][]byte, 0, size), index: make(map[string]int, size)}
}

func (e *Environ) set(kv []byte) {
	name := kv
	if before, _, ok := bytes.Cut(kv, []byte{'='}); ok {
		name = before
	}
	if at, ok := e.index[string(name)]; ok {
		e.list[at] = kv
		return
	}
	e.index[string(name)] = len(e.list)
	e.list = append(e.list, kv)
}

// With is the environment plus what one command adds; it shares the list where nothing is added.
func (e *Environ) With(more [][]byte) [][]byte {
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

// Environment merges an image's variables and a spec's, which win. An image's entry that no program could be given is dropped.
func Environment(image []string, spec map[string]string) *Environ {
	e := newEnvironment(len(image) + len(spec))
	for _, kv := range image {
		if strings.Index(kv, "=") > 0 && strings.IndexByte(kv, 0) < 0 {
			e.set([]byte(kv))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(spec)) {
		e.set([]byte(k + "=" + spec[k]))
	}
	return e
}

// Strings is the environment as text.
func (e *Environ) Strings() []string {
	out := make([]string, len(e.list))
	for i, kv := range e.list {
		out[i] = string(kv)
	}
	return out
}
