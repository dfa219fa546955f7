package imagecmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/internal/image/treetar"
	"github.com/dsec-io/dsec/libdsec"
)

func (a app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"img"},
		Short:   "Pull, import, list and remove the images that sandboxes start from",
		Example: "  dsec image pull registry.example.com/team/app:1.2\n  docker save alpine | dsec image import alpine -\n  dsec image ls",
		Args:    cli.Subcommand,
		RunE:    cli.Group,
	}
	cmd.AddCommand(a.imageImportCommand(), a.imageListCommand(), a.imageInspectCommand(), a.imageRemoveCommand(), a.imageGCCommand(),
		a.imageExportCommand(), a.imagePullCommand(), a.imagePushCommand())
	return cmd
}

func (a app) imageImportCommand() *cobra.Command {
	var o libdsec.ImportOptions
	var format string
	cmd := &cobra.Command{
		Use:        "import [flags] NAME PATH|-",
		SuggestFor: []string{"load", "build"},
		Short:      "Make an image of a folder, a tar, a `docker save` archive or an OCI layout",
		Long: "Makes an image of PATH, or of stdin: a folder, a tar of a file system, what `docker save` writes, or an OCI layout\n" +
			"(a folder or a tar), plain or compressed with gzip or zstd. Environment, user, working directory and command\n" +
			"come from the archive's configuration. The same input gives the same image.\n\n" +
			"Devices are refused, and so are owners above 65535, which a sandbox doesn't have; --squash gives those files to\n" +
			"nobody.",
		Example: "  dsec image import mine ./rootfs\n" +
			"  docker save alpine | dsec image import alpine -\n" +
			"  dsec image import --replace mine layout.tar.zst",
		Args: cli.Exactly("NAME", "PATH"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			src, size, err := a.openImport(args[1])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, src.Close()) }()
			return a.WithClient(func(c *libdsec.Client) error {
				var clean func()
				o.Progress, clean = a.progress(args[0], size)
				made, err := c.Images().Import(cmd.Context(), args[0], src, o)
				clean()
				if err != nil {
					return err
				}
				if format == cli.FormatTable {
					format = cli.FormatName
				}
				return a.image(format, made)
			})
		},
	}
	cmd.Flags().BoolVar(&o.Replace, "replace", false, "take the place of an image of that name")
	cmd.Flags().BoolVar(&o.Squash, "squash", false, "give files of owners above 65535 to nobody, without setuid and capabilities")
	cmd.Flags().StringVar(&o.Format, "format", "", "what PATH is: rootfs, oci or docker (default: found out)")
	cli.Complete(cmd, "format", cobra.FixedCompletions([]string{"rootfs", "oci", "docker"}, cobra.ShellCompDirectiveNoFileComp))
	cli.OutputFlag(cmd, &format)
	return cmd
}

// openImport opens what is to be imported: a file, stdin, or a folder, which is packed on the way. The size is 0 where
// it isn't known.
func (a app) openImport(path string) (io.ReadCloser, int64, error) {
	if path == "-" {
		return io.NopCloser(a.Stdin), 0, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, api.FieldError(api.CodeInvalid, "PATH", "", "%v", err)
	}
	if info.IsDir() {
		return treetar.Pack(path), 0, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, api.FieldError(api.CodeInvalid, "PATH", "", "%v", err)
	}
	return f, info.Size(), nil
}

// progress shows how far something is with an image, on a terminal; what went wrong and was mended is told anywhere. size
// is that of what is read, where it's known. clean removes what was shown.
func (a app) progress(name string, size int64) (told func(api.ImageEvent), clean func()) {
	_, tty := cli.Terminal(a.Stderr)
	clean = func() {
		if tty {
			fmt.Fprint(a.Stderr, "\r\x1b[K")
		}
	}
	return func(ev api.ImageEvent) {
		if ev.Warning != "" {
			clean()
			fmt.Fprintf(a.Stderr, "%s: %s\n", show.Line(name), show.Line(ev.Warning))
		}
		if !tty {
			return
		}
		total := ev.Total
		if ev.Phase == "reading" {
			total = size
		}
		text := fmt.Sprintf("%s %s: %s", ev.Phase, name, show.Size(ev.Bytes))
		if total > 0 {
			done := min(ev.Bytes, total)
			bar := strings.Repeat("#", int(20*done/total))
			text = fmt.Sprintf("%s %s [%-20s] %d%% of %s", ev.Phase, name, bar, 100*done/total, show.Size(total))
		}
		if ev.Files > 0 {
			text += fmt.Sprintf(", %d files", ev.Files)
		}
		fmt.Fprintf(a.Stderr, "\r%s\x1b[K", show.Line(text))
	}, clean
}

