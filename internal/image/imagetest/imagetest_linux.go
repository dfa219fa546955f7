// Package imagetest makes images for tests, with mkfs.erofs, from trees that are written down in Go.
//
//	store := t.TempDir()
//	imagetest.Build(t, store, "busybox", imagetest.Busybox(t), image.Config{Env: []string{"PATH=/bin"}})
//	images := image.NewStore(slog.New(slog.DiscardHandler), store)
//
// A Tree is a value; its maker may add to it before it is built. Everything is safe for concurrent use.
package imagetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/need"
	"golang.org/x/sys/unix"
)

// File is one file of a tree. The type is in Mode: a regular file, fs.ModeDir, fs.ModeSymlink (to Content), or
// fs.ModeCharDevice (Major, Minor). Permissions of 0 mean 0644, and 0755 for a directory.
type File struct {
	Mode         fs.FileMode
	UID, GID     int
	Content      string
	Major, Minor uint32
}

// Tree is files by their path, without a leading slash. Directories on the way to a file need not be given.
type Tree map[string]File

// With returns t with the files of more added.
func (t Tree) With(more Tree) Tree {
	sum := maps.Clone(t)
	maps.Copy(sum, more)
	return sum
}

// Build makes the image STORE/NAME of a tree and fills in the digest. It replaces one that is there at once, as a real
// update would.
func Build(t testing.TB, store, name string, tree Tree, c image.Config) {
	t.Helper()
	need.Root(t)
	mkfs := need.Command(t, "mkfs.erofs")
	work := t.TempDir()
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		if err := tree[path].write(filepath.Join(root, path)); err != nil {
			t.Fatalf("image %s: %v", name, err)
		}
	}
	made := filepath.Join(work, "made")
	if err := os.Mkdir(made, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(made, "image.erofs")
	if out, err := exec.CommandContext(t.Context(), mkfs, "--quiet", "-T0", file, root).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs %s: %v\n%s", name, err, out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	c.Digest = "sha256:" + hex.EncodeToString(sum[:])
	if b, err = json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(made, "config.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	install(t, made, filepath.Join(store, name))
}

// install moves a folder to its place, also from another file system, and drops what was there.
func install(t testing.TB, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	old := from + ".old"
	err := os.Rename(to, old)
	if err != nil && !os.IsNotExist(err) {
		err = os.RemoveAll(to)
	}
	if err == nil || os.IsNotExist(err) {
		if err = os.Rename(from, to); err != nil {
			err = os.CopyFS(to, os.DirFS(from))
		}
	}
	if err != nil {
		t.Fatalf("install %s: %v", to, err)
	}
}

func (f File) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	perm := f.Mode.Perm()
	if perm == 0 {
		perm = 0o644
		if f.Mode.IsDir() {
			perm = 0o755
		}
	}
	var err error
	switch f.Mode.Type() {
	case fs.ModeDir:
		if err = os.Mkdir(path, perm); os.IsExist(err) {
			err = nil
		}
	case fs.ModeSymlink:
		err = os.Symlink(f.Content, path)
	case fs.ModeCharDevice, fs.ModeDevice | fs.ModeCharDevice:
		err = unix.Mknod(path, unix.S_IFCHR|uint32(perm), int(unix.Mkdev(f.Major, f.Minor)))
	default:
		err = os.WriteFile(path, []byte(f.Content), perm)
	}
	if err == nil {
		err = os.Lchown(path, f.UID, f.GID)
	}
	if err == nil && f.Mode.Type() != fs.ModeSymlink {
		// After the owner, because a change of owner takes the setuid bit.
		err = os.Chmod(path, perm|f.Mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky))
	}
	return err
}

