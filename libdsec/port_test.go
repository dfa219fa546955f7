package libdsec_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/libdsec"
)

// servePort is a sandbox with programs on a few ports: 7 echoes, 80 is a web server of one page, 9 breaks off, and 13 ends
// both ways as soon as it has said something.
func servePort(ctx context.Context, st *aether.Stream) error {
	port := string(st.Open().Body)
	if st.Open().Method != "port.dial" || port != "7" && port != "80" && port != "9" && port != "13" {
		return api.Errorf(api.CodePortUnreachable, "nothing in the sandbox listens on port %s", port)
	}
	if err := st.Send(ctx, aether.MsgReply, []byte("127.0.0.1:"+port)); err != nil {
		return err
	}
	say := func(what string) error { return st.Write(ctx, aether.Stdout, []byte(what)) }
	switch port {
	case "80":
		f, err := st.Recv(ctx) // the request
		if err != nil {
			return err
		}
		f.Release()
		return errors.Join(say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"), st.CloseWrite(aether.Stdout))
	case "9":
		body, err := json.Marshal(api.Errorf(api.CodePortFailed, "reset"))
		return errors.Join(err, say("half"), st.Send(ctx, aether.MsgReply, body))
	case "13":
		return errors.Join(say("now"), st.CloseWrite(aether.Stdout))
	}
	for {
		f, err := st.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(f.Data) > 0 {
			err = st.Write(ctx, aether.Stdout, f.Data)
		}
		end := f.End
		f.Release()
		if end {
			return st.CloseWrite(aether.Stdout)
		}
		if err != nil {
			return err
		}
	}
}

func ExampleSandbox_Dial() {
	client, done := exampleClient() // libdsec.New()
	defer done()
	ctx := context.Background()
	sb := client.Sandbox("s1")
	conn, err := sb.Dial(ctx, 7) // where a program echoes
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "hello, port")
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		fmt.Println(err)
		return
	}
	echo, err := io.ReadAll(conn)
	fmt.Printf("%s, %v\n", echo, err)

	_, err = sb.Dial(ctx, 8)
	fmt.Println(libdsec.IsCode(err, api.CodePortUnreachable))
	// Output:
	// hello, port, <nil>
	// true
}

func ExampleSandbox_HTTPClient() {
	client, done := exampleClient() // libdsec.New()
	defer done()
	web := client.Sandbox("s1").HTTPClient(80)
	defer web.CloseIdleConnections()
	resp, err := web.Get("http://localhost/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	fmt.Printf("%s %s, %v\n", resp.Status, page, err)
	// Output: 200 OK hello, <nil>
}

func dialPort(t *testing.T, port int) net.Conn {
	t.Helper()
	s := newServer(t)
	s.other = servePort
	c, err := s.client().Sandbox("s1").Dial(testContext(t), port)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPortFailureComesAfterTheData: and it stays.
func TestPortFailureComesAfterTheData(t *testing.T) {
	c := dialPort(t, 9)
	got, err := io.ReadAll(c)
	if string(got) != "half" || !libdsec.IsCode(err, api.CodePortFailed) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := c.Read(make([]byte, 1)); !libdsec.IsCode(err, api.CodePortFailed) {
		t.Errorf("again: %v", err)
	}
}

// TestPortTakesNothingMore: a write to a program that has gone fails, also when nobody reads any more.
func TestPortTakesNothingMore(t *testing.T) {
	c := dialPort(t, 13)
	if got, err := io.ReadAll(c); string(got) != "now" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	ctx := testContext(t)
	for ctx.Err() == nil {
		if _, err := c.Write([]byte("x")); err != nil {
			return
		}
	}
	t.Error("writes go on and on")
}

// TestPortDeadlines: they end calls, those that wait already too, and can be moved.
func TestPortDeadlines(t *testing.T) {
	c := dialPort(t, 7)
	waits := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		waits <- err
	}()
	for _, at := range []time.Time{time.Now().Add(time.Hour), {}, time.Now().Add(time.Millisecond)} {
		if err := c.SetDeadline(at); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waits; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() = %v", err)
	}
	// The two directions have a timer each.
	var err error
	for ctx := testContext(t); err == nil && ctx.Err() == nil; {
		_, err = c.Write([]byte("x"))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write() = %v", err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write() after Close = %v", err)
	}
	if err := c.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("SetDeadline() after Close = %v", err)
	}
}
