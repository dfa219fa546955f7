package sandboxcmd

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/cmd/dsec/show"
)

// sandboxes prints a listing.
func (a app) sandboxes(format string, list []api.Sandbox) error {
	return cli.Listing[api.Sandbox]{
		Header: "ID\tSTATE\tIMAGE\tCPU\tMEMORY\tAGE\tLABELS",
		Name:   func(sb *api.Sandbox) string { return sb.ID },
		Row: func(sb *api.Sandbox) []string {
			return []string{
				sb.ID, string(sb.State), sb.Spec.Image, cpuText(sb.Spec.Resources), memoryText(sb.Spec.Resources),
				show.Age(sb.CreatedAt), show.Map(sb.Spec.Labels),
			}
		},
	}.Print(a.App, format, list)
}

// sandbox prints one sandbox.
func (a app) sandbox(format string, sb api.Sandbox) error {
	switch format {
	case cli.FormatName:
		return a.names([]api.Sandbox{sb})
	case cli.FormatTable:
		return a.Table(func(w io.Writer) {
			state := string(sb.State)
			if sb.Reason != "" {
				state += " (" + sb.Reason + ")"
			}
			for _, kv := range [][2]string{
				{"ID", sb.ID},
				{"State", state},
				{"Project", sb.Project},
				{"Image", sb.Spec.Image},
				{"Command", strings.Join(sb.Spec.Command, " ")},
				{"CPU", cpuText(sb.Spec.Resources)},
				{"Memory", memoryText(sb.Spec.Resources)},
				{"PIDs", numberText(sb.Spec.Resources.PIDs)},
				{"User", sb.Spec.User},
				{"Workdir", sb.Spec.Workdir},
				{"Hostname", sb.Spec.Hostname},
				{"Job", sb.Spec.Job},
				{"Labels", show.Map(sb.Spec.Labels)},
				{"Env", show.Map(sb.Spec.Env)},
				{"Created", show.Time(&sb.CreatedAt)},
				{"Paused", show.Time(sb.PausedAt)},
				{"Max idle", idleText(sb.Spec)},
				{"Expires", expiryText(sb)},
				{"Ended", show.Time(sb.EndedAt)},
			} {
				if kv[1] != "" {
					cli.Row(w, kv[0]+":", kv[1])
				}
			}
		})
	}
	return a.Document(format, sb)
}

func (a app) names(list []api.Sandbox) error {
	var b strings.Builder
	for i := range list {
		b.WriteString(show.Line(list[i].ID) + "\n")
	}
	return a.Write([]byte(b.String()))
}

// idleText is how long a sandbox may be idle.
func idleText(spec api.Spec) string {
	if spec.TTL.IdleS == nil {
		return ""
	}
	return (time.Duration(*spec.TTL.IdleS) * time.Second).String()
}

// expiryText is when a living sandbox ends whatever happens.
func expiryText(sb api.Sandbox) string {
	if sb.ExpiresAt == nil || sb.EndedAt != nil {
		return ""
	}
	return show.Time(sb.ExpiresAt) + " (in " + max(time.Until(*sb.ExpiresAt), 0).Round(time.Second).String() + ")"
}

func cpuText(r api.Resources) string {
	if r.CPU == nil {
		return ""
	}
	return fmt.Sprintf("%g", *r.CPU)
}

func memoryText(r api.Resources) string {
	switch {
	case r.MemoryMB == nil:
		return ""
	case *r.MemoryMB%1024 == 0:
		return fmt.Sprintf("%dg", *r.MemoryMB/1024)
	}
	return fmt.Sprintf("%dm", *r.MemoryMB)
}

func numberText(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
