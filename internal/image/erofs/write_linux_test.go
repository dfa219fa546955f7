package erofs_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/dsec-io/dsec/internal/image/erofs"
	"github.com/dsec-io/dsec/internal/need"
)

// shape is what of a file can be seen in a mounted image.
type shape struct {
	Mode     uint32
	UID, GID uint32
	Sec      int64
	Nsec     int64
	Size     int64
	Links    uint64
	Content  string // of a file its digest, of a link its target
	Xattrs   map[string]string
}

// mounted reads a whole image through the kernel.
func mounted(t testing.TB, image []byte) map[string]shape {
	t.Helper()
	need.Root(t)
	dir := t.TempDir()
	file, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), need.Command(t, "fsck.erofs"), file).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file, at, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
		t.Fatalf("mount: %v", err)
	}
	defer func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	}()
	all := map[string]shape{}
	err := filepath.WalkDir(at, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s, err := look(path)
		all[strings.TrimPrefix(path, at)] = s
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func look(path string) (shape, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return shape{}, err
	}
	s := shape{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec, Size: st.Size, Links: uint64(st.Nlink)}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		var b []byte
		b, err = os.ReadFile(path)
		s.Content = fmt.Sprintf("%x", sha256.Sum256(b))
	case unix.S_IFLNK:
		s.Content, err = os.Readlink(path)
	}
	if err != nil {
		return s, err
	}
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return s, err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return s, err
		}
		if s.Xattrs == nil {
			s.Xattrs = map[string]string{}
		}
		s.Xattrs[name] = string(value[:k])
	}
	return s, nil
}

// expected is what a tree must look like when it is mounted.
func expected(root *erofs.Node, data []byte) map[string]shape {
	links := map[*erofs.Node]uint64{}
	var count func(n *erofs.Node)
	count = func(n *erofs.Node) {
		if links[n]++; n.IsDir() {
			links[n] = 2
		}
		for _, c := range n.Children {
			if count(c); c.IsDir() {
				links[n]++
			}
		}
	}
	count(root)
	all := map[string]shape{}
	var walk func(path string, n *erofs.Node)
	walk = func(path string, n *erofs.Node) {
		s := shape{Mode: n.Mode, UID: n.UID, GID: n.GID, Sec: n.Sec, Nsec: int64(n.Nsec), Size: n.Size, Links: links[n], Xattrs: n.Xattrs}
		switch n.Type() {
		case erofs.Regular:
			s.Content = fmt.Sprintf("%x", sha256.Sum256(data[n.Offset:n.Offset+n.Size]))
		case erofs.Link:
			s.Content, s.Size = n.Target, int64(len(n.Target))
		}
		all[path] = s
		for name, c := range n.Children {
			walk(path+"/"+name, c)
		}
	}
	walk("", root)
	return all
}

