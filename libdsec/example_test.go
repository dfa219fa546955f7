package libdsec_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

// exampleClient makes a client of a server that runs a few toy commands; a program uses libdsec.New().
func exampleClient() (client *libdsec.Client, done func()) {
	s := newExampleServer()
	c, err := libdsec.New(libdsec.WithEndpoint(s.http.URL, testToken))
	if err != nil {
		panic(err)
	}
	return c, func() {
		if err := c.Close(); err != nil {
			panic(err)
		}
		s.close()
	}
}

func ExampleSandbox_Exec() {
	client, done := exampleClient() // libdsec.New()
	defer done()
	ctx := context.Background()
	sb, err := client.Create(ctx, api.Spec{Image: "busybox"})
	if err != nil {
		slog.New(slog.NewTextHandler(os.Stderr, nil)).Error("create", slog.Any("err", err))
		return
	}
	defer sb.Stop(ctx) //nolint:errcheck // an example

	res, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"printf", "hello"}})
	fmt.Printf("%s, exit code %d, error %v\n", res.Stdout, *res.ExitCode, err)

	_, err = sb.Exec(ctx, libdsec.Cmd{Argv: []string{"/nope"}})
	if e, ok := errors.AsType[*api.Error](err); ok {
		fmt.Println(e.Code, *e.ExitCode)
	}
	// Output:
	// hello, exit code 0, error <nil>
	// command_not_found 127
}

func ExampleSandbox_Start() {
	client, done := exampleClient() // libdsec.New()
	defer done()
	ctx := context.Background()
	sb := client.Sandbox("s1")
	p, err := sb.Start(ctx, libdsec.Cmd{Argv: []string{"cat"}, Stdin: strings.NewReader("a stream of any length")}, libdsec.StartOptions{
		Handlers: libdsec.Handlers{OnStdout: func(b []byte) error {
			_, err := os.Stdout.Write(b)
			return err
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	st, err := p.Wait(ctx)
	fmt.Printf("\nexit code %d of %d bytes, error %v\n", *st.ExitCode, st.StdoutTotal, err)
	// Output:
	// a stream of any length
	// exit code 0 of 22 bytes, error <nil>
}

func ExampleSandbox_Attach() {
	client, done := exampleClient() // libdsec.New()
	defer done()
	ctx := context.Background()
	sb := client.Sandbox("s1")
	p, err := sb.Start(ctx, libdsec.Cmd{Argv: []string{"printf", "0123456789"}}, libdsec.StartOptions{Detach: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	// Any program that knows the id can go on from where another one was.
	again, err := sb.Attach(ctx, p.ID(), libdsec.AttachOptions{StdoutOffset: 7, Handlers: libdsec.Handlers{
		OnStdout: func(b []byte) error { fmt.Printf("%s\n", b); return nil },
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := again.Wait(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: 789
}

func TestExamplesClean(t *testing.T) {
	_, done := exampleClient()
	done()
}
