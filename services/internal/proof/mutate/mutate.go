// Package mutate puts deliberate bugs into source files, for tests that check whether other tests find them. An edit
// contains the name of a function and the shape of a statement or expression in this function. So formatting, comments
// and renamed variables do not break the edit.
package mutate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Edit is one deliberate bug.
type Edit struct {
	// Package is the directory of the package, relative to the root that WriteOverlay gets.
	Package string
	// In is the name of a function, method (Type.Method), constant or variable of the package.
	In string
	// Find is an expression or a list of statements that occurs exactly once in the declaration of In. As in gofmt -r,
	// an identifier of one lower-case letter matches any expression. If a letter is used twice, it must match the same
	// expression twice.
	Find string
	// Replace is the source that replaces the match of Find. If Find contains an identifier of one letter, the same
	// letter in Replace means the expression that this identifier matched.
	Replace string
}

// errNoDeclaration means that a file has no declaration with the name in Edit.In.
var errNoDeclaration = errors.New("no such function, constant or variable")

// apply returns the edited source of a file. If Find does not occur exactly once, the error says so.
func (e Edit) apply(src []byte) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	scope := findDeclaration(file, e.In)
	if scope == nil {
		return nil, errNoDeclaration
	}
	pattern, err := parsePattern(e.Find)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", e.Find, err)
	}
	text := func(n ast.Node) string {
		return string(src[files.Position(n.Pos()).Offset:files.Position(n.End()).Offset])
	}
	found := pattern.findAll(scope, text)
	if len(found) != 1 {
		return nil, fmt.Errorf("%q occurs %d times, want once", e.Find, len(found))
	}
	hit := found[0]
	replacement := substitute(e.Replace, hit.letters)
	begin, end := files.Position(hit.from).Offset, files.Position(hit.to).Offset
	changed, err := format.Source(slices.Concat(src[:begin], []byte(replacement), src[end:]))
	if err != nil {
		return nil, fmt.Errorf("replace by %q: %w", replacement, err)
	}
	if bytes.Equal(changed, src) {
		return nil, errors.New("the edit changes nothing")
	}
	return changed, nil
}

// WriteOverlay applies the edit to a package below root. It writes a file for the go command's flag -overlay into dir,
// and returns the path of that file.
func (e Edit) WriteOverlay(root, dir string) (string, error) {
	folder, err := filepath.Abs(filepath.Join(root, filepath.FromSlash(e.Package)))
	if err != nil {
		return "", err
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		changed, err := e.apply(src)
		if errors.Is(err, errNoDeclaration) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("change %s in %s: %w", e.In, path, err)
		}
		copied, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
		listing, err := json.Marshal(map[string]map[string]string{"Replace": {path: copied}})
		if err != nil {
			return "", err
		}
		return overlay, errors.Join(os.WriteFile(copied, changed, 0o600), os.WriteFile(overlay, listing, 0o600))
	}
	return "", fmt.Errorf("change %s in %s: %w", e.In, folder, errNoDeclaration)
}

// findDeclaration returns the declaration with a name, or nil.
func findDeclaration(file *ast.File, name string) ast.Node {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if functionName(decl) == name {
				return decl
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if values, ok := spec.(*ast.ValueSpec); ok && values.Names[0].Name == name {
					return values
				}
			}
		}
	}
	return nil
}

func functionName(decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return decl.Name.Name
	}
	receiver := decl.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	if ident, ok := receiver.(*ast.Ident); ok {
		return ident.Name + "." + decl.Name.Name
	}
	return decl.Name.Name
}

// shape is what Find describes: an expression, or statements that follow each other.
type shape struct {
	expr  ast.Expr
	stmts []ast.Stmt
}

// match is a place where a shape was found.
type match struct {
	from, to token.Pos
	letters  map[string]string // source text by letter
}

