package dsec_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The budgets of this project. Over budget means that a noun is missing. Ratchet them, never raise them.
const (
	maxFileLines     = 500
	maxFuncLines     = 80
	maxParams        = 5
	maxPackageLines  = 3000 // of code
	maxExported      = 40
	maxMethods       = 5
	maxFields        = 25
	maxNesting       = 4
	minTableElements = 8 // a composite literal of that many elements is a table, and tables are exempt
)

// overBudget lists what may be over a budget, and why. An entry that is no longer needed fails the test.
var overBudget = map[string]string{
	"internal/aether: exported names": "a protocol's vocabulary: one type a message, few else",
	"api: exported names":             "the public vocabulary: one type a thing that a client sees",
	"cmd/dsec.run: parameters":        "what the operating system gives a main, each by its own name",
}

// source is one parsed file.
type source struct {
	path string // from the root of the repository
	fset *token.FileSet
	file *ast.File
}

func (s source) dir() string                       { return filepath.ToSlash(filepath.Dir(s.path)) }
func (s source) test() bool                        { return strings.HasSuffix(s.path, "_test.go") }
func (s source) line(p token.Pos) int              { return s.fset.Position(p).Line }
func (s source) at(p token.Pos) string             { return fmt.Sprintf("%s:%d", s.path, s.line(p)) }
func (s source) lines(n ast.Node) int              { return s.line(n.End()) - s.line(n.Pos()) + 1 }
func (s source) name(n *ast.Ident) string          { return s.dir() + "." + n.Name }
func (s source) decls() []ast.Decl                 { return s.file.Decls }
func (s source) funcName(fn *ast.FuncDecl) string  { return s.dir() + "." + receiver(fn) + fn.Name.Name }
func (s source) untabled(n ast.Node, from int) int { return from - s.tableLines(n) }

// receiver returns "Type." for a method.
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return ""
	}
	typ := fn.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

// tableLines counts the lines of n that lie in tables: composite literals of many elements, and constant groups.
func (s source) tableLines(n ast.Node) int {
	lines := 0
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if len(n.Elts) < minTableElements {
				return true
			}
		case *ast.GenDecl:
			if n.Tok != token.CONST {
				return true
			}
		default:
			return true
		}
		lines += s.lines(n) - 1
		return false
	})
	return lines
}

// codeLines counts the lines with a token on them: a package isn't too big for being explained.
func (s source) codeLines(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	file := fset.AddFile(s.path, -1, len(text))
	var scan scanner.Scanner
	scan.Init(file, text, nil, 0)
	lines := make(map[int]bool)
	for {
		pos, tok, _ := scan.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		lines[file.Line(pos)] = true
	}
}

// sources parses every Go file of the module that a person wrote.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == "testdata" || name == "bin" || path == "tools" || name != "." && strings.HasPrefix(name, ".") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(file) {
			all = append(all, source{path, fset, file})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// budgets reports what is over budget, but for what overBudget allows.
type budgets struct {
	t    *testing.T
	used map[string]bool
}

func (b *budgets) check(where, what, name string, have, budget int) {
	b.t.Helper()
	if have <= budget {
		return
	}
	key := name + ": " + what
	if _, ok := overBudget[key]; ok {
		b.used[key] = true
		return
	}
	b.t.Errorf("%s: %q has %d, the budget is %d", where, key, have, budget)
}

