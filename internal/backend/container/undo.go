package container

// undo is what has to be taken back when a later step fails, the last thing first.
type undo struct{ steps []func() }

func (u *undo) push(f func()) { u.steps = append(u.steps, f) }

// run takes everything back, unless release was called before.
func (u *undo) run() {
	for len(u.steps) > 0 {
		last := len(u.steps) - 1
		f := u.steps[last]
		u.steps = u.steps[:last]
		f()
	}
}

func (u *undo) release() { u.steps = nil }
