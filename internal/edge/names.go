package edge

import "github.com/dsec-io/dsec/internal/edge/instance"

// Instance is a data folder that this process holds: one running DSec on this machine.
type Instance = instance.Instance

// ErrInUse says that another process has the data folder.
var ErrInUse = instance.ErrInUse

// OpenInstance takes the data folder dir, which it makes when missing. While another process has it the error is
// ErrInUse and names that process.
func OpenInstance(dir string) (*Instance, error) { return instance.Open(dir) }

// NewID makes the id of a sandbox of the edge with this home number.
func NewID(home uint32) string { return instance.NewID(home) }
