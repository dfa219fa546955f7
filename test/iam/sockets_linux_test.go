package iam_test

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// listener is a socket on which a process listens.
type listener struct{ table, name string }

// listeners finds what a process listens on, by its descriptors and the tables of its network namespace.
func listeners(t *testing.T, pid int) []listener {
	t.Helper()
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("descriptors of %d: %v", pid, err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	var found []listener
	for table, at := range map[string]struct {
		inode, state int
		listens      string
	}{
		"unix": {6, 3, "00010000"}, "tcp": {9, 3, "0A"}, "tcp6": {9, 3, "0A"}, "udp": {9, 3, "07"}, "udp6": {9, 3, "07"}, "raw": {9, 3, "07"}, "raw6": {9, 3, "07"},
	} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) <= at.inode || !inodes[f[at.inode]] || f[at.state] != at.listens {
				continue
			}
			name := f[1]
			if table == "unix" {
				name = strings.Join(f[at.inode+1:], " ")
			}
			found = append(found, listener{table, name})
		}
	}
	return found
}

// TestListeners: a node with everything open listens on the API's port and on sockets in folders that nobody else may
// enter, and on nothing else: no port of etcd's, no socket of the abstract kind, which any process could dial.
func TestListeners(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	before := listeners(t, n.PID())
	token(t, n.Client, api.TokenSpec{}) // which opens the store
	after := listeners(t, n.PID())
	if len(after) != len(before)+2 {
		t.Errorf("before the store was opened: %v, after: %v", before, after)
	}
	u, err := url.Parse(n.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ports, socks := 0, 0
	for _, l := range after {
		switch l.table {
		case "tcp":
			ports++
			_, hex, _ := strings.Cut(l.name, ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if want := netip.MustParseAddrPort(u.Host).Port(); err != nil || uint16(port) != want {
				t.Errorf("it listens on TCP port %d, the API's is %d", port, want)
			}
		case "unix":
			socks++
			info, err := os.Stat(filepath.Dir(l.name))
			if !filepath.IsAbs(l.name) || err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("it listens on %q, in a folder that others may enter (%v)", l.name, err)
			}
			if inside := strings.HasPrefix(l.name, n.Dir+"/") || strings.HasPrefix(l.name, "/run/dsec/"+n.Instance()+"/"); !inside {
				t.Errorf("it listens on %q, away from its folders", l.name)
			}
		default:
			t.Errorf("it listens on %s %s", l.table, l.name)
		}
	}
	if ports != 1 || socks < 3 {
		t.Errorf("%d ports and %d sockets: %v", ports, socks, after)
	}
}
