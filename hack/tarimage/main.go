// Command tarimage makes the image NAME in the store STORE of the tar on stdin, in place of one of that name:
//
//	mmdebstrap … | go run ./hack/tarimage STORE NAME
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/importer"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tarimage:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("want STORE NAME, not %q", args)
	}
	store := image.NewStore(slog.New(slog.DiscardHandler), args[0])
	im, err := importer.New(importer.Config{Dir: args[0], Images: store})
	if err != nil {
		return err
	}
	made, err := im.Import(ctx, api.ImageImport{Name: args[1], Replace: true}, in, nil)
	if err == nil {
		fmt.Fprintln(out, made.Name, made.Digest, made.SizeBytes)
	}
	return err
}
