package aether

// queue is a ring that grows and never shrinks. Its users bound it.
type queue[T any] struct {
	ring    []T // its length is a power of two
	head, n int
}

func (q *queue[T]) push(v T) {
	if q.n == len(q.ring) {
		grown := make([]T, max(4, 2*len(q.ring)))
		for i := range q.n {
			grown[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = v
	q.n++
}

// pop must not be called on an empty queue.
func (q *queue[T]) pop() T {
	var zero T
	v := q.ring[q.head]
	q.ring[q.head] = zero
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return v
}
