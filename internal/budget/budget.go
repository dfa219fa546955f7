// Package budget bounds what the requests of many tenants take of something at a time, memory most of all, so that one
// tenant can't take what all live on.
//
// A Budget is safe for concurrent use. A Hold belongs to one request, and is used by one goroutine at a time.
package budget

import (
	"sync"

	"github.com/dsec-io/dsec/api"
)

// Budget is an amount that is shared. Nobody gets more than their part of it.
type Budget struct {
	each int64

	mu   sync.Mutex // guards what follows
	left int64
	held map[string]int64 // by holder; none is zero
}

// New makes a budget of total, of which each holder gets at most each. The unit is the caller's.
func New(total, each int64) *Budget {
	return &Budget{each: each, left: total, held: map[string]int64{}}
}

// Hold is what one request of a holder has of a budget.
type Hold struct {
	budget *Budget
	holder string
	n      int64
}

// Open makes a hold that has nothing yet.
func (b *Budget) Open(holder string) *Hold { return &Hold{budget: b, holder: holder} }

// Grow takes n more, or nothing: then it returns false.
func (h *Hold) Grow(n int64) bool {
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left || n > b.each-b.held[h.holder] {
		return false
	}
	b.addLocked(h.holder, n)
	h.n += n
	return true
}

// Full is the refusal of a request for which there is nothing left: it may be repeated.
func Full(format string, args ...any) *api.Error {
	e := api.Errorf(api.CodeTooMany, format, args...)
	e.RetryMS = 1000
	return e
}

// Close gives everything back. The hold can be used again.
func (h *Hold) Close() {
	if h.n == 0 {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(h.holder, -h.n)
	h.n = 0
}

func (b *Budget) addLocked(holder string, n int64) {
	b.left -= n
	if b.held[holder] += n; b.held[holder] == 0 {
		delete(b.held, holder)
	}
}
