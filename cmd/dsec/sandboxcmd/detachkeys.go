package sandboxcmd

import (
	"bytes"
	"fmt"
	"strings"
)

// parseDetachKeys reads a sequence such as "ctrl-p,ctrl-q"; nothing is no sequence.
func parseDetachKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for key := range strings.SplitSeq(s, ",") {
		c, isCtrl := strings.CutPrefix(key, "ctrl-")
		switch {
		case isCtrl && len(c) == 1 && 'a' <= c[0] && c[0] <= 'z':
			keys = append(keys, c[0]-'a'+1)
		case isCtrl && len(c) == 1 && strings.Contains(`@[\]^_`, c):
			keys = append(keys, c[0]&0x1f)
		case !isCtrl && len(key) == 1 && key[0] < 0x80:
			keys = append(keys, key[0])
		default:
			return nil, fmt.Errorf("no key %q", key)
		}
	}
	return keys, nil
}

// detachFilter finds the sequence in what is typed. Keys that begin it are held back until it's clear whether it goes on.
type detachFilter struct {
	keys []byte
	held []byte
}

// feed gives what to pass on of typed, and whether the sequence is complete.
func (f *detachFilter) feed(typed []byte) (pass []byte, detach bool) {
	if len(f.keys) == 0 {
		return typed, false
	}
	for _, b := range typed {
		f.held = append(f.held, b)
		for !bytes.HasPrefix(f.keys, f.held) {
			pass, f.held = append(pass, f.held[0]), f.held[1:]
		}
		if len(f.held) == len(f.keys) {
			return pass, true
		}
	}
	return pass, false
}