func (a app) imageListCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List images",
		Example: "  dsec image ls\n  dsec image ls -o name",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				list, err := c.Images().List(cmd.Context())
				if err != nil {
					return err
				}
				return a.images(format, list)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) imageInspectCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:               "inspect IMAGE",
		Aliases:           []string{"get"},
		Short:             "Show an image: its digest, and what commands in it get",
		Example:           "  dsec image inspect busybox\n  dsec image inspect -o json busybox",
		Args:              cli.Exactly("IMAGE"),
		ValidArgsFunction: a.CompleteImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				im, err := c.Images().Inspect(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.image(format, im)
			})
		},
	}
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) imageRemoveCommand() *cobra.Command {
	var o libdsec.RemoveImageOptions
	cmd := &cobra.Command{
		Use:     "rm IMAGE...",
		Aliases: []string{"delete"},
		Short:   "Remove images",
		Long: "Removes images and prints their names. One that living sandboxes were made from is only removed with --force; they\n" +
			"go on with what they have.",
		Example: "  dsec image rm mine\n  dsec image rm --force mine",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError(cmd, errors.New("IMAGE is missing"))
			}
			return nil
		},
		ValidArgsFunction: a.CompleteImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				var failed error
				for _, name := range args {
					switch _, err := c.Images().Remove(cmd.Context(), name, o); {
					case err == nil:
						fmt.Fprintln(a.Stdout, show.Line(name))
					case len(args) == 1:
						return err
					default:
						a.Report(fmt.Errorf("remove %s: %w", name, err))
						failed = &cli.StatusError{Code: cli.ExitCode(err)}
					}
				}
				return failed
			})
		},
	}
	cmd.Flags().BoolVarP(&o.Force, "force", "f", false, "also if sandboxes live that were made from it")
	return cmd
}

func (a app) imageGCCommand() *cobra.Command {
	var o libdsec.GCOptions
	var format string
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what broken-off imports have left; with --all also unused images",
		Long: "Removes what broken-off imports have left, prints the names of removed images, and says how much that gave back.\n" +
			"With --all the images go too that no living sandbox was made from, but for those of the machine.",
		Example: "  dsec image gc\n  dsec image gc --all",
		Args:    cli.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.WithClient(func(c *libdsec.Client) error {
				done, err := c.Images().GC(cmd.Context(), o)
				if err != nil {
					return err
				}
				if format == cli.FormatJSON || format == cli.FormatYAML {
					return a.Document(format, done)
				}
				for _, name := range done.Removed {
					fmt.Fprintln(a.Stdout, show.Line(name))
				}
				if format == cli.FormatTable {
					fmt.Fprintf(a.Stderr, "%s given back\n", show.Size(done.FreedBytes))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&o.All, "all", "a", false, "also images that no living sandbox was made from")
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) imageExportCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "export [flags] IMAGE",
		Short: "Write the files of an image as a tar",
		Long: "Writes the tree of an image as a tar to stdout, or to the file that --file names. Imported again it gives the same\n" +
			"image, without environment, user and command.",
		Example:           "  dsec image export busybox | tar t\n  dsec image export -f busybox.tar busybox",
		Args:              cli.Exactly("IMAGE"),
		ValidArgsFunction: a.CompleteImage,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, tty := cli.Terminal(a.Stdout); tty && to == "" {
				return cli.UsageError(cmd, errors.New("a tar isn't for a terminal: pipe it, or say --file"))
			}
			return a.WithClient(func(c *libdsec.Client) error {
				r, err := c.Images().Export(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				defer func() { _ = r.Close() }() // only read from
				if to == "" {
					_, err = io.Copy(a.Stdout, r)
				} else {
					err = writeFile(to, r)
				}
				if err != nil {
					return fmt.Errorf("export %s: %w", args[0], err)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&to, "file", "f", "", "write to this file")
	cli.TakesFile(cmd, "file")
	return cmd
}

// writeFile writes a file that is there only when it's whole.
func writeFile(path string, r io.Reader) error {
	part := path + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(part))
	}
	return err
}

// images prints a listing.
func (a app) images(format string, list []api.Image) error {
	return cli.Listing[api.Image]{
		Header: "NAME\tSIZE\tAGE\tSANDBOXES\tSTORE\tDIGEST",
		Name:   func(im *api.Image) string { return im.Name },
		Row: func(im *api.Image) []string {
			return []string{im.Name, show.Size(im.SizeBytes), show.Age(im.CreatedAt), fmt.Sprint(im.InUse), storeText(im), digestText(im)}
		},
	}.Print(a.App, format, list)
}

func storeText(im *api.Image) string {
	if im.Shared {
		return "machine"
	}
	return "instance"
}

func digestText(im *api.Image) string {
	if im.Broken != "" {
		return "broken: " + im.Broken
	}
	return im.Digest[:min(len(im.Digest), len("sha256:")+12)]
}

// image prints one image.
func (a app) image(format string, im api.Image) error {
	switch format {
	case cli.FormatName:
		return a.images(cli.FormatName, []api.Image{im})
	case cli.FormatTable:
		source := api.ImageSource{}
		if im.Source != nil {
			source = *im.Source
		}
		return a.Table(func(w io.Writer) {
			for _, kv := range [][2]string{
				{"Name", im.Name},
				{"Digest", im.Digest},
				{"Size", show.Size(im.SizeBytes)},
				{"Created", show.Time(&im.CreatedAt)},
				{"Store", storeText(&im)},
				{"Sandboxes", fmt.Sprint(im.InUse)},
				{"Broken", im.Broken},
				{"User", im.User},
				{"Workdir", im.Workdir},
				{"Entrypoint", strings.Join(im.Entrypoint, " ")},
				{"Cmd", strings.Join(im.Cmd, " ")},
				{"Env", strings.Join(im.Env, " ")},
				{"Pulled from", source.Reference},
				{"Pulled digest", source.Digest},
				{"Manifest", source.Manifest},
				{"Platform", source.Platform},
				{"Made", source.Created},
			} {
				if kv[1] != "" {
					cli.Row(w, kv[0]+":", kv[1])
				}
			}
		})
	}
	return a.Document(format, im)
}
