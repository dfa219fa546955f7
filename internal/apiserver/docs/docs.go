// Package docs holds what the server says about itself: the OpenAPI document and its page.
//
// Each is made when it is first asked for, and kept. Both are the same for everybody and name nobody. Safe for
// concurrent use.
package docs

import (
	"sync"

	"github.com/dsec-io/dsec/api/openapi"
	"github.com/dsec-io/dsec/api/openapi/page"
)

// File is an answer.
type File struct {
	Body    []byte
	Headers [][2]string
}

// Site makes the files.
type Site struct {
	Document func() (File, error)
	Page     func() (File, error)
}

// New makes a Site that names the routes which answer 501.
func New(pending []string) Site {
	described := sync.OnceValues(func() (*openapi.Document, error) { return openapi.New(pending) })
	return Site{
		Document: sync.OnceValues(func() (File, error) {
			d, err := described()
			if err != nil {
				return File{}, err
			}
			body, err := d.JSON()
			return File{body, [][2]string{{"Content-Type", "application/json"}, {"Cache-Control", "no-cache"}}}, err
		}),
		Page: sync.OnceValues(func() (File, error) {
			d, err := described()
			if err != nil {
				return File{}, err
			}
			p, err := page.New(d)
			return File{p.HTML, [][2]string{
				{"Content-Type", "text/html; charset=utf-8"}, {"Cache-Control", "no-cache"}, {"Content-Security-Policy", p.Policy}, {"Referrer-Policy", "no-referrer"},
			}}, err
		}),
	}
}
