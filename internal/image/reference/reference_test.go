package reference_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/reference"
)

func TestParse(t *testing.T) {
	const d = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for text, want := range map[string][3]string{ // in full, what leads to it, the image's name
		"registry.example.com/app":                  {"registry.example.com/app:latest", "latest", "app"},
		"registry.example.com/team/app:1.2":         {"registry.example.com/team/app:1.2", "1.2", "app-1.2"},
		"registry.example.com:5000/app":             {"registry.example.com:5000/app:latest", "latest", "app"},
		"localhost/app:V1_RC":                       {"localhost/app:V1_RC", "V1_RC", "app-v1_rc"},
		"localhost:5000/a/b/c":                      {"localhost:5000/a/b/c:latest", "latest", "c"},
		"[::1]:5000/app":                            {"[::1]:5000/app:latest", "latest", "app"},
		"registry.example.com/app@" + d:             {"registry.example.com/app@" + d, d, "app"},
		"registry.example.com/team/app:1.2@" + d:    {"registry.example.com/team/app:1.2@" + d, d, "app-1.2"},
		"registry.example.com:5000/app:latest@" + d: {"registry.example.com:5000/app:latest@" + d, d, "app"},
	} {
		r, err := reference.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := [3]string{r.String(), r.ID(), r.ImageName()}; got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if again, err := reference.Parse(r.String()); err != nil || again != r {
			t.Errorf("%s: read again %+v, %v", text, again, err)
		}
	}
	for text, part := range map[string]string{
		"python": "before it", "python:3.12": "before it", "library/python": "before it", "": "before it", "/app": "before it",
		"registry.example.com/": "write HOST", "registry.example.com/App": "lower case", "registry.example.com/app:": "write HOST",
		"registry.example.com/app@sha256:12": "write HOST", "registry.example.com/app@": "write HOST",
		"user:secret@registry.example.com/app": "write HOST", "https://registry.example.com/app": "write HOST",
		"registry.example.com/app:a b": "write HOST", "registry.example.com/../app": "write HOST", "registry.example.com/app?x=1": "write HOST",
		"registry.example.com/app@sha512:" + strings.Repeat("ab", 64): "write HOST",
	} {
		_, err := reference.Parse(text)
		if !api.IsCode(err, api.CodeInvalid) || !strings.Contains(api.AsError(err).Hint, part) {
			t.Errorf("%q: %+v, want %q", text, err, part)
		}
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1": true, "127.0.0.1:80": true, "127.9.9.9:1": true, "[::1]": true, "[::1]:5000": true, "::1": true,
		"localhost.example.com": false, "127.0.0.1.example.com": false, "10.0.0.1:5000": false, "[fe80::1]:80": false, "registry.example.com": false, "": false,
	} {
		if got := reference.Loopback(host); got != want {
			t.Errorf("Loopback(%q) = %v", host, got)
		}
	}
}

func TestParsePlatform(t *testing.T) {
	for text, want := range map[string]string{"": "linux/" + runtime.GOARCH, "linux/amd64": "linux/amd64", "linux/arm/v7": "linux/arm/v7"} {
		if p, err := reference.ParsePlatform(text); err != nil || p.String() != want {
			t.Errorf("%q: %v, %v", text, p, err)
		}
	}
	for _, text := range []string{"amd64", "linux", "linux/", "linux//v7", "linux/a/b/c", "windows/amd64", "linux/A", "linux/a b"} {
		if _, err := reference.ParsePlatform(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("registry.example.com:5000/team/app:1.2@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
	f.Add("localhost/a")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := reference.Parse(s)
		if err != nil {
			return
		}
		if again, err := reference.Parse(r.String()); err != nil || again != r {
			t.Errorf("%q: %+v, read again %+v, %v", s, r, again, err)
		}
	})
}
