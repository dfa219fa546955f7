// Package instance holds a data folder: one process at a time has it, and everything that it makes in the kernel carries
// its name. It also makes names.
//
// An Instance is read-only and safe for concurrent use.
package instance

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/flock"
)

// ErrInUse says that another process has the data folder.
var ErrInUse = errors.New("data folder is in use")

// base32 is the alphabet of ids: 32 characters that are the same in any case-insensitive place, such as a DNS label.
const base32 = "abcdefghijklmnopqrstuvwxyz234567"

const instanceLen = 10

// A look by another instance at the lock is waited for.
const (
	look      = 350 * time.Millisecond
	lookPause = 20 * time.Millisecond
)

// deadHolder is how long the lock of a process that has died is waited for.
const deadHolder = 25 * time.Second

// maxSocketFolder keeps the sockets' paths below the 108 bytes of sun_path, with room for their names.
const maxSocketFolder = 76

// Instance is a data folder that this process holds: one running DSec on this machine.
type Instance struct {
	ID      string // in the name of every kernel object that the instance makes
	DataDir string // absolute
	RunDir  string // sockets; short enough for any socket name
	lock    *flock.File
}

// Open takes the data folder dir, which it makes when missing. While another process has it the error is
// ErrInUse and names that process.
func Open(dir string) (_ *Instance, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "sandboxes")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("data folder: %w", err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := takeFolder(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Unlock())
		}
	}()
	if err := lock.Write(fmt.Sprintln(os.Getpid())); err != nil {
		return nil, err
	}
	in := &Instance{DataDir: dir, lock: lock}
	if in.ID, err = instanceID(filepath.Join(dir, "instance")); err != nil {
		return nil, err
	}
	in.RunDir = filepath.Join(dir, "run")
	if len(in.RunDir) > maxSocketFolder {
		in.RunDir = filepath.Join("/run/dsec", in.ID)
	}
	if err := os.MkdirAll(in.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("socket folder: %w", err)
	}
	return in, nil
}

// Socket is the path of a socket of this instance.
func (in *Instance) Socket(name string) string { return filepath.Join(in.RunDir, name) }

// Close gives the folder to whoever wants it next.
func (in *Instance) Close() error { return in.lock.Unlock() }

func takeFolder(dir string) (*flock.File, error) {
	path := filepath.Join(dir, "lock")
	// A look by another instance holds the lock for an instant, hence the retries; see flock.Free. And what a process was
	// about to start when it was killed holds it for as long as it takes to notice.
	var lock *flock.File
	var err error
	for since := time.Now(); ; {
		lock, err = flock.Try(path)
		patience := look
		if !alive(path) {
			patience = deadHolder
		}
		if !errors.Is(err, flock.ErrHeld) || time.Since(since) > patience {
			break
		}
		<-time.After(lookPause)
	}
	if errors.Is(err, flock.ErrHeld) {
		who := "another process"
		if pid, _ := os.ReadFile(path); len(pid) > 0 {
			who = "process " + strings.TrimSpace(string(pid))
		}
		return nil, fmt.Errorf("%w: %s runs DSec on %s; stop it or use another data folder", ErrInUse, who, dir)
	}
	return lock, err
}

// alive tells whether the process that a lock file names may be there.
func alive(path string) bool {
	raw, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	return err != nil || pid <= 0 || !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

func instanceID(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id := Random(instanceLen)
		tmp := path + ".tmp"
		if err := os.WriteFile(tmp, []byte(id+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("write instance id: %w", err)
		}
		if err := os.Rename(tmp, path); err != nil {
			return "", fmt.Errorf("put instance id in place: %w", err)
		}
		return id, nil
	}
	if err != nil {
		return "", fmt.Errorf("read instance id: %w", err)
	}
	id := strings.TrimSpace(string(raw))
	if !regexp.MustCompile(`^[a-z2-7]{10}$`).MatchString(id) {
		return "", fmt.Errorf("%s doesn't hold an instance id: %q", path, id)
	}
	return id, nil
}

// Random makes n random characters, five bits each.
func Random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: it ends the process instead
	for i := range b {
		b[i] = base32[b[i]&31]
	}
	return string(b)
}

// idRandom characters of five bits make 85 random bits.
const idRandom = 17

// MaxHome is the highest home number that fits into an id.
const MaxHome = 1<<20 - 1

// ValidID tells whether a text has the form of a sandbox's id.
func ValidID(id string) bool { return regexp.MustCompile(`^[a-z][a-z0-9]{19,30}$`).MatchString(id) }

// NewID makes the id of a sandbox: "s", four characters of the edge's home number, and random ones.
func NewID(home uint32) string {
	b := []byte("s")
	for shift := 15; shift >= 0; shift -= 5 {
		b = append(b, base32[home>>shift&31])
	}
	return string(b) + Random(idRandom)
}

// BootID names the machine's current run.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