// Busybox is a small system: a static busybox with a link for every applet, the usual folders, users root, nobody and
// app (1000), and group docker (999) with app in it.
func Busybox(t testing.TB) Tree {
	t.Helper()
	path := need.Command(t, "busybox")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), path, "--list").Output()
	if err != nil {
		t.Fatalf("busybox --list: %v", err)
	}
	tree := Tree{
		"bin/busybox": {Mode: 0o755, Content: string(b)},
		"etc/passwd": {Content: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n" +
			"app:x:1000:1000:App:/home/app:/bin/sh\n"},
		"etc/group": {Content: "root:x:0:\napp:x:1000:\ndocker:x:999:app\nnogroup:x:65534:\n"},
		"root":      {Mode: fs.ModeDir | 0o700},
		"home/app":  {Mode: fs.ModeDir | 0o755, UID: 1000, GID: 1000},
		"tmp":       {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		"var/tmp":   {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		"usr/bin":   {Mode: fs.ModeDir},
		"dev":       {Mode: fs.ModeDir},
		"proc":      {Mode: fs.ModeDir},
		"sys":       {Mode: fs.ModeDir},
		"run":       {Mode: fs.ModeDir},
		"sbin":      {Mode: fs.ModeDir},
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			tree["bin/"+name] = File{Mode: fs.ModeSymlink, Content: "busybox"}
		}
	}
	return tree
}

// Scratch is an image as a build from nothing leaves it: one static program, /hello, which writes "hello\n" and exits
// with 7. There is no /etc, no /dev, no /proc and no shell.
func Scratch(t testing.TB) Tree {
	t.Helper()
	elf, ok := map[string]string{"amd64": helloAMD64, "arm64": helloARM64}[runtime.GOARCH]
	if !ok {
		t.Fatalf("no hello program for %s", runtime.GOARCH)
	}
	return Tree{"hello": {Mode: 0o755, Content: elf}}
}

// App is [Busybox] with the config of an image that runs as somebody: user app, who is in group docker, in /home/app.
func App(t testing.TB) (Tree, image.Config) {
	t.Helper()
	return Busybox(t), image.Config{
		User: "app", WorkDir: "/home/app",
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "APP=1"}, Cmd: []string{"/bin/sh"},
	}
}

// The hello programs: an ELF header and one program header, 120 bytes, which map the file at 0x400000, then the code,
// then the text.
const (
	helloAMD64 = "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x02\x00\x3e\x00\x01\x00\x00\x00\x78\x00\x40\x00\x00\x00\x00\x00" +
		elfTail +
		"\xb8\x01\x00\x00\x00" + // mov eax, 1 (write)
		"\xbf\x01\x00\x00\x00" + // mov edi, 1
		"\x48\x8d\x35\x15\x00\x00\x00" + // lea rsi, [rip+21]
		"\xba\x06\x00\x00\x00" + // mov edx, 6
		"\x0f\x05" + // syscall
		"\xb8\xe7\x00\x00\x00" + // mov eax, 231 (exit_group)
		"\xbf\x07\x00\x00\x00" + // mov edi, 7
		"\x0f\x05" + // syscall
		"\x90\x90" + // nop, nop
		"hello\n"
	helloARM64 = "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x02\x00\xb7\x00\x01\x00\x00\x00\x78\x00\x40\x00\x00\x00\x00\x00" +
		elfTail +
		"\x20\x00\x80\xd2" + // mov x0, 1
		"\xe1\x00\x00\x10" + // adr x1, .+28
		"\xc2\x00\x80\xd2" + // mov x2, 6
		"\x08\x08\x80\xd2" + // mov x8, 64 (write)
		"\x01\x00\x00\xd4" + // svc 0
		"\xe0\x00\x80\xd2" + // mov x0, 7
		"\xc8\x0b\x80\xd2" + // mov x8, 94 (exit_group)
		"\x01\x00\x00\xd4" + // svc 0
		"hello\n"
	elfTail = "\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + // program headers at 64, no sections
		"\x00\x00\x00\x00\x40\x00\x38\x00\x01\x00\x40\x00\x00\x00\x00\x00" +
		"\x01\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + // load, read and execute, from offset 0
		"\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00" +
		"\x9e\x00\x00\x00\x00\x00\x00\x00\x9e\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x10\x00\x00\x00\x00\x00\x00"
)
