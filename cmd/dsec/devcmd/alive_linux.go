package devcmd

import (
	"context"
	"time"

	"github.com/dsec-io/dsec/libdsec"
)

// aliveLimit is how long a server may take to show that it's there.
const aliveLimit = 2 * time.Second

// alive tells whether the server of the current context answers. Anything wrong on the way there means no.
func alive(ctx context.Context, store libdsec.Contexts) bool {
	name, err := store.Current()
	if err != nil || name == "" {
		return false
	}
	s, err := store.Read(name)
	if err != nil {
		return false
	}
	c, err := libdsec.New(libdsec.WithSettings(s))
	if err != nil {
		return false
	}
	defer c.Close() //nolint:errcheck // nothing was sent that could be lost
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	return c.Healthy(ctx) == nil
}
