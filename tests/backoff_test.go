package tests

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// backoffHelper is the only file that may double a pause.
const backoffHelper = "services/contract/reconnect/backoff.go"

// notPauses are the variables that may grow elsewhere, as path and name. None is the pause of a retry, except for those
// of the agent's session, which limits them.
var notPauses = []string{
	"services/contract/config/types_group.go passes", "services/contract/config/window.go past",
	"services/internal/agent/session.go delays.InitialInterval",
	"services/internal/agent/session.go delays.MaxInterval",
	"services/internal/server/infra/aws/identity.go length", "services/internal/server/plan/pace.go p.Every",
	"services/internal/proof/sim/server.go rate", "services/internal/proof/sim/shrink.go parts",
}

// doublings returns the positions in a file at which a variable grows to a multiple of itself, and those at which a
// value other than a literal is shifted by a variable number of places.
func doublings(file *ast.File) map[token.Pos]string {
	found := map[token.Pos]string{}
	within := func(name string, in ast.Node) bool { // as x in x + x, 2 * x and x << 1
		grows := false
		ast.Inspect(in, func(n ast.Node) bool {
			e, ok := n.(*ast.BinaryExpr)
			if !ok || !slices.Contains([]token.Token{token.MUL, token.SHL, token.ADD}, e.Op) {
				return true
			}
			x, y := text(e.X) == name, text(e.Y) == name
			grows = grows || x && y || e.Op != token.ADD && (x || y)
			return true
		})
		return grows
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				name := text(left)
				if name == "" || name == "_" {
					continue
				}
				switch {
				case n.Tok == token.MUL_ASSIGN, n.Tok == token.SHL_ASSIGN:
					found[n.Pos()] = name
				case n.Tok == token.ASSIGN && len(n.Rhs) == len(n.Lhs) && within(name, n.Rhs[i]),
					n.Tok == token.ADD_ASSIGN && text(n.Rhs[i]) == name:
					found[n.Pos()] = name
				}
			}
		case *ast.BinaryExpr:
			_, literal := n.X.(*ast.BasicLit)
			_, fixed := n.Y.(*ast.BasicLit)
			if n.Op == token.SHL && !literal && !fixed {
				found[n.Pos()] = "shift"
			}
		}
		return true
	})
	return found
}

// text returns a variable or a field of one as it is written, such as a.tries, or "" for other expressions.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if of := text(e.X); of != "" {
			return of + "." + e.Sel.Name
		}
	case *ast.ParenExpr:
		return text(e.X)
	}
	return ""
}

// TestPausesGrowOnlyInTheHelper checks that every pause between retries comes from [reconnect.Backoff], which has a
// limit. A pause that doubles without a limit overflows after 34 failures, and the retries are then endless calls
// without any pause.
func TestPausesGrowOnlyInTheHelper(t *testing.T) {
	forEachFile(t, func(name string, set *token.FileSet, file *ast.File) {
		for pos, what := range doublings(file) {
			if name != backoffHelper && !slices.Contains(notPauses, name+" "+what) {
				t.Errorf("%s:%d: %s grows to a multiple of itself: use reconnect.Backoff for the pauses of retries",
					name, set.Position(pos).Line, what)
			}
		}
	})
}

// forEachFile calls fn for every hand-written Go file of the product. "name" is the path of the file in the repository.
func forEachFile(t *testing.T, fn func(name string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	root := ".."
	for _, top := range []string{"services", "terraform-provider-nstance"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.HasSuffix(path, ".pb.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			fn(filepath.ToSlash(name), set, file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDoublingsAreFound checks the test above with the forms that people write.
func TestDoublingsAreFound(t *testing.T) {
	for statement, want := range map[string]bool{
		"delay *= 2": true, "delay <<= 1": true, "delay = delay * 2": true, "delay = 2 * delay": true,
		"delay = min(2*delay, most)": true, "wait, delay = min(delay, every), 2*delay": true, "delay += delay": true,
		"delay = delay + delay": true, "delay = min(delay<<1, most)": true, "a.delay *= 2": true,
		"delay = time.Duration(float64(delay) * 1.5)": false, // growth in floating point does not overflow
		"wait := first << min(tries, 3)":              true, "bit := 1 << n": false, "delay += step": false,
		"n = a * b": false,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() {\n"+statement+"\n}",
			parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(doublings(file)) > 0; got != want {
			t.Errorf("%s: found %v, want %v", statement, got, want)
		}
	}
}

// TestConflictsAreCounted checks that every repetition of a conditional write takes its pauses and its limit from
// objstore.Conflicts: a loop must not go on because of ErrConflict.
func TestConflictsAreCounted(t *testing.T) {
	forEachFile(t, func(name string, set *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			loop, ok := n.(*ast.ForStmt)
			if !ok {
				return true
			}
			ast.Inspect(loop, func(n ast.Node) bool {
				condition, ok := n.(*ast.BinaryExpr)
				if !ok || condition.Op != token.LAND && condition.Op != token.LOR {
					return true
				}
				var source strings.Builder
				_ = printer.Fprint(&source, set, condition)
				if s := source.String(); strings.Contains(s, "objstore.ErrConflict") &&
					strings.Contains(s, "ctx.Err()") {
					t.Errorf("%s:%d: use objstore.Conflicts to write again after a conflict", name,
						set.Position(condition.Pos()).Line)
				}
				return true
			})
			return true
		})
	})
}
