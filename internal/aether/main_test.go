package aether_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/aether/unixfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ends are the options of the two ends of a test connection.
type ends struct {
	client, server         aether.Options
	clientSock, serverSock unixfd.Options
}

// connect makes a connection over a socketpair whose server end runs handler.
func connect(t testing.TB, e ends, handler func(context.Context, *aether.Stream)) *aether.Conn {
	t.Helper()
	client, server := dial(t, e)
	serve(t, server, handler)
	return client
}

func serve(t testing.TB, c *aether.Conn, handler func(context.Context, *aether.Stream)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Serve(context.Background(), handler) //nolint:errcheck // it always tells how the connection ended
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
}

func dial(t testing.TB, e ends) (client, server *aether.Conn) {
	t.Helper()
	a, b, err := unixfd.Pair(e.clientSock, e.serverSock)
	if err != nil {
		t.Fatal(err)
	}
	return handshake(t, a, b, e)
}

func handshake(t testing.TB, a, b aether.Transport, e ends) (client, server *aether.Conn) {
	t.Helper()
	errs := make(chan error, 1)
	go func() {
		var err error
		server, err = aether.Server(b, e.server)
		errs <- err
	}()
	client, err := aether.Client(a, e.client)
	if serr := <-errs; err != nil || serr != nil {
		t.Fatalf("handshake: client %v, server %v", err, serr)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
