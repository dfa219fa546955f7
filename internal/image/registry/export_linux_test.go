package registry

// Waiting counts those who wait for pulls.
func Waiting(m *Remote) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, f := range m.flights {
		n += f.waiting
	}
	return n
}
