package aether

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/api"
)

// codec is what every message has.
type codec interface {
	AppendTo(b []byte) []byte
	Unmarshal(b []byte) error
}

func codecs() map[string]func() codec {
	return map[string]func() codec{
		"hello": func() codec { return new(Hello) }, "exec-start": func() codec { return new(ExecStart) },
		"started": func() codec { return new(Started) }, "exited": func() codec { return new(Exited) },
		"gap": func() codec { return new(Gap) }, "attach": func() codec { return new(Attach) },
		"signal": func() codec { return new(Signal) }, "resize": func() codec { return new(Resize) }, "ack": func() codec { return new(Ack) },
		"add-box": func() codec { return new(AddBox) },
	}
}

// draw fills a message with arbitrary values by its fields' types, so that a field forgotten in a codec is found.
func draw(t *rapid.T, m codec) {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		switch f.Interface().(type) {
		case string:
			f.SetString(rapid.String().Draw(t, name))
		case bool:
			f.SetBool(rapid.Bool().Draw(t, name))
		case int32:
			f.SetInt(int64(rapid.Int32().Draw(t, name)))
		case int64:
			f.SetInt(rapid.Int64().Draw(t, name))
		case uint8:
			f.SetUint(uint64(rapid.Uint8().Draw(t, name)))
		case uint32:
			f.SetUint(uint64(rapid.Uint32().Draw(t, name)))
		case uint64:
			f.SetUint(rapid.Uint64().Draw(t, name))
		case []byte:
			f.SetBytes(rapid.SliceOf(rapid.Byte()).Draw(t, name))
		case [][]byte:
			f.Set(reflect.ValueOf(rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, name)))
		default:
			t.Fatalf("field %s has a type that this test doesn't know", name)
		}
	}
}

func TestMessageRoundTrip(t *testing.T) {
	t.Parallel()
	for name, fresh := range codecs() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				want, got := fresh(), fresh()
				draw(t, want)
				wire := want.AppendTo(nil)
				// A later version's fields are skipped, wherever they stand.
				unknown := appendVarint(nil, 1000, 7)
				unknown = appendString(unknown, 1001, "later")
				unknown = append(unknown, 0xd5, 0x3e, 1, 2, 3, 4) // field 1002, fixed32
				if err := got.Unmarshal(append(unknown, wire...)); err != nil {
					t.Fatalf("Unmarshal() = %v", err)
				}
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("message (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestMessageMalformed(t *testing.T) {
	t.Parallel()
	for name, in := range map[string][]byte{
		"torn-varint":    {0x18, 0x80},
		"torn-bytes":     {0x0a, 5, 'a'},
		"huge-length":    {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"long-varint":    append([]byte{0x18}, bytes.Repeat([]byte{0xff}, 11)...),
		"field-zero":     {0x00, 1},
		"group":          {0x0b},
		"wrong-type":     {0x08, 1},
		"int32-too-wide": {0x10, 0xff, 0xff, 0xff, 0xff, 0x7f},
	} {
		t.Run(name, func(t *testing.T) {
			var m Started
			if err := m.Unmarshal(in); !errors.Is(err, ErrMalformed) {
				t.Errorf("Unmarshal(%x) = %v, %+v", in, err, m)
			}
		})
	}
	var m ExecStart
	if err := m.Unmarshal(bytes.Repeat([]byte{0x12, 0}, maxListEntries+1)); !errors.Is(err, ErrMalformed) {
		t.Errorf("an argv of %d entries = %v", len(m.Argv), err)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte{0x0a, 1, 'a', 0x10, 1})
	f.Add((&ExecStart{ID: "p", Argv: [][]byte{[]byte("true"), {}}, TimeoutMS: -1}).AppendTo(nil))
	f.Add((&Exited{Code: -1, InfraError: "x"}).AppendTo(nil))
	f.Add((&Open{Method: "exec", Body: []byte{1}}).appendTo(nil))
	f.Add(appendError(nil, api.Errorf(api.CodeCommandNotFound, "no")))
	f.Fuzz(func(t *testing.T, in []byte) {
		for name, fresh := range codecs() {
			m, again := fresh(), fresh()
			if m.Unmarshal(in) != nil {
				continue
			}
			wire := m.AppendTo(nil)
			if err := again.Unmarshal(wire); err != nil || !bytes.Equal(again.AppendTo(nil), wire) {
				t.Fatalf("%s: %x decodes and encodes to %x, which doesn't (%v)", name, in, wire, err)
			}
		}
		var o Open
		if fds, err := o.unmarshal(in); err == nil {
			o.FDs = make([]int, fds)
			if wire := o.appendTo(nil); len(wire) > o.size() {
				t.Fatalf("size() = %d, encoded %d", o.size(), len(wire))
			}
		}
		parseReset(in) // it must not panic
	})
}

func TestResetRoundTrip(t *testing.T) {
	t.Parallel()
	want := api.Errorf(api.CodeCommandNotFound, "no such command")
	want.Field, want.Hint, want.RetryMS, want.RequestID = "argv", "look at PATH", 250, "r1"
	for name, e := range map[string]*api.Error{
		"full": want, "exit-zero": {Code: api.CodeConflict, ExitCode: new(int)}, "plain": api.Errorf(api.CodeQuota, "full"),
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseReset(appendError(nil, e)).(*api.Error) //nolint:errorlint // it is that type or another
			if !ok {
				t.Fatal("not an *api.Error")
			}
			if diff := cmp.Diff(e.Complete(), got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
	long := &api.Error{Code: "x", Detail: strings.Repeat("d", 1<<20), Hint: strings.Repeat("h", 1<<20), Field: strings.Repeat("f", 1<<20)}
	if n := len(appendError(nil, long)); n > maxReset {
		t.Errorf("a RESET of %d bytes, limit %d", n, maxReset)
	}
	for _, b := range [][]byte{nil, {0xff}, {0x12, 1, 'x'}} {
		if err := parseReset(b); !errors.Is(err, ErrReset) {
			t.Errorf("parseReset(%x) = %v", b, err)
		}
	}
}
