package libdsec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// Images are the images of the server's machine, as sandboxes can be made from them.
type Images struct{ client *Client }

// Images gives access to the images.
func (c *Client) Images() *Images { return &Images{c} }

// ImportOptions change how an image is made. The zero value finds out the format and refuses what can't be kept.
type ImportOptions struct {
	Format  string // "rootfs", "oci" or "docker"; empty: found out
	Replace bool   // take the place of an image of that name; sandboxes that live keep what they have
	// Squash gives files of ids above 65,535 to nobody, without setuid and capabilities, instead of refusing the image.
	Squash   bool
	Progress func(api.ImageEvent) // called now and then, until Import returns; nil: not
}

// Import makes an image of a tar of a file system, an OCI layout or what `docker save` writes, plain or compressed with
// gzip or zstd. The same input gives the same image. r is read as fast as the server takes it; after an error it may
// have been read in part.
func (i *Images) Import(ctx context.Context, name string, r io.Reader, o ImportOptions) (api.Image, error) {
	q := url.Values{"name": {name}}
	if o.Format != "" {
		q.Set("format", o.Format)
	}
	for key, set := range map[string]bool{"replace": o.Replace, "squash": o.Squash} {
		if set {
			q.Set(key, "1")
		}
	}
	const path = "/v1/images"
	// Only a Reader: the request must not close what isn't its own.
	body := io.NopCloser(r)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.client.base.String()+path+"?"+q.Encode(), body)
	if err != nil {
		return api.Image{}, api.Errorf(api.CodeInvalid, "%v", err)
	}
	i.client.sign(req)
	req.Header.Set("Content-Type", "application/x-tar")
	done, err := i.follow(ctx, req, o.Progress)
	if err == nil && done.Image == nil {
		err = errNoAnswer()
	}
	if err != nil {
		return api.Image{}, err
	}
	return *done.Image, nil
}

func errNoAnswer() error {
	return api.Errorf(api.CodeUnavailable, "the server's answer has nothing of what was asked for")
}

// Pull fetches an image from a registry: the node does, with the credentials in o for this once. The event says what came
// of it: the image, and whether it was there already. progress is called now and then, until Pull returns; nil: not.
func (i *Images) Pull(ctx context.Context, o api.ImagePull, progress func(api.ImageEvent)) (api.ImageEvent, error) {
	done, err := i.ask(ctx, "/v1/images/pull", o, progress)
	if err == nil && done.Image == nil {
		err = errNoAnswer()
	}
	return done, err
}

// Push sends an image to a registry: the node does, with the credentials in o for this once. progress is as in Pull.
func (i *Images) Push(ctx context.Context, name string, o api.ImagePush, progress func(api.ImageEvent)) (api.ImagePushed, error) {
	path, err := imagePath(name)
	if err != nil {
		return api.ImagePushed{}, err
	}
	done, err := i.ask(ctx, path+"/push", o, progress)
	if err == nil && done.Pushed == nil {
		err = errNoAnswer()
	}
	if err != nil {
		return api.ImagePushed{}, err
	}
	return *done.Pushed, nil
}

func (i *Images) ask(ctx context.Context, path string, body any, progress func(api.ImageEvent)) (api.ImageEvent, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return api.ImageEvent{}, api.Errorf(api.CodeInvalid, "encode request: %v", err)
	}
	req, err := i.client.request(ctx, http.MethodPost, path, raw)
	if err != nil {
		return api.ImageEvent{}, err
	}
	return i.follow(ctx, req, progress)
}

// follow makes a request whose answer is lines of progress, and returns the last.
func (i *Images) follow(ctx context.Context, req *http.Request, progress func(api.ImageEvent)) (api.ImageEvent, error) {
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := i.client.http.Do(req)
	if err != nil {
		return api.ImageEvent{}, i.client.broken(ctx, req.Method, req.URL.Path, err)
	}
	defer resp.Body.Close() // only read from
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return api.ImageEvent{}, problem(resp)
	}
	done, err := readEvents(resp.Body, progress)
	if e, typed := errors.AsType[*api.Error](err); typed {
		return done, e
	}
	if err != nil {
		return done, i.client.broken(ctx, req.Method, req.URL.Path, err)
	}
	return done, nil
}

// readEvents reads lines of progress up to the last, which says what was made.
func readEvents(r io.Reader, progress func(api.ImageEvent)) (api.ImageEvent, error) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return api.ImageEvent{}, err
		}
		var ev api.ImageEvent
		if err := json.Unmarshal(line, &ev); err != nil {
			return api.ImageEvent{}, err
		}
		switch {
		case ev.Error != nil:
			return api.ImageEvent{}, ev.Error
		case ev.Image != nil || ev.Pushed != nil:
			return ev, nil
		case progress != nil:
			progress(ev)
		}
	}
}

// List tells all images by name.
func (i *Images) List(ctx context.Context) ([]api.Image, error) {
	var list api.ImageList
	err := i.client.call(ctx, http.MethodGet, "/v1/images", nil, &list)
	return list.Items, err
}

// Inspect tells one image.
func (i *Images) Inspect(ctx context.Context, name string) (api.Image, error) {
	var im api.Image
	path, err := imagePath(name)
	if err == nil {
		err = i.client.call(ctx, http.MethodGet, path, nil, &im)
	}
	return im, err
}

// RemoveImageOptions change how an image is removed.
type RemoveImageOptions struct {
	Force bool // also if sandboxes live that were made from it; they go on with what they have
}

// Remove removes an image. While sandboxes live that were made from it, that's a conflict.
func (i *Images) Remove(ctx context.Context, name string, o RemoveImageOptions) (api.ImageRemoved, error) {
	var done api.ImageRemoved
	path, err := imagePath(name)
	if err != nil {
		return done, err
	}
	if o.Force {
		path += "?force=1"
	}
	err = i.client.call(ctx, http.MethodDelete, path, nil, &done)
	return done, err
}

// GCOptions change what a collection removes.
type GCOptions struct {
	All bool // also the images that no living sandbox was made from, but for those of the machine
}

// GC removes what broken-off imports have left.
func (i *Images) GC(ctx context.Context, o GCOptions) (api.ImageRemoved, error) {
	var done api.ImageRemoved
	path := "/v1/images/gc"
	if o.All {
		path += "?all=1"
	}
	err := i.client.call(ctx, http.MethodPost, path, nil, &done)
	return done, err
}

// Export gives the tree of an image as a tar, which gives the same image when it's imported. The caller closes it. An
// export that breaks off ends with an error and never with [io.EOF].
func (i *Images) Export(ctx context.Context, name string) (io.ReadCloser, error) {
	path, err := imagePath(name)
	if err != nil {
		return nil, err
	}
	resp, err := i.client.send(ctx, http.MethodGet, path+"/export", nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// imagePath is where an image is. A name that would change the path is none.
func imagePath(name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return "", api.FieldError(api.CodeNoSuchImage, "name", "", "there is no image %q", name)
	}
	return "/v1/images/" + url.PathEscape(name), nil
}
