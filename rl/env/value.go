package env

import "fmt"

// Pack writes a structured value of the space into a flat row: the one of dst that DType names. Unpack gives it back.
func (o Observations) Pack(value any, u8 []uint8, f32 []float32) error {
	flat := make([]float64, 0, o.Len)
	flat, err := pack(o.Space, value, flat)
	if err != nil {
		return err
	}
	for i, v := range flat {
		if o.DType == Uint8 {
			u8[i] = uint8(v)
		} else {
			f32[i] = float32(v)
		}
	}
	return nil
}

// Unpack returns the structured value of a flat row.
func (o Observations) Unpack(u8 []uint8, f32 []float32) any {
	next := 0
	return unpack(o.Space, func(Space) float64 {
		next++
		if o.DType == Uint8 {
			return float64(u8[next-1])
		}
		return float64(f32[next-1])
	})
}

// Pack writes a structured action into its two rows.
func (a Actions) Pack(value any, choices []int32, numbers []float32) error {
	flat, err := pack(a.Space, value, nil)
	if err != nil {
		return err
	}
	c, n := 0, 0
	for _, leaf := range a.Leaves {
		for range leaf.Len {
			if _, ok := leaf.Space.(Box); ok {
				numbers[n] = float32(flat[c+n])
				n++
			} else {
				choices[c] = int32(flat[c+n])
				c++
			}
		}
	}
	return nil
}

// Unpack returns the structured action of two rows.
func (a Actions) Unpack(choices []int32, numbers []float32) any {
	c, n := 0, 0
	return unpack(a.Space, func(s Space) float64 {
		if _, ok := s.(Box); ok {
			n++
			return float64(numbers[n-1])
		}
		c++
		return float64(choices[c-1])
	})
}

// pack appends the elements of a value. A float64 holds every element exactly.
func pack(s Space, value any, to []float64) ([]float64, error) {
	switch s := s.(type) {
	case Box:
		return packBox(s, value, to)
	case Discrete:
		v, ok := value.(int)
		if !ok || v < 0 || v >= s.N {
			return nil, fmt.Errorf("%T %v isn't one of %d choices", value, value, s.N)
		}
		return append(to, float64(v)), nil
	case MultiDiscrete:
		return packChoices(s, value, to)
	case Dict:
		return packDict(s, value, to)
	case Tuple:
		return packTuple(s, value, to)
	}
	return nil, fmt.Errorf("space %T", s)
}

func packChoices(s MultiDiscrete, value any, to []float64) ([]float64, error) {
	v, ok := value.([]int)
	if !ok || len(v) != len(s.N) {
		return nil, fmt.Errorf("%T %v isn't %d choices", value, value, len(s.N))
	}
	for i, n := range s.N {
		if v[i] < 0 || v[i] >= n {
			return nil, fmt.Errorf("%d isn't one of %d choices", v[i], n)
		}
		to = append(to, float64(v[i]))
	}
	return to, nil
}

func packTuple(s Tuple, value any, to []float64) ([]float64, error) {
	v, ok := value.([]any)
	if !ok || len(v) != len(s) {
		return nil, fmt.Errorf("%T isn't a tuple of %d", value, len(s))
	}
	var err error
	for i, part := range s {
		if to, err = pack(part, v[i], to); err != nil {
			return nil, fmt.Errorf("%d: %w", i, err)
		}
	}
	return to, nil
}

func packDict(s Dict, value any, to []float64) ([]float64, error) {
	v, ok := value.(map[string]any)
	if !ok || len(v) != len(s) {
		return nil, fmt.Errorf("%T isn't a dict of %d", value, len(s))
	}
	var err error
	for _, field := range s {
		if to, err = pack(field.Space, v[field.Name], to); err != nil {
			return nil, fmt.Errorf("%s: %w", field.Name, err)
		}
	}
	return to, nil
}

func packBox(s Box, value any, to []float64) ([]float64, error) {
	from := len(to)
	switch v := value.(type) {
	case []uint8:
		to = appendAll(to, v, s.DType == Uint8)
	case []int32:
		to = appendAll(to, v, s.DType == Int32)
	case []float32:
		to = appendAll(to, v, s.DType == Float32)
	}
	if len(to)-from != product(s.Shape) {
		return nil, fmt.Errorf("%T isn't %d of %v", value, product(s.Shape), s.DType)
	}
	for _, x := range to[from:] {
		if !(x >= float64(s.Low) && x <= float64(s.High)) {
			return nil, fmt.Errorf("%v isn't in [%v, %v]", x, s.Low, s.High)
		}
	}
	return to, nil
}

func appendAll[T uint8 | int32 | float32](to []float64, from []T, right bool) []float64 {
	if !right {
		return to
	}
	for _, v := range from {
		to = append(to, float64(v))
	}
	return to
}

// unpack builds a value from the elements that next gives.
func unpack(s Space, next func(Space) float64) any {
	switch s := s.(type) {
	case Box:
		n := product(s.Shape)
		switch s.DType {
		case Uint8:
			return take[uint8](s, n, next)
		case Int32:
			return take[int32](s, n, next)
		default:
			return take[float32](s, n, next)
		}
	case Discrete:
		return int(next(s))
	case MultiDiscrete:
		return take[int](s, len(s.N), next)
	case Dict:
		v := make(map[string]any, len(s))
		for _, field := range s {
			v[field.Name] = unpack(field.Space, next)
		}
		return v
	case Tuple:
		v := make([]any, 0, len(s))
		for _, part := range s {
			v = append(v, unpack(part, next))
		}
		return v
	}
	return nil
}

func take[T uint8 | int | int32 | float32](s Space, n int, next func(Space) float64) []T {
	v := make([]T, n)
	for i := range v {
		v[i] = T(next(s))
	}
	return v
}
