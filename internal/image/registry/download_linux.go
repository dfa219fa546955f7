package registry

import (
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image/importer"
)

// parcel is a layer that was ordered.
type parcel struct {
	d       descriptor
	foreign bool
	ready   chan struct{} // closed once it's here, or never will be

	// Constant once ready is closed.
	file *os.File
	err  error

	left atomic.Int32 // layers of the image that it has yet to be opened for: the same may be there more than once
}

// downloads fetches the layers of an image, a few at a time, in the order in which they are needed. Each is in a file
// without a name until it was read.
type downloads struct {
	s    *session
	work *importer.Work
	got  func(int64)
	warn func(string)

	parcels []*parcel
	of      map[string]*parcel

	next   atomic.Int32
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// fetch begins to fetch layers. The caller stops it.
func (dl *downloads) fetch(ctx context.Context, layers []descriptor) {
	dl.of = map[string]*parcel{}
	for _, l := range layers {
		p := dl.of[l.Digest]
		if p == nil {
			p = &parcel{d: l, ready: make(chan struct{}), foreign: isForeign(l)}
			dl.of[l.Digest] = p
			dl.parcels = append(dl.parcels, p)
		}
		p.left.Add(1)
	}
	ctx, dl.cancel = context.WithCancelCause(ctx)
	for range min(parallelBlobs, len(dl.parcels)) {
		dl.wg.Go(func() {
			for {
				i := int(dl.next.Add(1)) - 1
				if i >= len(dl.parcels) {
					return
				}
				p := dl.parcels[i]
				p.file, p.err = dl.bring(ctx, p)
				if p.err != nil {
					dl.cancel(p.err) // the others are for nothing
				}
				close(p.ready)
			}
		})
	}
}

// stop ends what is on its way, and gives back what has come.
func (dl *downloads) stop() {
	dl.cancel(context.Canceled)
	dl.wg.Wait()
	for _, p := range dl.parcels {
		if p.file != nil {
			p.file.Close() // twice, where it was read
		}
	}
}

func (dl *downloads) bring(ctx context.Context, p *parcel) (*os.File, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f, err := dl.work.File()
	if err != nil {
		return nil, err
	}
	t := transfer{s: dl.s, d: p.d, to: f, got: dl.got, warn: dl.warn}
	if err := t.run(ctx); err != nil {
		f.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, p.explain(err)
	}
	return f, nil
}

// explain says of a layer that the registry hasn't that it was never meant to have it.
func (p *parcel) explain(err error) error {
	if p.foreign && api.IsCode(err, api.CodeNoSuchImage) {
		return refusal("push the image with a tool that takes such layers along",
			"layer %s isn't in the registry, only at an address that the image names; nothing is fetched from there", short(p.d.Digest))
	}
	return err
}

// layers are what the importer reads, from the bottom up.
func (dl *downloads) layers(ctx context.Context, list []descriptor) []importer.Layer {
	out := make([]importer.Layer, 0, len(list))
	for _, d := range list {
		p := dl.of[d.Digest]
		out = append(out, importer.Layer{Name: d.Digest, Open: func() (io.ReadCloser, error) {
			select {
			case <-p.ready:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			if p.err != nil {
				return nil, p.err
			}
			return &opened{io.NewSectionReader(p.file, 0, p.d.Size), p}, nil
		}})
	}
	return out
}

// opened is a layer that is being read. Its room on the disk is given back as soon as nobody needs it any more.
type opened struct {
	io.Reader
	p *parcel
}

// Close implements [io.Closer].
func (o *opened) Close() error {
	if o.p.left.Add(-1) == 0 {
		return o.p.file.Close()
	}
	return nil
}
