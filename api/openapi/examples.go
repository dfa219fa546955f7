package openapi

import (
	_ "embed" // for the answers
	"encoding/json"
	"fmt"
	"strings"
)

// Example is a request that a reader can make, and what a real node answered to it. Names in braces in Path, Headers and
// Body stand for what earlier examples saved.
type Example struct {
	Op      string // the operation's ID
	Name    string // what it shows
	Path    string // with query
	Headers []string
	Body    string            // "@NAME" is a file's content
	Save    map[string]string // a name: the member of the answer that it stands for from now on
	Answer  Recorded
}

// Recorded is a real answer.
type Recorded struct {
	Status int    `json:"status"`
	Type   string `json:"type,omitempty"` // its Content-Type
	Body   string `json:"body,omitempty"` // "" where it has none, or none for people
}

// Recording is what one run of all examples gave.
type Recording struct {
	Saved   map[string]string   `json:"saved"`
	Answers map[string]Recorded `json:"answers"` // by "OPERATION: NAME"
}

//go:embed recorded.json
var recorded []byte

// Key names an example in a [Recording].
func (e *Example) Key() string { return e.Op + ": " + e.Name }

// Method is that of the example's operation.
func (e *Example) Method(ops []Operation) string {
	for i := range ops {
		if ops[i].ID == e.Op {
			return ops[i].Method
		}
	}
	return ""
}

// Fill puts saved values in place of their names.
func Fill(text string, saved map[string]string) string {
	for name, value := range saved {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// Examples are all examples in the order in which they are run, with recorded answers. Names are still in braces.
func Examples() ([]Example, map[string]string, error) {
	var from Recording
	if err := json.Unmarshal(recorded, &from); err != nil {
		return nil, nil, fmt.Errorf("recorded answers: %w", err)
	}
	all := requests()
	for i := range all {
		all[i].Answer = from.Answers[all[i].Key()]
	}
	return all, from.Saved, nil
}