func parsePattern(find string) (shape, error) {
	if expr, err := parser.ParseExpr(find); err == nil {
		return shape{expr: expr}, nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+find+"\n}",
		parser.SkipObjectResolution)
	if err != nil {
		return shape{}, err
	}
	stmts := file.Decls[0].(*ast.FuncDecl).Body.List
	if len(stmts) == 0 {
		return shape{}, errors.New("empty")
	}
	return shape{stmts: stmts}, nil
}

// findAll returns every place in the syntax tree scope that matches the shape s.
func (s shape) findAll(scope ast.Node, text func(ast.Node) string) (found []match) {
	try := func(nodes ...ast.Node) {
		c := comparison{letters: map[string]string{}, text: text}
		for i, n := range nodes {
			pattern := ast.Node(s.expr)
			if s.expr == nil {
				pattern = s.stmts[i]
			}
			if !c.equal(reflect.ValueOf(pattern), reflect.ValueOf(n)) {
				return
			}
		}
		found = append(found, match{from: nodes[0].Pos(), to: nodes[len(nodes)-1].End(), letters: c.letters})
	}
	ast.Inspect(scope, func(n ast.Node) bool {
		var list []ast.Stmt
		switch n := n.(type) {
		case ast.Expr:
			if s.expr != nil {
				try(n)
			}
		case *ast.BlockStmt:
			list = n.List
		case *ast.CaseClause:
			list = n.Body
		case *ast.CommClause:
			list = n.Body
		}
		for i := 0; s.expr == nil && i+len(s.stmts) <= len(list); i++ {
			nodes := make([]ast.Node, len(s.stmts))
			for j := range nodes {
				nodes[j] = list[i+j]
			}
			try(nodes...)
		}
		return true
	})
	return found
}

// comparison compares syntax trees without their positions and comments.
type comparison struct {
	letters map[string]string
	text    func(ast.Node) string
}

var (
	positionType = reflect.TypeFor[token.Pos]()
	commentType  = reflect.TypeFor[*ast.CommentGroup]()
	objectType   = reflect.TypeFor[*ast.Object]() //nolint:staticcheck // the field that holds it is skipped
)

func (c comparison) equal(pattern, value reflect.Value) bool {
	if pattern.IsValid() != value.IsValid() {
		return false
	}
	if !pattern.IsValid() {
		return true
	}
	switch pattern.Type() {
	case positionType:
		return pattern.Interface() == token.NoPos == (value.Interface() == token.NoPos)
	case commentType, objectType:
		return true
	}
	if ident, ok := pattern.Interface().(*ast.Ident); ok && ident != nil && isLetter(ident.Name) {
		node, ok := value.Interface().(ast.Expr)
		if !ok || value.IsNil() {
			return false
		}
		text := c.text(node)
		if before, bound := c.letters[ident.Name]; bound {
			return before == text
		}
		c.letters[ident.Name] = text
		return true
	}
	if pattern.Type() != value.Type() && pattern.Kind() != reflect.Interface {
		return false
	}
	switch pattern.Kind() {
	case reflect.Interface, reflect.Pointer:
		if pattern.IsNil() || value.IsNil() {
			return pattern.IsNil() == value.IsNil()
		}
		return c.equal(pattern.Elem(), value.Elem())
	case reflect.Slice:
		if pattern.Len() != value.Len() {
			return false
		}
		for i := range pattern.Len() {
			if !c.equal(pattern.Index(i), value.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range pattern.NumField() {
			if !c.equal(pattern.Field(i), value.Field(i)) {
				return false
			}
		}
		return true
	}
	return pattern.Interface() == value.Interface()
}

func isLetter(name string) bool { return len(name) == 1 && name[0] >= 'a' && name[0] <= 'z' }

// substitute replaces each letter in a replacement by the source that the letter matched.
func substitute(replace string, letters map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(replace); {
		end := i
		for end < len(replace) && isIdentifier(replace[end]) {
			end++
		}
		if end == i {
			out.WriteByte(replace[i])
			i++
			continue
		}
		text, ok := letters[replace[i:end]]
		if !ok {
			text = replace[i:end]
		}
		out.WriteString(text)
		i = end
	}
	return out.String()
}

func isIdentifier(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
