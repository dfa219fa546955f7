package image

import "testing"

// Fallbacks makes s do as older kernels need it: through a loop device, and with a mount of its own for each clone.
func (s *Store) Fallbacks(loop, fresh bool) { s.forceLoop, s.freshOnly = loop, fresh }

// Busy makes it look as if somebody were mounting the image, and tells how many shares there are.
func (s *Store) Busy(t *testing.T, name string) (shares func() int) {
	t.Helper()
	f, err := s.find(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	sh := &shared{name: name, id: f.id, ready: make(chan struct{}), mount: -1, refs: 1}
	s.open[name] = sh
	return func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return sh.refs
	}
}
