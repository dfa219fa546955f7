package imagecmd

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
	"github.com/dsec-io/dsec/internal/image/reference"
	"github.com/dsec-io/dsec/libdsec"
)

// maxCAFile bounds what is read of a file that is said to have certificates.
const maxCAFile = 256 << 10

// registryFlags are how a registry is talked to.
type registryFlags struct {
	insecure bool
	caFile   string
}

func (f *registryFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.insecure, "insecure", false, "talk plain HTTP to a registry that doesn't speak TLS (one on a loopback address may anyhow)")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "", "trust the PEM certificates in this file too, beside the node's")
	cli.TakesFile(cmd, "ca-file")
}

// access is what the node needs to talk to the registry: also who we are there, as docker knows it.
func (a app) access(f *registryFlags, ref reference.Reference) (api.RegistryAccess, error) {
	access := api.RegistryAccess{Insecure: f.insecure}
	if f.caFile != "" {
		info, err := os.Stat(f.caFile)
		if err == nil && info.Size() > maxCAFile {
			err = fmt.Errorf("%s: more than %d bytes", f.caFile, maxCAFile)
		}
		var pem []byte
		if err == nil {
			pem, err = os.ReadFile(f.caFile)
		}
		if err != nil {
			return access, api.FieldError(api.CodeInvalid, "ca-file", "", "%v", err)
		}
		access.CA = string(pem)
	}
	var err error
	access.Auth, err = a.credentials(ref)
	return access, err
}

func (a app) imagePullCommand() *cobra.Command {
	var o api.ImagePull
	var f registryFlags
	var format string
	cmd := &cobra.Command{
		Use:   "pull [flags] REFERENCE",
		Short: "Fetch an image from a registry",
		Long: "Fetches the image REFERENCE, HOST/REPOSITORY with :TAG, @DIGEST or both, and prints its name. The node fetches it,\n" +
			"with the credentials that docker has for the registry here (its config.json and credential helpers), for this\n" +
			"once. A reference always says its host.\n\n" +
			"The image is called like the last part of the repository, and the tag unless that is latest, or as --name says.\n" +
			"Pulled again it is fetched only if the tag has moved on, and then takes its own place; for any other image in its\n" +
			"place say --replace.",
		Example: "  dsec image pull registry.example.com/team/app:1.2\n" +
			"  dsec image pull --name app registry.example.com/team/app@sha256:…\n" +
			"  dsec image pull --platform linux/arm64 localhost:5000/app",
		Args:              cli.Exactly("REFERENCE"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := reference.Parse(args[0])
			if err != nil {
				return err
			}
			o.Reference = ref.String()
			if o.RegistryAccess, err = a.access(&f, ref); err != nil {
				return err
			}
			return a.WithClient(func(c *libdsec.Client) error {
				told, clean := a.progress(o.Reference, 0)
				done, err := c.Images().Pull(cmd.Context(), o, told)
				clean()
				if err != nil {
					return err
				}
				if format == cli.FormatTable {
					format = cli.FormatName
					if done.UpToDate {
						fmt.Fprintf(a.Stderr, "%s is up to date\n", show.Line(done.Image.Name))
					}
				}
				return a.image(format, *done.Image)
			})
		},
	}
	cmd.Flags().StringVarP(&o.Name, "name", "n", "", "what the image is called here")
	cmd.Flags().StringVar(&o.Platform, "platform", "", "linux/ARCH or linux/ARCH/VARIANT (default: the node's)")
	cmd.Flags().BoolVar(&o.Replace, "replace", false, "take the place of an image of that name")
	cmd.Flags().BoolVar(&o.Squash, "squash", false, "give files of owners above 65535 to nobody, without setuid and capabilities")
	cli.Complete(cmd, "name", cobra.NoFileCompletions)
	cli.Complete(cmd, "platform", cobra.FixedCompletions([]string{"linux/amd64", "linux/arm64"}, cobra.ShellCompDirectiveNoFileComp))
	f.add(cmd)
	cli.OutputFlag(cmd, &format)
	return cmd
}

func (a app) imagePushCommand() *cobra.Command {
	var o api.ImagePush
	var f registryFlags
	var format string
	cmd := &cobra.Command{
		Use:   "push [flags] IMAGE REFERENCE",
		Short: "Send an image to a registry",
		Long: "Sends IMAGE to a registry as REFERENCE, HOST/REPOSITORY[:TAG], and prints what always leads to it: the repository\n" +
			"and the digest. It has one layer, with environment, user, working directory and command; the same image has the\n" +
			"same digest, and what the registry has isn't sent again. Credentials are as in `dsec image pull`.",
		Example: "  dsec image push mine registry.example.com/team/mine:1.2\n" +
			"  dsec image push --mount-from team/base mine registry.example.com/team/mine",
		Args: cli.Exactly("IMAGE", "REFERENCE"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.CompleteImage(cmd, args, part)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := reference.Parse(args[1])
			if err != nil {
				return err
			}
			o.Reference = ref.String()
			if o.RegistryAccess, err = a.access(&f, ref); err != nil {
				return err
			}
			return a.WithClient(func(c *libdsec.Client) error {
				told, clean := a.progress(args[0], 0)
				done, err := c.Images().Push(cmd.Context(), args[0], o, told)
				clean()
				if err != nil {
					return err
				}
				if format == cli.FormatJSON || format == cli.FormatYAML {
					return a.Document(format, done)
				}
				fmt.Fprintf(a.Stdout, "%s/%s@%s\n", ref.Host, ref.Repository, show.Line(strings.TrimSpace(done.Digest)))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&o.MountFrom, "mount-from", "", "a repository of the same registry that may have the layer already")
	cli.Complete(cmd, "mount-from", cobra.NoFileCompletions)
	f.add(cmd)
	cli.OutputFlag(cmd, &format)
	return cmd
}
