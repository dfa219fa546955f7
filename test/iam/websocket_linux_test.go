package iam_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestRevokeEndsWebSockets: connections that have changed their protocol end with their token, too, and take no more
// input after it.
func TestRevokeEndsWebSockets(t *testing.T) {
	n := testbed.Shared(t)
	_, admin := project(t, n)
	gone := token(t, admin, api.TokenSpec{})
	sb, err := admin.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Stop(t.Context()) //nolint:errcheck // the node ends anyway
	p, err := sb.Start(t.Context(), libdsec.Cmd{Shell: "while read -r line; do echo $line >> /got; done"}, libdsec.StartOptions{StdinPipe: true, Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	at := n.Endpoint + "/v1/sandboxes/" + sb.ID()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, at+"/processes/"+p.ID()+"/attach", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + gone.Secret}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	say := func(what string) error {
		return ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"type":"stdin","data":%q}`, what))
	}
	if err := say("b25lCg=="); err != nil { // one
		t.Fatal(err)
	}
	testbed.Until(t, time.Minute, "the process has its input", func() bool { return testbed.Output(t, sb, "cat /got || true") == "one" })

	// A port's connection that was upgraded to something of the program's own.
	if _, err := sb.Start(t.Context(), libdsec.Cmd{Shell: `nc -l -p 8080 -e sh -c 'printf "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n"; exec cat'`}, libdsec.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	testbed.Until(t, time.Minute, "the port is open", func() bool { return testbed.Output(t, sb, "netstat -ltn | grep -c :8080 || true") == "1" })
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	fmt.Fprintf(c, "GET %s/ports/8080/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n", u.Path, gone.Secret)
	r := bufio.NewReader(c)
	if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}

	if _, err := admin.RevokeToken(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	_ = say("dHdvCg==") // two; it may be over already
	var said strings.Builder
	for err == nil {
		var data []byte
		_, data, err = ws.Read(ctx)
		said.WriteString(string(data))
	}
	if ctx.Err() != nil || !strings.Contains(said.String(), string(api.CodeUnauthenticated)) {
		t.Errorf("the WebSocket said %q and ended with %v", said.String(), err)
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("the port's connection goes on")
	}
	if got := testbed.Output(t, sb, "cat /got"); got != "one" {
		t.Errorf("the process got %q", got)
	}
}
