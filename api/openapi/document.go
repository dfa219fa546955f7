package openapi

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// Version is that of the interface, not of a build.
const Version = "1"

// Document is the description, for those that show it; JSON gives the document itself.
type Document struct {
	Operations []Operation // in the order of the tags
	Tags       []Tag
	Schemas    []Named
	Problems   []Problem
	Examples   []Example // filled with what was saved when they were recorded
	Pending    []string  // routes that answer 501
	schemas    *schemas
}

// Tag is a group of operations.
type Tag struct{ Name, Description string }

// Problem is a code with its status and meaning.
type Problem struct {
	Code    api.Code
	Status  int
	Meaning string
}

func tags() []Tag {
	return []Tag{
		{"sandboxes", "A sandbox is a stateful logical machine."},
		{"commands", "One command, awaited."},
		{"processes", "Processes that outlive the request that started them."},
		{"sessions", "Shell sessions that keep directory and variables."},
		{"files", "A running sandbox's files, as one of its users."},
		{"ports", "Programs that listen inside a sandbox."},
		{"observing", "Use, events and logs. None of it wakes a sandbox."},
		{"images", "What sandboxes start from."},
		{"access", "Projects, tokens, and the log of who did what."},
		{"server", "The server itself."},
	}
}

const about = "Sandboxes for training and evaluating agents. Requests and answers are JSON unless an operation says otherwise; an unknown field or query parameter is " +
	"refused, and answers may get new members: ignore those that you don't know. Errors are problem documents (RFC 9457) whose `code` is what a program looks at. " +
	"`retry_after_ms` in one says that a repeat is safe and may succeed. Objects that don't exist and those of other projects answer the same. " +
	"Every GET also answers HEAD. A request may carry `X-Request-Id`; every answer has one. `Host` and `Origin` must name this server.\n\n" +
	"Routes that are designed and not built yet answer 501 `not_implemented`; `x-not-implemented` lists them."

// New makes the description. pending lists the patterns of routes that answer 501; it may be nil.
func New(pending []string) (*Document, error) {
	examples, saved, err := Examples()
	if err != nil {
		return nil, err
	}
	for i := range examples {
		e := &examples[i]
		e.Path, e.Body, e.Headers = Fill(e.Path, saved), Fill(e.Body, saved), slices.Clone(e.Headers)
		for j := range e.Headers {
			e.Headers[j] = Fill(e.Headers[j], saved)
		}
	}
	d := &Document{Operations: Operations(), Tags: tags(), Examples: examples, Pending: slices.Sorted(slices.Values(pending)), schemas: newSchemas()}
	for i := range d.Operations {
		op := &d.Operations[i]
		for _, c := range op.contents() {
			for _, m := range c.Media {
				d.schemas.of(m.Of)
			}
		}
	}
	d.schemas.of(api.Error{})
	d.schemas.of(api.ProcessInput{})
	d.Schemas = d.schemas.named
	for _, n := range codeNotes() {
		c := api.Code(n.code)
		_, meaning, _ := strings.Cut(n.words, ": ")
		d.Problems = append(d.Problems, Problem{c, c.Status(), meaning})
	}
	return d, nil
}

// Operations lists all operations, grouped by tag.
func Operations() []Operation {
	var all []Operation
	for _, ops := range [][]Operation{
		sandboxOperations(), observingOperations(), processOperations(), sessionOperations(), fileOperations(), portOperations(), imageOperations(), iamOperations(), serverOperations(),
	} {
		all = append(all, ops...)
	}
	for i := range all {
		all[i].withKey()
	}
	place := map[string]int{}
	for i, t := range tags() {
		place[t.Name] = i
	}
	slices.SortStableFunc(all, func(a, b Operation) int { return place[a.Tag] - place[b.Tag] })
	return all
}

// contents are the operation's bodies.
func (o *Operation) contents() []*Content {
	var all []*Content
	if o.Body != nil {
		all = append(all, o.Body)
	}
	for i := range o.Answers {
		all = append(all, &o.Answers[i].Content)
	}
	return all
}

// ExamplesOf are an operation's examples.
func (d *Document) ExamplesOf(op string) []Example {
	return slices.DeleteFunc(slices.Clone(d.Examples), func(e Example) bool { return e.Op != op })
}

// SchemaOf is the schema of a value of one of package api's types.
func (d *Document) SchemaOf(v any) *Schema { return d.schemas.of(v) }

