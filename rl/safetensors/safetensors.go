// Package safetensors reads and writes tensors of float32 in the safetensors format: a JSON header that says where each
// tensor lies, and the numbers, little-endian.
//
// What is written is always the same for the same tensors: the header is sorted. Nothing that a file says is believed
// before it's checked against the length of the file; a tensor of another type is an error.
package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Tensor is an array of numbers.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

type entry struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
}

const (
	maxHeader = 100 << 20 // the format's own limit
	metadata  = "__metadata__"
)

// Encode returns a file of tensors, and of metadata where there's any.
func Encode(tensors []Tensor, meta map[string]string) ([]byte, error) {
	header, at := make(map[string]any, len(tensors)+1), 0
	for _, t := range tensors {
		if n, ok := count(t.Shape); !ok || n != len(t.Data) || t.Name == metadata || header[t.Name] != nil {
			return nil, fmt.Errorf("safetensors: tensor %q of shape %v with %d numbers", t.Name, t.Shape, len(t.Data))
		}
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		header[t.Name] = entry{"F32", shape, [2]int{at, at + 4*len(t.Data)}}
		at += 4 * len(t.Data)
	}
	if len(meta) > 0 {
		header[metadata] = meta
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	for len(text)%8 != 0 { // so that the numbers are aligned
		text = append(text, ' ')
	}
	out := make([]byte, 0, 8+len(text)+at)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(text)))
	out = append(out, text...)
	for _, t := range tensors {
		for _, x := range t.Data {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		}
	}
	return out, nil
}

// count is how many numbers a shape has.
func count(shape []int) (int, bool) {
	n := 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt32/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// Decode returns the tensors of a file in the order in which they lie in it, and its metadata.
func Decode(file []byte) ([]Tensor, map[string]string, error) {
	if len(file) < 8 {
		return nil, nil, errors.New("safetensors: the file is too short")
	}
	size := binary.LittleEndian.Uint64(file)
	if size > maxHeader || size > uint64(len(file)-8) {
		return nil, nil, fmt.Errorf("safetensors: a header of %d bytes in a file of %d", size, len(file))
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(file[8:8+size], &header); err != nil {
		return nil, nil, fmt.Errorf("safetensors: header: %w", err)
	}
	var meta map[string]string
	if text, ok := header[metadata]; ok {
		if err := json.Unmarshal(text, &meta); err != nil {
			return nil, nil, fmt.Errorf("safetensors: metadata: %w", err)
		}
		delete(header, metadata)
	}
	tensors, err := tensorsOf(header, file[8+size:])
	return tensors, meta, err
}

func tensorsOf(header map[string]json.RawMessage, data []byte) ([]Tensor, error) {
	type placed struct {
		Tensor
		lo, hi int
	}
	all := make([]placed, 0, len(header))
	for name, text := range header {
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("safetensors: tensor %q: %w", name, err)
		}
		n, ok := count(e.Shape)
		lo, hi := e.Offsets[0], e.Offsets[1]
		if e.DType != "F32" || !ok || lo < 0 || hi < lo || hi > len(data) || hi-lo != 4*n {
			return nil, fmt.Errorf("safetensors: tensor %q: %s of shape %v at %v of %d bytes", name, e.DType, e.Shape, e.Offsets, len(data))
		}
		all = append(all, placed{Tensor{name, e.Shape, nil}, lo, hi})
	}
	slices.SortFunc(all, func(a, b placed) int {
		if a.lo != b.lo {
			return a.lo - b.lo
		}
		return a.hi - b.hi
	})
	tensors, at := make([]Tensor, 0, len(all)), 0
	for _, p := range all {
		if p.lo != at {
			return nil, fmt.Errorf("safetensors: tensor %q begins at %d, the one before ends at %d", p.Name, p.lo, at)
		}
		at = p.hi
		p.Data = make([]float32, (p.hi-p.lo)/4)
		for i := range p.Data {
			p.Data[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[p.lo+4*i:]))
		}
		tensors = append(tensors, p.Tensor)
	}
	if at != len(data) {
		return nil, fmt.Errorf("safetensors: %d bytes after the last tensor", len(data)-at)
	}
	return tensors, nil
}
