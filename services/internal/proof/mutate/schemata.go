package mutate

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// A Mutant is one of the bugs that [Plant] puts into a file. It does nothing until the program runs with its ID.
type Mutant struct {
	ID      int
	Line    int
	Was     string // source text
	Becomes string // source text, or "" if the statement is left out
}

func (m Mutant) String() string {
	if m.Becomes == "" {
		return fmt.Sprintf("without %q", m.Was)
	}
	return fmt.Sprintf("%q becomes %q", m.Was, m.Becomes)
}

// Plant returns the source of a Go file with many bugs in it, and the list of the bugs. Each bug has an ID, beginning
// with first, and happens only while the function of [Switch] returns true for this ID. So one build serves all bugs.
// Lines keep their numbers.
//
// Bugs are: another comparison, a condition without one of its operands, a negated condition, an error that is
// returned as nil, and a call or an assignment that is left out. Lines for which skip returns true get no bugs.
func Plant(src []byte, first int, skip func(line int) bool) ([]byte, []Mutant, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, nil, err
	}
	if ast.IsGenerated(file) {
		return src, nil, nil
	}
	p := planter{src: src, files: files, next: first, skip: skip, opens: map[int]string{}, closes: map[int]string{}}
	for _, decl := range file.Decls {
		// A constant expression stays constant: declarations outside functions are left as they are.
		if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil {
			p.function(f.Type, f.Body)
		}
	}
	var out bytes.Buffer
	for offset := range len(src) + 1 {
		out.WriteString(p.closes[offset])
		out.WriteString(p.opens[offset])
		if offset < len(src) {
			out.WriteByte(src[offset])
		}
	}
	return out.Bytes(), p.mutants, nil
}

// Switch returns the source of a file for the package with the given name. The function in it answers whether a mutant
// is active: the one with the number in the environment variable MUTANT. If MUTANTS_REACHED names a file, the function
// appends the ID of each mutant to this file the first time that it is asked about it.
func Switch(name string) []byte {
	return fmt.Appendf(nil, `package %s

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

var (
	mutantNumber, _ = strconv.Atoi(os.Getenv("MUTANT"))
	mutantsFile     = os.Getenv("MUTANTS_REACHED")
	mutantsReached  sync.Map
)

func mutantActive(id int) bool {
	if mutantsFile != "" {
		if _, before := mutantsReached.LoadOrStore(id, true); !before {
			if f, err := os.OpenFile(mutantsFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				fmt.Fprintln(f, id)
				f.Close()
			}
		}
	}
	return id == mutantNumber
}
`, name)
}

type planter struct {
	src           []byte
	files         *token.FileSet
	next          int
	skip          func(int) bool
	opens, closes map[int]string // text to insert before the byte at an offset; closes come first
	mutants       []Mutant
}

// function plants bugs into the body of a function or of a function literal.
func (p *planter) function(kind *ast.FuncType, body *ast.BlockStmt) {
	results := kind.Results.NumFields()
	failing := false
	if results > 0 {
		last, ok := kind.Results.List[len(kind.Results.List)-1].Type.(*ast.Ident)
		failing = ok && last.Name == "error"
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			p.function(n.Type, n.Body)
			return false
		case *ast.GenDecl:
			return n.Tok != token.CONST
		case *ast.BlockStmt:
			p.statements(n.List)
		case *ast.CaseClause:
			p.statements(n.Body)
		case *ast.CommClause:
			p.statements(n.Body)
		case *ast.ReturnStmt:
			if failing && len(n.Results) == results {
				p.returnNil(n)
			}
		case *ast.IfStmt:
			p.negate(n.Cond)
		case *ast.BinaryExpr:
			p.binary(n)
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				p.instead(n, p.text(n.X))
			}
		}
		return true
	})
}

// others are the comparisons that replace a comparison: its nearest neighbour, and its opposite.
var others = map[token.Token][]string{
	token.LSS: {"<=", ">="},
	token.LEQ: {"<", ">"},
	token.GTR: {">=", "<="},
	token.GEQ: {">", "<"},
	token.EQL: {"!="},
	token.NEQ: {"=="},
}

func (p *planter) binary(n *ast.BinaryExpr) {
	x, y := p.text(n.X), p.text(n.Y)
	switch n.Op {
	case token.LAND, token.LOR:
		p.instead(n, x, y)
	default:
		var becomes []string
		for _, op := range others[n.Op] {
			becomes = append(becomes, x+" "+op+" "+y)
		}
		p.instead(n, becomes...)
	}
}

// negate plants the opposite of a condition for which binary and function plant nothing.
func (p *planter) negate(cond ast.Expr) {
	switch cond := cond.(type) {
	case *ast.Ident, *ast.CallExpr, *ast.SelectorExpr, *ast.IndexExpr:
		p.instead(cond, "!"+p.text(cond))
	}
}

func (p *planter) returnNil(n *ast.ReturnStmt) {
	last := len(n.Results) - 1
	if ident, ok := n.Results[last].(*ast.Ident); ok && ident.Name == "nil" {
		return
	}
	results := make([]string, len(n.Results))
	for i, r := range n.Results {
		results[i] = p.text(r)
	}
	results[last] = "nil"
	becomes := "return " + strings.Join(results, ", ")
	if id, ok := p.add(n, becomes); ok {
		p.wrap(n, fmt.Sprintf("if mutantActive(%d) { %s }; ", id, becomes), "")
	}
}

func (p *planter) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); !ok || p.text(call.Fun) == "panic" {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || slices.ContainsFunc(s.Lhs, isBlank) {
				continue
			}
		case *ast.IncDecStmt, *ast.DeferStmt:
		default:
			continue
		}
		if id, ok := p.add(s, ""); ok {
			p.wrap(s, fmt.Sprintf("if !mutantActive(%d) { ", id), " }")
		}
	}
}

func isBlank(e ast.Expr) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == "_"
}

// instead plants bugs that replace a condition by others.
func (p *planter) instead(n ast.Expr, becomes ...string) {
	var off, on strings.Builder
	for _, text := range becomes {
		if id, ok := p.add(n, text); ok {
			fmt.Fprintf(&off, "!mutantActive(%d) && ", id)
			fmt.Fprintf(&on, " || mutantActive(%d) && (%s)", id, text)
		}
	}
	if on.Len() > 0 {
		p.wrap(n, "("+off.String()+"(", ")"+on.String()+")")
	}
}

// add lists a bug. It reports false for what would change the number of lines, and for lines to skip.
func (p *planter) add(n ast.Node, becomes string) (id int, ok bool) {
	line := p.files.Position(n.Pos()).Line
	if p.skip(line) || strings.Contains(becomes, "\n") || strings.Contains(becomes, "//") {
		return 0, false
	}
	was, _, _ := strings.Cut(p.text(n), "\n")
	p.mutants = append(p.mutants, Mutant{ID: p.next, Line: line, Was: was, Becomes: becomes})
	p.next++
	return p.next - 1, true
}

// wrap puts text around a node. Nodes come in pre-order, so a text that is added later is nearer to its node.
func (p *planter) wrap(n ast.Node, before, after string) {
	begin, end := p.files.Position(n.Pos()).Offset, p.files.Position(n.End()).Offset
	p.opens[begin] += before
	p.closes[end] = after + p.closes[end]
}

func (p *planter) text(n ast.Node) string {
	return string(p.src[p.files.Position(n.Pos()).Offset:p.files.Position(n.End()).Offset])
}