func TestBudgets(t *testing.T) {
	b := &budgets{t: t, used: make(map[string]bool)}
	packageLines, exported := make(map[string]int), make(map[string]int)
	for _, s := range sources(t) {
		lines := s.fset.File(s.file.Pos()).LineCount()
		b.check(s.path, "lines", s.path, s.untabled(s.file, lines), maxFileLines)
		if !s.test() {
			packageLines[s.dir()] += s.untabled(s.file, s.codeLines(t))
			exported[s.dir()] += exportedNames(s.file)
		}
		for _, decl := range s.decls() {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				name := s.funcName(fn)
				b.check(s.at(fn.Pos()), "lines", name, s.untabled(fn, s.lines(fn)), maxFuncLines)
				b.check(s.at(fn.Pos()), "parameters", name, fn.Type.Params.NumFields(), maxParams)
				b.check(s.at(fn.Pos()), "nesting", name, nesting(fn.Body), maxNesting)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			switch typ := spec.Type.(type) {
			case *ast.InterfaceType:
				b.check(s.at(spec.Pos()), "methods", s.name(spec.Name), typ.Methods.NumFields(), maxMethods)
			case *ast.StructType:
				b.check(s.at(spec.Pos()), "fields", s.name(spec.Name), typ.Fields.NumFields(), maxFields)
			}
			return true
		})
	}
	for dir := range packageLines {
		b.check(dir, "lines of the package", dir, packageLines[dir], maxPackageLines)
		b.check(dir, "exported names", dir, exported[dir], maxExported)
	}
	for key := range overBudget {
		if !b.used[key] {
			t.Errorf("overBudget: %q is within its budget again: remove the entry", key)
		}
	}
}

// exportedNames counts the exported names that a file gives its package. A group of constants is one: it's a table.
func exportedNames(file *ast.File) int {
	names := 0
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil && decl.Name.IsExported() {
				names++
			}
		case *ast.GenDecl:
			group := 0
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					group += exportedOf(spec.Name)
				case *ast.ValueSpec:
					group += exportedOf(spec.Names...)
				}
			}
			if decl.Tok == token.CONST {
				group = min(group, 1)
			}
			names += group
		}
	}
	return names
}

func exportedOf(ids ...*ast.Ident) int {
	n := 0
	for _, id := range ids {
		if id.IsExported() {
			n++
		}
	}
	return n
}

// nesting returns how deep the control structures of a body lie in each other. An `else if` is no deeper than its `if`,
// and a function literal starts anew: it's a function, only without a name.
func nesting(body *ast.BlockStmt) int {
	if body == nil {
		return 0
	}
	deepest := 0
	var walk func(n ast.Node, depth int)
	walk = func(n ast.Node, depth int) {
		ast.Inspect(n, func(child ast.Node) bool {
			if child == n {
				return true
			}
			next := depth
			switch child := child.(type) {
			case *ast.FuncLit:
				next = 0
			case *ast.IfStmt:
				if parent, ok := n.(*ast.IfStmt); !ok || parent.Else != child {
					next = depth + 1
				}
			case *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
				next = depth + 1
			default:
				return true
			}
			deepest = max(deepest, next)
			walk(child, next)
			return false
		})
	}
	walk(body, 0)
	return deepest
}

func TestPackageComments(t *testing.T) {
	documented := make(map[string]bool)
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		doc := s.file.Doc.Text()
		begins := "Package " + s.file.Name.Name + " "
		if s.file.Name.Name == "main" {
			begins = "Command " + filepath.Base(s.dir()) + " "
		}
		documented[s.dir()] = documented[s.dir()] || strings.HasPrefix(doc, begins)
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no comment that begins with \"Package NAME \" (or \"Command NAME \") and says what it promises", dir)
		}
	}
}

func TestPackageNames(t *testing.T) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "manager", "types", "models", "base", "core", "misc", "shared", "interfaces"}
	for _, s := range sources(t) {
		if slices.Contains(empty, strings.TrimSuffix(s.file.Name.Name, "_test")) || slices.Contains(empty, filepath.Base(s.dir())) {
			t.Errorf("%s: package %s says nothing: a package is one noun or one job", s.path, s.file.Name.Name)
		}
	}
}

func TestComments(t *testing.T) {
	marker := regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)
	for _, s := range sources(t) {
		for _, group := range s.file.Comments {
			if found := marker.FindString(group.Text()); found != "" {
				t.Errorf("%s: %s: do it, or say what is left out where a reader looks for it", s.at(group.Pos()), found)
			}
		}
	}
}

