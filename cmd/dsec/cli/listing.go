package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/dsec-io/dsec/cmd/dsec/show"
)

// Listing says how things of one kind are listed.
type Listing[T any] struct {
	Header string            // of the table: the columns' names with tabs between
	Name   func(*T) string   // what the format [FormatName] prints, one a line
	Row    func(*T) []string // the cells of one of them
}

// Print prints a list as format says. An empty one is an empty list in JSON and YAML, too.
func (l Listing[T]) Print(a *App, format string, list []T) error {
	switch format {
	case FormatName:
		var b strings.Builder
		for i := range list {
			b.WriteString(show.Line(l.Name(&list[i])) + "\n")
		}
		return a.Write([]byte(b.String()))
	case FormatTable:
		return a.Table(func(w io.Writer) {
			fmt.Fprintln(w, l.Header)
			for i := range list {
				Row(w, l.Row(&list[i])...)
			}
		})
	}
	if list == nil {
		list = []T{}
	}
	return a.Document(format, list)
}
