package safetensors

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z.0-9]{1,8}`), 0, 6, rapid.ID).Draw(t, "names")
		var tensors []Tensor
		for _, name := range names {
			shape := rapid.SliceOfN(rapid.IntRange(0, 4), 0, 3).Draw(t, "shape")
			n, _ := count(shape)
			tensors = append(tensors, Tensor{name, shape, rapid.SliceOfN(rapid.Float32(), n, n).Draw(t, "data")})
		}
		meta := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "meta")
		file, err := Encode(tensors, meta)
		if err != nil {
			t.Fatal(err)
		}
		got, gotMeta, err := Decode(file)
		if err != nil {
			t.Fatal(err)
		}
		byName := cmpopts.SortSlices(func(a, b Tensor) bool { return a.Name < b.Name })
		if diff := cmp.Diff(tensors, got, cmpopts.EquateEmpty(), byName); diff != "" {
			t.Fatalf("tensors (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(meta, gotMeta, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("metadata (-want +got):\n%s", diff)
		}
	})
}

// TestLayout is a file as the format's own library writes it.
func TestLayout(t *testing.T) {
	file, err := Encode([]Tensor{{"a", []int{1, 2}, []float32{1, float32(math.Inf(-1))}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	header := `{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}`
	want := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	want = append(append(want, header...), 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0xff)
	if diff := cmp.Diff(want, file); diff != "" {
		t.Errorf("Encode() (-want +got):\n%s", diff)
	}
}

func withHeader(header string, data ...byte) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...)
}

func seeds() map[string][]byte {
	return map[string][]byte{
		"empty":          {},
		"long-header":    {255, 255, 255, 255, 255, 255, 255, 255},
		"no-json":        withHeader("x"),
		"type":           withHeader(`{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}`, 0, 0, 0, 0),
		"beyond":         withHeader(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 0, 0, 0, 0),
		"shape":          withHeader(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 0, 0, 0, 0),
		"huge-shape":     withHeader(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`),
		"negative":       withHeader(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}}`, 0, 0, 0, 0),
		"hole":           withHeader(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 0, 0, 0, 0, 0, 0, 0, 0),
		"bytes-after":    withHeader(`{}`, 1),
		"metadata-types": withHeader(`{"__metadata__":{"a":1}}`),
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, file := range seeds() {
		t.Run(name, func(t *testing.T) {
			if _, _, err := Decode(file); err == nil {
				t.Error("no error")
			}
		})
	}
	for _, bad := range []Tensor{{"a", []int{2}, []float32{1}}, {"__metadata__", []int{1}, []float32{1}}} {
		if _, err := Encode([]Tensor{bad}, nil); err == nil {
			t.Errorf("Encode(%v): no error", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, file := range seeds() {
		f.Add(file)
	}
	good, err := Encode([]Tensor{{"a", []int{2}, []float32{1, 2}}, {"b", nil, []float32{3}}}, map[string]string{"k": "v"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, file []byte) {
		tensors, meta, err := Decode(file)
		if err != nil {
			return
		}
		again, err := Encode(tensors, meta)
		if err != nil {
			t.Fatal(err)
		}
		if len(tensors) > 0 {
			if _, _, err := Decode(again); err != nil {
				t.Fatal(err)
			}
		}
	})
}
