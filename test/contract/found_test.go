package contract

import (
	"archive/tar"
	"bytes"
	"net/http"
	"testing"

	"github.com/dsec-io/dsec/test/testbed"
)

// What TestContract has found, each by a test of its own.

// TestTarOfALinkItself: a link that isn't followed is packed as a link; it was packed as a link with content, a fault of ours.
func TestTarOfALinkItself(t *testing.T) {
	w := &world{t: t, n: testbed.Shared(t), wire: newWire(testbed.Shared(t)), processes: map[string]string{}}
	defer w.wire.close()
	w.renew()
	defer w.must("DELETE", "/v1/sandboxes/"+w.box, "", nil)
	for target, kind := range map[string]byte{"/w/link&no_follow=true": tar.TypeSymlink, "/w/link": tar.TypeReg} {
		a, err := w.wire.do(w.authorised("GET", "/v1/sandboxes/"+w.box+"/files?tar=true&path="+target, ""))
		if err != nil || a.status != http.StatusOK {
			t.Fatalf("%s: %v, %v", target, a, err)
		}
		h, err := tar.NewReader(bytes.NewReader(a.body)).Next()
		if err != nil || h.Typeflag != kind || kind == tar.TypeSymlink && h.Linkname != "file" {
			t.Errorf("%s: %+v, %v", target, h, err)
		}
	}
}

// TestHeadOfAStreamEnds: an answer that goes on for ever is no reason for its head to; the connection was stuck.
func TestHeadOfAStreamEnds(t *testing.T) {
	w := &world{t: t, n: testbed.Shared(t), wire: newWire(testbed.Shared(t)), processes: map[string]string{}}
	defer w.wire.close()
	w.renew()
	defer w.must("DELETE", "/v1/sandboxes/"+w.box, "", nil)
	for _, path := range []string{"/processes/" + w.processes["input"] + "/attach", "/events?follow=true", "/logs?follow=true"} {
		a, err := w.wire.do(w.authorised("HEAD", "/v1/sandboxes/"+w.box+path, ""))
		if err != nil || a.status != http.StatusOK {
			t.Fatalf("HEAD %s: %v, %v", path, a, err)
		}
		if a, err = w.wire.do(w.authorised("GET", "/v1/sandboxes/"+w.box, "")); err != nil || a.status != http.StatusOK {
			t.Fatalf("after HEAD %s: %v, %v", path, a, err)
		}
	}
}

// TestImageCommandHasArgv: a process without a command of its own is told with a list, not with null.
func TestImageCommandHasArgv(t *testing.T) {
	w := &world{t: t, n: testbed.Shared(t), wire: newWire(testbed.Shared(t)), processes: map[string]string{}}
	defer w.wire.close()
	w.renew()
	defer w.must("DELETE", "/v1/sandboxes/"+w.box, "", nil)
	var p struct{ Argv []string }
	w.must("POST", "/v1/sandboxes/"+w.box+"/processes", "{}", &p)
	if p.Argv == nil {
		t.Error("argv is null")
	}
}
