package iam_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestRevokeAtOnce: what runs for a token ends when the token does, on connections that are open too, and its commands
// with it; the sandbox and other tokens' work go on.
func TestRevokeAtOnce(t *testing.T) {
	n := testbed.Shared(t)
	_, admin := project(t, n)
	gone, kept := token(t, admin, api.TokenSpec{}), token(t, admin, api.TokenSpec{})
	c, other := client(t, n, gone.Secret), client(t, n, kept.Secret)
	sb, err := c.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Sandbox(sb.ID()).Stop(t.Context()) //nolint:errcheck // the node ends anyway
	var wg sync.WaitGroup
	open := make(chan struct{}, 2) // both commands say when they run
	hang := func(c *libdsec.Client, told func(error)) {
		wg.Go(func() {
			p, err := c.Sandbox(sb.ID()).Start(t.Context(), libdsec.Cmd{Shell: "echo up; exec sleep 1000"}, libdsec.StartOptions{
				Handlers: libdsec.Handlers{OnStdout: func([]byte) error { open <- struct{}{}; return nil }},
			})
			if err == nil {
				_, err = p.Wait(t.Context())
			}
			told(err)
		})
	}
	hang(c, func(err error) { wantCode(t, "the command of a revoked token", err, api.CodeUnauthenticated) })
	stopped := make(chan struct{})
	hang(other, func(err error) {
		select {
		case <-stopped:
		default:
			t.Errorf("another token's command has ended: %v", err)
		}
	})
	execs := make(chan error, 1) // a plain exec, which its caller's leaving cancels
	wg.Go(func() {
		_, err := c.Sandbox(sb.ID()).Exec(t.Context(), libdsec.Cmd{Shell: "touch /running; sleep 1000"})
		execs <- err
	})
	followed := make(chan error, 1) // and a stream over plain HTTP
	wg.Go(func() {
		a := rest(t, n, asking{secret: gone.Secret}, "GET /v1/sandboxes/"+sb.ID()+"/events?follow=1")
		followed <- errors.New(a.body)
	})
	<-open
	<-open
	mine := admin.Sandbox(sb.ID())
	testbed.Until(t, time.Minute, "the exec runs", func() bool { return testbed.Output(t, mine, "ls /running 2>/dev/null || true") != "" })
	if _, err := admin.RevokeToken(t.Context(), gone.Secret); err != nil {
		t.Fatal(err)
	}
	_, err = c.Sandbox(sb.ID()).Exec(t.Context(), libdsec.Cmd{Argv: []string{"true"}})
	wantCode(t, "a new exec", err, api.CodeUnauthenticated)
	_, err = c.Get(t.Context(), sb.ID())
	wantCode(t, "a request", err, api.CodeUnauthenticated)
	wantCode(t, "the exec that ran", <-execs, api.CodeUnauthenticated)
	<-followed
	testbed.Until(t, time.Minute, "the exec's command is gone", func() bool {
		return testbed.Output(t, mine, "ps | grep -c '[s]leep 1000'") <= "2" // the two started ones outlive their connection
	})
	if _, err := other.Sandbox(sb.ID()).Exec(t.Context(), libdsec.Cmd{Argv: []string{"true"}}); err != nil {
		t.Errorf("another token: %v", err)
	}
	close(stopped)
	if _, err := mine.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestExpiryOnAnOpenConnection: an expired token is refused, also where it was let in before.
func TestExpiryOnAnOpenConnection(t *testing.T) {
	n := testbed.Shared(t)
	_, admin := project(t, n)
	sb, err := admin.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Stop(t.Context()) //nolint:errcheck // the node ends anyway
	c := client(t, n, token(t, admin, api.TokenSpec{ExpiresIn: new(int64(3))}).Secret)
	var last error
	testbed.Until(t, time.Minute, "the token expires", func() bool {
		_, last = c.Sandbox(sb.ID()).Exec(t.Context(), libdsec.Cmd{Argv: []string{"true"}})
		return last != nil
	})
	wantCode(t, "an exec", last, api.CodeUnauthenticated)
}

// TestKillWhileCreating: kill -9 loses no token that was answered, and none comes back that was revoked.
func TestKillWhileCreating(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	var mu sync.Mutex // guards the two
	var answered, revoked []api.NewToken
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c, err := libdsec.New(libdsec.WithEndpoint(n.Endpoint, n.Token))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for i := 0; ; i++ {
				made, err := c.CreateToken(t.Context(), api.TokenSpec{Label: "kill"})
				if err != nil {
					return
				}
				ended := false
				if i%3 == 0 {
					if _, err := c.RevokeToken(t.Context(), made.ID); err != nil {
						return // it isn't known whether it was revoked
					}
					ended = true
				}
				mu.Lock()
				if ended {
					revoked = append(revoked, made)
				} else {
					answered = append(answered, made)
				}
				mu.Unlock()
			}
		})
	}
	testbed.Until(t, time.Minute, "there are tokens", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(answered) >= 60 && len(revoked) >= 10
	})
	n.Kill(t)
	wg.Wait()
	n.Restart(t)
	t.Logf("%d tokens answered, %d revoked", len(answered), len(revoked))
	for _, made := range answered {
		if a := rest(t, n, asking{secret: made.Secret}, "GET /v1/tokens/self"); a.status != 200 {
			t.Errorf("token %s is lost: %d %s", made.ID, a.status, a.body)
		}
	}
	for _, made := range revoked {
		if a := rest(t, n, asking{secret: made.Secret}, "GET /v1/tokens/self"); a.status != 401 {
			t.Errorf("token %s is back: %d", made.ID, a.status)
		}
	}
}

// TestNoSecretIsKept: neither tokens nor what is given to commands is in the audit log, the server's log or the store.
func TestNoSecretIsKept(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	const password = "hunter2-hunter2"
	made := token(t, n.Client, api.TokenSpec{Label: "x"})
	c := client(t, n, made.Secret)
	sb, err := c.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: "echo $PW", Env: map[string]string{"PW": password}, Stdin: strings.NewReader(password)}); err != nil {
		t.Fatal(err)
	}
	// A whole secret where an id belongs, a foreign one, and a refused one.
	rest(t, n, asking{secret: n.Token}, "GET /v1/tokens/"+made.Secret)
	rest(t, n, asking{secret: made.Secret}, "DELETE /v1/tokens/"+made.Secret)
	rest(t, n, asking{secret: made.Secret + "x"}, "GET /v1/sandboxes")
	rest(t, n, asking{n.Token, made.Secret}, "GET /v1/sandboxes")
	records := 0
	for rec, err := range n.Client.Audit(t.Context(), api.AuditQuery{All: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Token == made.ID || rec.Resource == "token/"+made.ID {
			records++
		}
	}
	if records < 4 { // created, a sandbox, an exec, a refusal
		t.Errorf("%d records tell of the token", records)
	}
	n.Stop(t)
	secret := made.Secret[len(made.Prefix):]
	err = filepath.WalkDir(n.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "tokens.json" || d.Name() == "context.json" {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, word := range []string{secret, password, n.Token} {
			if strings.Contains(string(raw), word) {
				t.Errorf("%s holds a secret: …%.60q", path, string(raw)[max(0, strings.Index(string(raw), word)-30):])
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	n.Restart(t)
	if a := rest(t, n, asking{secret: made.Secret}, "GET /v1/tokens/self"); a.status != 200 {
		t.Errorf("after a restart: %d %s", a.status, a.body)
	}
}
