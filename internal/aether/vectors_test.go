package aether

import (
	"bytes"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
)

// frameOf is a frame with right checksums.
func frameOf(h header, payload []byte) []byte {
	h.length, h.crc = uint32(len(payload)), checksum(payload)
	return append(h.appendTo(nil), payload...)
}

// vectors are the frames of docs/aether.md.
func vectors() map[string][]byte {
	hello := Hello{MinVersion: 1, MaxVersion: 1, Name: "edge", MaxData: 65536, Window: 262144, MaxStreams: 4096}
	start := ExecStart{ID: "p1", Argv: [][]byte{[]byte("echo"), {}}, Env: [][]byte{[]byte("A=1")}, TimeoutMS: 1500, MaxOutput: 1 << 20}
	open := Open{Method: "exec", Sandbox: "s1", RequestID: "r1", Body: start.AppendTo(nil)}
	started := Started{ID: "p1", PIDInside: 2, StartedAtUnixNano: 1_700_000_000_000_000_000}
	exited := Exited{HasCode: true, Code: 3, StdoutTotal: 6, DurationNano: 1_000_000}
	lost := Exited{Signal: 9, OOMKilled: true, InfraError: "x", Code: -1}
	return map[string][]byte{
		"hello": frameOf(header{version: 0, channel: Control, typ: ctlHello}, hello.AppendTo(nil)),
		"open": frameOf(header{
			version: 1, channel: Control, typ: ctlOpen, flags: flagTrace | flagEnd, stream: 1,
			trace: [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		}, open.appendTo(nil)),
		"started":      frameOf(header{version: 1, channel: Message, typ: MsgStarted, stream: 1}, started.AppendTo(nil)),
		"stdout":       frameOf(header{version: 1, channel: Stdout, stream: 1}, []byte("hello\n")),
		"stdout-end":   frameOf(header{version: 1, channel: Stdout, flags: flagEnd, stream: 1}, nil),
		"exited":       frameOf(header{version: 1, channel: Message, typ: MsgExited, stream: 1}, exited.AppendTo(nil)),
		"exited-lost":  frameOf(header{version: 1, channel: Message, typ: MsgExited, stream: 1}, lost.AppendTo(nil)),
		"close":        frameOf(header{version: 1, channel: Control, flags: flagEnd, stream: 1}, nil),
		"window":       frameOf(header{version: 1, channel: Control, typ: ctlWindow, stream: 3}, []byte{1, 0, 0, 0, 0, 0, 2, 0}),
		"reset":        frameOf(header{version: 1, channel: Control, flags: flagReset, stream: 3}, appendError(nil, api.Errorf(api.CodeCommandNotFound, "nope: not found"))),
		"reset-plain":  frameOf(header{version: 1, channel: Control, flags: flagReset, stream: 5}, nil),
		"message-part": frameOf(header{version: 1, channel: Message, typ: MsgReply, flags: flagMore, stream: 7}, []byte("first ")),
		"message-rest": frameOf(header{version: 1, channel: Message, typ: MsgReply, stream: 7}, []byte("last")),
	}
}

// TestVectors reads the vectors from the document.
func TestVectors(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/aether.md")
	if err != nil {
		t.Fatal(err)
	}
	want := vectors()
	for _, m := range regexp.MustCompile("(?s)```vector ([a-z-]+)\n(.*?)```").FindAllSubmatch(doc, -1) {
		name := string(m[1])
		got, err := hex.DecodeString(strings.Join(strings.Fields(string(m[2])), ""))
		if err != nil {
			t.Errorf("vector %s: %v", name, err)
		}
		if !bytes.Equal(got, want[name]) {
			t.Errorf("vector %s is in the document\n%x\nand encodes to\n%x", name, got, want[name])
		}
		var h header
		r := frameReader{r: bytes.NewReader(got)}
		if err := r.next(&h); err != nil {
			t.Errorf("vector %s: %v", name, err)
		} else if err := h.check(1, MaxDataAether); err != nil && name != "hello" {
			t.Errorf("vector %s: %v", name, err)
		}
		delete(want, name)
	}
	for name, b := range want {
		t.Errorf("vector %s isn't in the document:\n%x", name, b)
	}
}