func TestNoReplace(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^\s*replace\b`).Match(mod) {
		t.Error("go.mod: replace: what we build must be what others can build")
	}
}

// TestSubtestNames holds the names of subtests to words-with-dashes, so that -run takes them as they are printed.
func TestSubtestNames(t *testing.T) {
	words := regexp.MustCompile(`^"[A-Za-z0-9.+=]+(-[A-Za-z0-9.+=]+)*"$`)
	for _, s := range sources(t) {
		if !s.test() {
			continue
		}
		for _, name := range subtestNames(s.file) {
			if !words.MatchString(name.Value) {
				t.Errorf("%s: subtest %s: want words-with-dashes", s.at(name.Pos()), name.Value)
			}
		}
	}
}

// subtestNames finds the literal names given to t.Run, and the keys of the map literals that t.Run's name comes from.
func subtestNames(file *ast.File) []*ast.BasicLit {
	var names []*ast.BasicLit
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if lit := runName[*ast.BasicLit](n); lit != nil {
				names = append(names, lit)
			}
		case *ast.RangeStmt:
			key, isIdent := n.Key.(*ast.Ident)
			table, isLit := n.X.(*ast.CompositeLit)
			if isIdent && isLit && runs(n.Body, key.Name) {
				names = append(names, stringKeys(table)...)
			}
		}
		return true
	})
	return names
}

// runName returns the first argument of a call to X.Run if it is of type T.
func runName[T ast.Expr](call *ast.CallExpr) (name T) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if ok && sel.Sel.Name == "Run" && len(call.Args) == 2 {
		name, _ = call.Args[0].(T)
	}
	return name
}

func runs(body *ast.BlockStmt, variable string) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			id := runName[*ast.Ident](call)
			found = found || id != nil && id.Name == variable
		}
		return !found
	})
	return found
}

func stringKeys(table *ast.CompositeLit) []*ast.BasicLit {
	var keys []*ast.BasicLit
	for _, elt := range table.Elts {
		if kv, ok := elt.(*ast.KeyValueExpr); ok {
			if lit, ok := kv.Key.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				keys = append(keys, lit)
			}
		}
	}
	return keys
}

// TestOnlyNeedSkips keeps skips countable: only internal/need may skip a test. A rapid.T's Skip is something else: it
// gives up a step that doesn't apply.
func TestOnlyNeedSkips(t *testing.T) {
	for _, s := range sources(t) {
		if s.dir() == "internal/need" {
			continue
		}
		for _, call := range skips(s.file, nil) {
			t.Errorf("%s: say what the test can't do without through internal/need", s.at(call.Pos()))
		}
	}
}

// skips finds the uses of Skip, Skipf and SkipNow on what is a parameter of a type of package testing where it's used.
// scope tells that of the parameters around n, by name.
func skips(n ast.Node, scope map[string]bool) []*ast.SelectorExpr {
	var found []*ast.SelectorExpr
	ast.Inspect(n, func(child ast.Node) bool {
		var typ *ast.FuncType
		switch child := child.(type) {
		case *ast.FuncDecl:
			typ = child.Type
		case *ast.FuncLit:
			typ = child.Type
		case *ast.SelectorExpr:
			x, ok := child.X.(*ast.Ident)
			if ok && scope[x.Name] && strings.HasPrefix(child.Sel.Name, "Skip") && child.Sel.Name != "Skipped" {
				found = append(found, child)
			}
		}
		if typ == nil || child == n {
			return true
		}
		inner := maps.Clone(scope)
		if inner == nil {
			inner = make(map[string]bool)
		}
		for _, param := range typ.Params.List {
			for _, name := range param.Names {
				inner[name.Name] = isTesting(param.Type)
			}
		}
		found = append(found, skips(child, inner)...)
		return false
	})
	return found
}

func isTesting(typ ast.Expr) bool {
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	sel, ok := typ.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && pkg.Name == "testing"
}

// TestErrorTexts keeps "failed to" out of errors: they are wrapped, and the words would stack up.
func TestErrorTexts(t *testing.T) {
	stacks := regexp.MustCompile("^[\"`](?i:failed to|failure to|error |could not|cannot |unable to)")
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			sel, _ := call.Fun.(*ast.SelectorExpr)
			text, isText := call.Args[0].(*ast.BasicLit)
			if sel != nil && isText && (sel.Sel.Name == "Errorf" || sel.Sel.Name == "New") {
				if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "fmt" || x.Name == "errors") && stacks.MatchString(text.Value) {
					t.Errorf("%s: error %s: say what was being done: \"mount image x: ...\"", s.at(n.Pos()), text.Value)
				}
			}
			return true
		})
	}
}
