package api

import (
	"time"
	"unicode/utf8"
)

// What a file is.
const (
	FileRegular = "file"
	FileDir     = "directory"
	FileLink    = "symlink"
	FileFIFO    = "fifo"
	FileSocket  = "socket"
	FileDevice  = "device"
)

// FileInfo is what a sandbox knows of a file, with the ids that are seen inside.
type FileInfo struct {
	Name      string    `json:"name"`                 // the last part of its path; what isn't UTF-8 in it is replaced
	NameB64   []byte    `json:"name_b64,omitempty"`   // the exact name, where it isn't UTF-8
	Type      string    `json:"type"`                 // file, directory, symlink, fifo, socket or device
	Size      int64     `json:"size"`                 // in bytes
	Mode      uint32    `json:"mode"`                 // the permission bits with setuid, setgid and sticky: 420 is 0644
	UID       uint32    `json:"uid"`                  // owner
	GID       uint32    `json:"gid"`                  // group
	ModTime   time.Time `json:"mtime"`                // of the content
	Target    string    `json:"target,omitempty"`     // of a symlink, where asked for
	TargetB64 []byte    `json:"target_b64,omitempty"` // the exact target, where it isn't UTF-8
	SHA256    string    `json:"sha256,omitempty"`     // of the content, where asked for
}

// RawName is the exact name.
func (f *FileInfo) RawName() string { return raw(f.Name, f.NameB64) }

// RawTarget is the exact target.
func (f *FileInfo) RawTarget() string { return raw(f.Target, f.TargetB64) }

func raw(text string, exact []byte) string {
	if exact != nil {
		return string(exact)
	}
	return text
}

// SetName sets the name from its bytes.
func (f *FileInfo) SetName(name string) { f.Name, f.NameB64 = written(name) }

// SetTarget sets the target from its bytes.
func (f *FileInfo) SetTarget(target string) { f.Target, f.TargetB64 = written(target) }

func written(name string) (text string, exact []byte) {
	if utf8.ValidString(name) {
		return name, nil
	}
	text = ""
	for _, r := range name { // each broken byte becomes U+FFFD
		text += string(r)
	}
	return text, []byte(name)
}

// The operations of [FileRequest].
const (
	FileStat    = "stat"
	FileMkdir   = "mkdir"
	FileRename  = "rename"
	FileRemove  = "remove"
	FileChmod   = "chmod"
	FileChown   = "chown"
	FileSymlink = "symlink"
)

// FileRequest says what is to be done with a file of a sandbox. Paths are absolute and of any bytes but NUL.
type FileRequest struct {
	Op        string  `json:"op,omitempty"`         // of the requests without content
	Path      []byte  `json:"path"`                 // the file
	To        []byte  `json:"to,omitempty"`         // rename: the new path; symlink: what it points at
	User      string  `json:"user,omitempty"`       // who does it: a name, uid, name:group or uid:gid; default: the sandbox's user
	Offset    int64   `json:"offset,omitempty"`     // read: from here
	Length    int64   `json:"length,omitempty"`     // read: so many bytes; 0: to the end
	MaxBytes  int64   `json:"max_bytes,omitempty"`  // read, write: refuse more; 0: no limit but the disk's
	Mode      *uint32 `json:"mode,omitempty"`       // write, mkdir, chmod: permission bits
	UID       *uint32 `json:"uid,omitempty"`        // chown
	GID       *uint32 `json:"gid,omitempty"`        // chown
	Parents   bool    `json:"parents,omitempty"`    // write, mkdir: make missing directories
	Recursive bool    `json:"recursive,omitempty"`  // remove, watch: with everything below
	NoReplace bool    `json:"no_replace,omitempty"` // write, rename: refuse when the new path exists
	NoFollow  bool    `json:"no_follow,omitempty"`  // stat, chown: of a symlink itself
	Sync      bool    `json:"sync,omitempty"`       // write: on the disk before the answer
	Digest    bool    `json:"digest,omitempty"`     // stat: with SHA-256
}

// What a [FileEvent] tells.
const (
	FileReady       = "ready"        // the first event: from here on nothing is missed in silence
	FileCreated     = "create"       // there is a new file or directory; moved: it came from a place that isn't watched
	FileModified    = "modify"       // content was written or cut
	FileClosedWrite = "closed_write" // who had it open for writing has closed it
	FileAttrib      = "attrib"       // mode, owner, times or the like have changed
	FileDeleted     = "delete"       // it has gone; moved: to a place that isn't watched
	FileRenamed     = "rename"       // it was moved from path to to, both watched
	FileOverflow    = "overflow"     // events were lost: look at the files themselves; the watch goes on
	FileSkipped     = "skipped"      // a directory isn't watched; reason says why
	FileGone        = "gone"         // the last event: what is watched was removed, moved away or unmounted
	FileWatchError  = "error"        // the last event where the watch can't go on: error says why
)

// FileEvent is what happened to a file that is watched. Paths are absolute and as they were at that time.
type FileEvent struct {
	Type        string `json:"type"`                  // ready, create, modify, closed_write, attrib, delete, rename, overflow, skipped, gone or error
	Path        string `json:"path,omitempty"`        // what isn't UTF-8 in it is replaced
	PathB64     []byte `json:"path_b64,omitempty"`    // the exact path, where it isn't UTF-8
	To          string `json:"to,omitempty"`          // rename: the new path
	ToB64       []byte `json:"to_b64,omitempty"`      // the exact new path, where it isn't UTF-8
	Dir         bool   `json:"dir,omitempty"`         // it is a directory
	Moved       bool   `json:"moved,omitempty"`       // create, delete: by being moved
	Directories int    `json:"directories,omitempty"` // ready: how many are watched
	Reason      Code   `json:"reason,omitempty"`      // skipped: why
	Error       *Error `json:"error,omitempty"`       // error: why
}

// RawPath is the exact path.
func (e *FileEvent) RawPath() string { return raw(e.Path, e.PathB64) }

// RawTo is the exact new path.
func (e *FileEvent) RawTo() string { return raw(e.To, e.ToB64) }

// SetPath sets the path from its bytes.
func (e *FileEvent) SetPath(path string) { e.Path, e.PathB64 = written(path) }

// SetTo sets the new path from its bytes.
func (e *FileEvent) SetTo(path string) { e.To, e.ToB64 = written(path) }

// Unpacked is what became of a tar stream.
type Unpacked struct {
	Entries int64 `json:"entries"`
}
