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
}

// Find is [Files.Lookup] in what read finds, which fills in what is in the files now and may use their memory.
func (c *Cache) Find(who string, read func(*Files) error) (*Account, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	root := who == "" || who == "0" || who == "root"
	if root && c.root != nil && time.Since(c.read) < rootFor {
		return c.root, nil
	}
	if err := read(&c.files); err != nil {
		return nil, err
	}
	c.read, c.root = time.Now(), nil
	acc, err := c.files.Lookup(who)
	if root {
		c.root = acc
	}
	return acc, err
}
