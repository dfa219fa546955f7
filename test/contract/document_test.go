package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/test/testbed"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// document is the description that a node serves, to check its answers with. It is the document alone: nothing of the
// tables that it was made of.
type document struct {
	root     map[string]any
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
	ops      []*operation
}

// operation is one method on one path.
type operation struct {
	ID, Method, Path string
	pointer          string // where it is in the document
	item, node       map[string]any
}

const documentURL = "dsec.json"

// load reads the document of a node and compiles nothing yet.
func load(t testing.TB, n *testbed.Node) *document {
	t.Helper()
	resp, err := http.Get(n.Endpoint + "/openapi.json") // it needs no token
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	root, err := jsonschema.UnmarshalJSON(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET /openapi.json: %s, %v", resp.Status, err)
	}
	d := &document{root: root.(map[string]any), compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}}
	// Clients must bear members that they don't know; this test must not, or the document would be out of date unseen.
	for _, s := range child(d.root, "components", "schemas") {
		if s, ok := s.(map[string]any); ok && s["additionalProperties"] == nil {
			s["additionalProperties"] = false
		}
	}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	d.compiler.AssertContent()
	if err := d.compiler.AddResource(documentURL, root); err != nil {
		t.Fatal(err)
	}
	for path, item := range child(d.root, "paths") {
		item := item.(map[string]any)
		for _, method := range []string{"get", "put", "post", "patch", "delete", "options", "head"} {
			if node, ok := item[method].(map[string]any); ok {
				d.ops = append(d.ops, &operation{
					ID: node["operationId"].(string), Method: strings.ToUpper(method), Path: path,
					pointer: "/paths/" + escape(path) + "/" + method, item: item, node: node,
				})
			}
		}
	}
	return d
}

func child(node any, path ...string) map[string]any {
	for _, name := range path {
		m, ok := node.(map[string]any)
		if !ok {
			return nil
		}
		node = m[name]
	}
	m, _ := node.(map[string]any)
	return m
}

// escape is one part of a JSON pointer.
func escape(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

func (d *document) op(id string) *operation {
	for _, o := range d.ops {
		if o.ID == id {
			return o
		}
	}
	return nil
}

// resolve follows references.
func (d *document) resolve(pointer string, node map[string]any) (string, map[string]any) {
	for {
		ref, ok := node["$ref"].(string)
		if !ok {
			return pointer, node
		}
		pointer = strings.TrimPrefix(ref, "#")
		node = child(d.root, strings.Split(strings.TrimPrefix(pointer, "/"), "/")...)
		if node == nil {
			panic("the document refers to " + ref + ", which isn't there")
		}
	}
}

// schema compiles the schema at a pointer.
func (d *document) schema(pointer string) (*jsonschema.Schema, error) {
	if s, ok := d.compiled[pointer]; ok {
		return s, nil
	}
	s, err := d.compiler.Compile(documentURL + "#" + strings.ReplaceAll(strings.ReplaceAll(pointer, "{", "%7B"), "}", "%7D"))
	if err == nil {
		d.compiled[pointer] = s
	}
	return s, err
}

// validate checks one JSON text with the schema at a pointer.
func (d *document) validate(pointer string, text []byte) error {
	s, err := d.schema(pointer)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	cut    bool // the rest of the body wasn't waited for
}

func (a *answer) String() string {
	body := a.body
	if len(body) > 600 {
		body = body[:600]
	}
	return fmt.Sprintf("%d %s %q", a.status, a.header.Get("Content-Type"), body)
}

// problem is what every error has to be.
type problem struct {
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	RequestID string `json:"request_id"`
}

// check tells how an answer isn't what the document says about it.
func (d *document) check(op *operation, method string, a *answer) error {
	if a.status >= http.StatusInternalServerError && a.status != http.StatusNotImplemented {
		var p problem
		if json.Unmarshal(a.body, &p) != nil || a.status == http.StatusInternalServerError {
			return fmt.Errorf("a fault of ours")
		}
	}
	pointer, node := d.resolve(op.pointer+"/responses/"+strconv.Itoa(a.status), child(op.node, "responses", strconv.Itoa(a.status)))
	switch {
	case node == nil && child(op.node, "responses", "default") != nil:
		return nil // what a tenant's program answers is its own
	case node == nil:
		return fmt.Errorf("%s doesn't answer %d by the document", op.ID, a.status)
	}
	if method == http.MethodHead || a.status == http.StatusSwitchingProtocols {
		return nil
	}
	content := child(node, "content")
	if content == nil {
		if len(a.body) > 0 {
			return fmt.Errorf("a %d has a body", a.status)
		}
		return nil
	}
	media, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("the answer has no Content-Type: %w", err)
	}
	body, ok := content[media].(map[string]any)
	if !ok {
		return fmt.Errorf("a %d of %s is no %s by the document", a.status, op.ID, media)
	}
	pointer += "/content/" + escape(media)
	if a.status >= http.StatusBadRequest {
		if err := known(a, media); err != nil {
			return err
		}
	}
	return d.checkBody(pointer, body, media, a)
}

// known checks what schemas can't: that a problem document is that of this answer.
func known(a *answer, media string) error {
	var p problem
	if err := json.Unmarshal(a.body, &p); err != nil || media != "application/problem+json" {
		return fmt.Errorf("the error is no problem document: %s, %w", media, err)
	}
	if p.Code == "" || p.Detail == "" || p.Status != a.status || p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") {
		return fmt.Errorf("the problem isn't that of this answer: %+v", p)
	}
	return nil
}

func (d *document) checkBody(pointer string, body map[string]any, media string, a *answer) error {
	switch {
	case body["x-line-schema"] != nil:
		lines := bytes.Split(a.body, []byte("\n"))
		for i, line := range lines {
			if len(line) == 0 || a.cut && i == len(lines)-1 {
				continue
			}
			if err := d.validate(pointer+"/x-line-schema", line); err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
		}
		return nil
	case body["schema"] != nil && strings.HasSuffix(media, "json") && !a.cut:
		return d.validate(pointer+"/schema", a.body)
	}
	return nil
}