// JSON is the OpenAPI document.
func (d *Document) JSON() ([]byte, error) {
	tagged := make([]object, len(d.Tags))
	for i, t := range d.Tags {
		tagged[i] = object{{"name", t.Name}, {"description", t.Description}}
	}
	named := object{}
	for _, s := range d.Schemas {
		named = append(named, member{s.Name, s.Schema})
	}
	paths := d.paths()
	doc := object{
		{"openapi", "3.1.0"},
		{"info", object{{"title", "DSec"}, {"version", Version}, {"description", about}}},
		{"servers", []object{{{"url", "/"}}}},
		{"security", []object{{{"bearer", []string{}}}}},
		{"tags", tagged},
		{"paths", paths},
		{"components", object{
			{"securitySchemes", object{{"bearer", object{
				{"type", "http"}, {"scheme", "bearer"}, {"description", "the token of the context file that `dsec config show` names, or one that was made of it; operations name the scope that it needs"},
			}}}},
			{"schemas", named},
			{"parameters", object{{"Project", object{
				{"name", api.HeaderProject},
				{"in", "header"},
				{"required", false},
				{"description", "the project to act in; default: the token's own"},
				{"schema", &Schema{Type: "string", Pattern: projectPattern}},
			}}}},
			{"responses", d.problemResponses()},
		}},
	}
	if len(d.Pending) > 0 {
		doc = append(doc, member{"x-not-implemented", d.Pending})
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(doc)
	return out.Bytes(), err
}

func (d *Document) paths() object {
	var out object
	at := map[string]int{}
	for i := range d.Operations {
		op := &d.Operations[i]
		if _, ok := at[op.Path]; !ok {
			at[op.Path] = len(out)
			item := object{}
			if names := pathParams(op.Path); len(names) > 0 {
				item = append(item, member{"parameters", d.pathParameters(op, names)})
			}
			out = append(out, member{op.Path, item})
		}
		m := &out[at[op.Path]]
		m.value = append(m.value.(object), member{strings.ToLower(op.Method), d.operation(op)}) // it was made above
	}
	return out
}

func (d *Document) pathParameters(op *Operation, names []string) []object {
	params := make([]object, len(names))
	for i, name := range names {
		p := pathWords()[name]
		if strings.HasPrefix(op.Path, "/v1/tokens/") {
			p = pathWords()["token"]
		}
		params[i] = object{{"name", name}, {"in", "path"}, {"required", true}, {"description", p.Description}, {"schema", p.Schema}}
		for _, e := range d.Examples {
			if value, ok := pathValue(op.Path, e.Path, name); ok {
				params[i] = append(params[i], member{"example", value})
				break
			}
		}
	}
	return params
}

// pathValue finds a parameter's value in an example's path, if that fits the template.
func pathValue(template, path, name string) (string, bool) {
	path, _, _ = strings.Cut(path, "?")
	want, have := strings.Split(template, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return "", false
	}
	value := ""
	for i := range want {
		switch {
		case want[i] == "{"+name+"}":
			value = have[i]
		case want[i] != have[i] && !strings.HasPrefix(want[i], "{"):
			return "", false
		}
	}
	return value, value != ""
}

func (d *Document) operation(op *Operation) object {
	out := object{{"operationId", op.ID}, {"tags", []string{op.Tag}}, {"summary", op.Summary}}
	if op.Description != "" {
		out = append(out, member{"description", op.Description})
	}
	examples := d.ExamplesOf(op.ID)
	var params []object
	for i := range op.Params {
		params = append(params, parameter(&op.Params[i], examples))
	}
	switch scope := op.Scope(); {
	case op.Public:
		out = append(out, member{"security", []object{}})
	default:
		scopes := []api.Scope{}
		if scope != "" {
			scopes = append(scopes, scope)
		}
		out = append(out, member{"security", []object{{{"bearer", scopes}}}})
		params = append(params, object{{"$ref", "#/components/parameters/Project"}})
	}
	if len(params) > 0 {
		out = append(out, member{"parameters", params})
	}
	if op.Body != nil {
		body := object{}
		if op.Body.Description != "" {
			body = append(body, member{"description", op.Body.Description})
		}
		out = append(out, member{"requestBody", append(body, member{"required", !op.Body.Optional}, member{"content", d.content(op.Body, requestExamples(examples))})})
	}
	out = append(out, member{"responses", d.responses(op, examples)})
	if len(examples) > 0 {
		samples := make([]object, len(examples))
		for i := range examples {
			samples[i] = object{{"lang", "curl"}, {"label", examples[i].Name}, {"source", Curl(op, &examples[i])}}
		}
		out = append(out, member{"x-codeSamples", samples})
	}
	return out
}

func parameter(p *Param, examples []Example) object {
	out := object{{"name", p.Name}, {"in", p.In}, {"required", p.Required}, {"description", p.Description}}
	schema := p.Schema
	if p.Repeats {
		schema = &Schema{Type: "array", Items: p.Schema}
		out = append(out, member{"explode", true})
	}
	out = append(out, member{"schema", schema})
	for i := range examples {
		if value, ok := examples[i].parameter(p); ok {
			return append(out, member{"example", typed(schema, value)})
		}
	}
	return out
}

// parameter is what the example gives for a parameter.
func (e *Example) parameter(p *Param) (string, bool) {
	if p.In == "header" {
		for _, h := range e.Headers {
			if name, value, _ := strings.Cut(h, ": "); strings.EqualFold(name, p.Name) {
				return value, true
			}
		}
		return "", false
	}
	_, query, _ := strings.Cut(e.Path, "?")
	values, err := url.ParseQuery(query)
	return values.Get(p.Name), err == nil && values.Has(p.Name)
}

// typed is a query parameter's text as the value that its schema wants.
func typed(s *Schema, text string) any {
	switch s.Type {
	case "boolean":
		return text == "1" || text == "true"
	case "integer":
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	case "array":
		return []string{text}
	}
	return text
}

// requestExamples are the bodies that are sent, by the example's name.
func requestExamples(examples []Example) []shown {
	var out []shown
	for i := range examples {
		e := &examples[i]
		if e.Body == "" || strings.HasPrefix(e.Body, "@") {
			continue
		}
		media := mediaJSON
		if given, ok := e.parameter(&Param{In: "header", Name: "Content-Type"}); ok {
			media = given
		}
		out = append(out, shown{e.Name, media, e.Body})
	}
	return out
}

// shown is an example of a body.
type shown struct{ name, media, body string }

// content is a body in its media types.
func (d *Document) content(c *Content, examples []shown) object {
	out := object{}
	for _, m := range c.Media {
		body := object{}
		switch {
		case m.Lines:
			body = append(body, member{"schema", &Schema{Type: "string", Description: "one JSON document a line: see x-line-schema"}}, member{"x-line-schema", d.schemas.of(m.Of)})
		case m.Of != nil:
			body = append(body, member{"schema", d.schemas.of(m.Of)})
		case strings.HasPrefix(m.Type, "text/"):
			body = append(body, member{"schema", &Schema{Type: "string"}})
		}
		if own := examplesOf(m.Type, examples); len(own) > 0 {
			body = append(body, member{"examples", own})
		}
		out = append(out, member{m.Type, body})
	}
	return out
}

func examplesOf(media string, examples []shown) object {
	var out object
	for _, e := range examples {
		if base, _, err := mime.ParseMediaType(e.media); err != nil || base != media || e.body == "" {
			continue
		}
		var value any = e.body
		if strings.HasSuffix(media, "json") && json.Valid([]byte(e.body)) {
			value = json.RawMessage(strings.TrimSpace(e.body))
		}
		key := strings.Map(func(r rune) rune {
			if strings.ContainsRune(" ,;:/", r) {
				return '-'
			}
			return r
		}, e.name)
		out = append(out, member{strings.ReplaceAll(strings.ReplaceAll(key, "--", "-"), "'", ""), object{{"summary", e.name}, {"value", value}}})
	}
	return out
}

// responses are an operation's answers by status: success with its body, then problems.
func (d *Document) responses(op *Operation, examples []Example) object {
	out := object{}
	for _, a := range op.Answers {
		says := a.Description
		if says == "" {
			says = "done"
		}
		answer := object{{"description", says}}
		if headers := responseHeaders(a.Headers); len(headers) > 0 {
			answer = append(answer, member{"headers", headers})
		}
		if len(a.Media) > 0 {
			answer = append(answer, member{"content", d.content(&a.Content, recordedOf(examples, a.Status))})
		}
		status := strconv.Itoa(a.Status)
		if a.Status == 0 {
			status = "default"
		}
		out = append(out, member{status, answer})
	}
	for _, set := range codeSets(op.Codes) {
		if shown := examplesOf(mediaProblem, recordedOf(examples, set.status)); len(shown) > 0 {
			own := set.response()
			content := object{{"schema", set.schema()}, {"examples", shown}}
			out = append(out, member{strconv.Itoa(set.status), append(own[:1:1], member{"content", object{{mediaProblem, content}}})})
			continue
		}
		out = append(out, member{strconv.Itoa(set.status), object{{"$ref", "#/components/responses/" + set.name()}}})
	}
	return out
}

// recordedOf are the recorded bodies of one status.
func recordedOf(examples []Example, status int) []shown {
	var out []shown
	for _, e := range examples {
		if e.Answer.Status == status {
			out = append(out, shown{e.Name, e.Answer.Type, e.Answer.Body})
		}
	}
	return out
}

func headerWords() map[string]string {
	return map[string]string{
		"Location": "the path of what was made", "Accept-Ranges": "`bytes`", "Last-Modified": "when the content changed", "Content-Range": "which part of how much",
		"Idempotency-Replayed": "`true` where the answer was given before",
	}
}

func responseHeaders(names []string) object {
	var out object
	for _, n := range names {
		out = append(out, member{n, object{{"description", headerWords()[n]}, {"schema", &Schema{Type: "string"}}}})
	}
	return out
}
