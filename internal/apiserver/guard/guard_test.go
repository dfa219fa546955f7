package guard

import "testing"

func TestGuardOnAllAddresses(t *testing.T) {
	for listen, want := range map[string]bool{"0.0.0.0:80": true, "[::]:80": true, ":80": true, "192.0.2.1:80": false, "127.0.0.1:80": false} {
		if got := New(listen, nil).ours("198.51.100.9:80"); got != want {
			t.Errorf("listening on %s, a request to 198.51.100.9 is ours: %v, want %v", listen, got, want)
		}
		if New(listen, nil).ours("evil.example") {
			t.Errorf("listening on %s, a request to evil.example is ours", listen)
		}
	}
}