func check(t testing.TB, root *erofs.Node, data []byte) {
	t.Helper()
	var a, b bytes.Buffer
	if err := erofs.Write(&a, root, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := erofs.Write(&b, root, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same tree made two different images")
	}
	got := mounted(t, a.Bytes())
	want := expected(root, data)
	for path, s := range got {
		if s.Mode&unix.S_IFMT == unix.S_IFDIR { // a directory's length is how it is stored
			s.Size = 0
			got[path] = s
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the mounted tree (-want +got):\n%.4000s", diff)
	}
}

func dir(children map[string]*erofs.Node) *erofs.Node {
	return &erofs.Node{Mode: erofs.Dir | 0o755, Children: children, Sec: 1}
}

// TestMountedIsWhatWasWritten writes every kind of file, at the lengths where its place changes.
func TestMountedIsWhatWasWritten(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcde"), 20_000)
	tree := map[string]*erofs.Node{
		"fifo":    {Mode: erofs.FIFO | 0o600},
		"setuid":  {Mode: erofs.Regular | 0o4755, Size: 3, UID: 65535, GID: 12, Sec: 1 << 33, Nsec: 999_999_999},
		"sticky":  {Mode: erofs.Dir | 0o1777, Sec: -5},
		"caps":    {Mode: erofs.Regular | 0o755, Size: 10, Xattrs: map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "user.a": "", "user.b": strings.Repeat("x", 5000)}},
		"withdir": dir(map[string]*erofs.Node{"deep": dir(map[string]*erofs.Node{"\xff\x01": {Mode: erofs.Regular}})}),
	}
	for _, size := range []int64{0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 200_000} {
		tree[fmt.Sprintf("file%d", size)] = &erofs.Node{Mode: erofs.Regular | 0o644, Size: size, Offset: size / 2}
	}
	for _, size := range []int{1, 59, 60, 61, 2000, 3900, 3967, 3968, 3969, 4095} {
		tree[fmt.Sprintf("link%d", size)] = &erofs.Node{Mode: erofs.Link | 0o777, Target: strings.Repeat("t", size)}
	}
	for _, n := range []int{1, 50, 150, 200, 300, 2000} {
		children := map[string]*erofs.Node{}
		for i := range n {
			children[fmt.Sprintf("some-name-%d", i)] = tree["setuid"]
		}
		tree[fmt.Sprintf("dir%d", n)] = dir(children)
	}
	tree["long"] = dir(map[string]*erofs.Node{strings.Repeat("n", 255): tree["caps"], strings.Repeat("m", 255): tree["fifo"]})
	check(t, dir(tree), data)
}

// TestAnyTree does the same for trees that nobody thought of.
func TestAnyTree(t *testing.T) {
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7}, 3000)
	rapid.Check(t, func(rt *rapid.T) {
		root := dir(nil)
		root.Children = map[string]*erofs.Node{}
		at := []*erofs.Node{root}
		files := []*erofs.Node{}
		for range rapid.IntRange(0, 40).Draw(rt, "files") {
			parent := rapid.SampledFrom(at).Draw(rt, "parent")
			name := rapid.StringMatching(`[a-c]{1,3}|[a-b]{200,255}`).Draw(rt, "name")
			if parent.Children[name] != nil {
				continue
			}
			n := &erofs.Node{UID: rapid.Uint32Range(0, 65535).Draw(rt, "uid"), Sec: rapid.Int64Range(0, 1<<34).Draw(rt, "time")}
			switch rapid.IntRange(0, 4).Draw(rt, "type") {
			case 0:
				n.Mode, n.Children = erofs.Dir|0o755, map[string]*erofs.Node{}
				at = append(at, n)
			case 1:
				n.Mode, n.Target = erofs.Link|0o777, strings.Repeat("t/", rapid.SampledFrom([]int{1, 9, 30, 1900, 2000, 2040}).Draw(rt, "target"))
			case 2:
				if len(files) > 0 {
					n = rapid.SampledFrom(files).Draw(rt, "hard link")
					break
				}
				fallthrough
			default:
				n.Mode, n.Size = erofs.Regular|0o640, rapid.Int64Range(0, 9000).Draw(rt, "size")
				n.Offset = rapid.Int64Range(0, 9000).Draw(rt, "offset")
				files = append(files, n)
			}
			if n.Type() != erofs.Link && n.Xattrs == nil && rapid.Bool().Draw(rt, "attribute") {
				n.Xattrs = map[string]string{"user." + rapid.StringMatching(`[a-z]{1,20}`).Draw(rt, "key"): rapid.StringN(0, 200, 400).Draw(rt, "value")}
			}
			parent.Children[name] = n
		}
		check(t, root, data)
	})
}

func TestRefused(t *testing.T) {
	loop := dir(nil)
	loop.Children = map[string]*erofs.Node{"self": loop}
	for name, root := range map[string]*erofs.Node{
		"root-file":    {Mode: erofs.Regular},
		"device":       dir(map[string]*erofs.Node{"null": {Mode: 0o020666}}),
		"empty-link":   dir(map[string]*erofs.Node{"l": {Mode: erofs.Link}}),
		"long-link":    dir(map[string]*erofs.Node{"l": {Mode: erofs.Link, Target: strings.Repeat("x", 4096)}}),
		"attribute":    dir(map[string]*erofs.Node{"f": {Mode: erofs.Regular, Xattrs: map[string]string{"odd.x": ""}}}),
		"many-attrs":   dir(map[string]*erofs.Node{"f": {Mode: erofs.Regular, Xattrs: map[string]string{"user.x": strings.Repeat("v", 50_000), "user.y": strings.Repeat("v", 50_000)}}}),
		"missing-data": dir(map[string]*erofs.Node{"f": {Mode: erofs.Regular, Size: 5000, Offset: 8}}),
		"loop":         loop,
	} {
		t.Run(name, func(t *testing.T) {
			if err := erofs.Write(&bytes.Buffer{}, root, strings.NewReader("12345678")); err == nil {
				t.Error("Write() says nothing")
			}
		})
	}
}

func TestXattrNames(t *testing.T) {
	good := []string{"user.a", "trusted.x.y", "security.capability", "system.posix_acl_access", "system.posix_acl_default"}
	bad := []string{"", "user", "system.posix_acl_access.x", "system.other", "user." + strings.Repeat("n", 256), "user.a\x00b"}
	for _, name := range slices.Concat(good, bad) {
		if err := erofs.CheckXattr(name, "v"); (err == nil) != slices.Contains(good, name) {
			t.Errorf("CheckXattr(%q) = %v", name, err)
		}
	}
}
