package iam_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/test/testbed"
)

// TestRevokeEndsUploads: a body that doesn't come keeps no request open whose token was revoked.
func TestRevokeEndsUploads(t *testing.T) {
	n := testbed.Shared(t)
	_, admin := project(t, n)
	gone := token(t, admin, api.TokenSpec{})
	sb, err := admin.Create(t.Context(), api.Spec{Image: "busybox"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Stop(t.Context()) //nolint:errcheck // the node ends anyway
	addr := strings.TrimPrefix(n.Endpoint, "http://")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "PUT /v1/sandboxes/%s/files?path=/f HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\nabc", sb.ID(), addr, gone.Secret); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RevokeToken(t.Context(), gone.Secret); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("the upload goes on: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("the upload ends with %d, %s, %v", resp.StatusCode, body, err)
	}
}
