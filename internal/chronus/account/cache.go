package account

import (
	"sync"
	"time"
)

const rootFor = time.Second // how long what was read of the account files counts for root

// Cache is a sandbox's accounts. The files are read for everybody but root, whose entry hardly ever changes, so an account
// or a group is there for the command after the one that made it. It is safe for concurrent use; its lock is held while
// the files are read.
type Cache struct {
	mu    sync.Mutex
	files Files
	read  time.Time
	root  *Account
	ahead ahead
}

// ahead is how far the reading before the first command has come.
type ahead int

const (
	aheadNot ahead = iota
	aheadDue
	aheadDone // nothing has been done in the sandbox since
)

// Expect says that nothing has been done in the sandbox yet, so that Ahead may read.
func (c *Cache) Expect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = aheadDue
}

// Ahead reads for the first Find, if that hasn't come and nothing was touched.
func (c *Cache) Ahead(read func(*Files) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead == aheadDue && read(&c.files) == nil {
		c.ahead = aheadDone
	}
}

// Touch says that files of the sandbox may change.
func (c *Cache) Touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = aheadNot
}

// Find is [Files.Lookup] in what read finds, which fills in what is in the files now and may use their memory.
func (c *Cache) Find(who string, read func(*Files) error) (*Account, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	root := who == "" || who == "0" || who == "root"
	if root && c.root != nil && time.Since(c.read) < rootFor {
		return c.root, nil
	}
	known := c.ahead == aheadDone
	c.ahead = aheadNot
	if !known {
		if err := read(&c.files); err != nil {
			return nil, err
		}
	}
	c.read, c.root = time.Now(), nil
	acc, err := c.files.Lookup(who)
	if root {
		c.root = acc
	}
	return acc, err
}
