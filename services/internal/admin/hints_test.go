package admin

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

var flagName = regexp.MustCompile(`--[a-z][a-z-]+`)

// TestHintsNameFlags checks that a hint names only flags that the running command has.
func TestHintsNameFlags(t *testing.T) {
	a := newApp("1", System())
	errs := []error{envelope.ErrUnknownKey, envelope.ErrAuthentication, secretstore.ErrNoKey, clusterstate.ErrForeign,
		clusterstate.ErrCALost, authority.ErrCAValidity, objstore.ErrUnconditional, objstore.ErrIndeterminate,
		syscall.ENOSPC, context.DeadlineExceeded}
	checked := 0
	walk(a.command(), func(cmd *command) {
		if cmd.HasSubCommands() || cmd.Flag("storage-bucket") == nil {
			return
		}
		a.running = cmd
		for _, err := range errs {
			if cmd.Flag("key-provider") == nil && (errors.Is(err, envelope.ErrUnknownKey) ||
				errors.Is(err, secretstore.ErrNoKey)) {
				continue // the command opens no secret
			}
			hint := a.hintOf(fmt.Errorf("read: %w", err))
			if strings.HasPrefix(hint, "nstance-admin ") {
				continue // of another command: see below
			}
			for _, name := range flagName.FindAllString(hint, -1) {
				checked++
				if cmd.Flag(name[2:]) == nil {
					t.Errorf("%s: the hint %q names %s, which the command lacks", cmd.CommandPath(), hint, name)
				}
			}
			if strings.HasSuffix(hint, "check ") {
				t.Errorf("%s: the hint of %v is cut: %q", cmd.CommandPath(), err, hint)
			}
		}
	})
	if checked < 50 {
		t.Errorf("only %d flags were checked", checked)
	}
}

// otherFlags holds flags that nstance-admin's texts mention but that belong to other programs. It maps each flag to the
// name of its program.
var otherFlags = map[string]string{"--cachedir": "nstance-server", "--from-literal": "kubectl",
	"--namespace": "kubectl", "--bucket": "nstance-server", "--id": "nstance-server", "--help": "every command"}

// TestTextsNameFlags reads every string in the sources of the program. A command line in a string must have only flags
// of its command. Any other flag in a string must be a flag of some command.
func TestTextsNameFlags(t *testing.T) {
	root := newApp("1", System()).command()
	known := map[string]bool{}
	walk(root, func(cmd *command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
		cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
	})
	checked := 0
	for _, text := range texts(t, ".", "fleet", "serve/httpapi", "serve/web") {
		for n, part := range strings.Split(text, "nstance-admin ") {
			args := strings.Fields(part)
			cmd, rest, err := root.Find(args)
			line, _, _ := strings.Cut(part, ";")
			for _, name := range flagName.FindAllString(line, -1) {
				checked++
				switch {
				case otherFlags[name] != "":
				case n > 0 && err == nil && cmd != root && !cmd.HasSubCommands() && len(rest) < len(args):
					if cmd.Flag(name[2:]) == nil && strings.Index(line, name) < strings.Index(line+"\n", "\n") {
						t.Errorf("%q: %s has no flag %s", text, cmd.CommandPath(), name)
					}
				case !known[name]:
					t.Errorf("%q: no command has a flag %s", text, name)
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d flags were checked", checked)
	}
}

// TestPlurals checks that numbers of things are written by count, which says "1 instance", and not "1 instances".
func TestPlurals(t *testing.T) {
	plural := regexp.MustCompile(`%d [A-Za-z]*[a-z]s\b`)
	for _, text := range texts(t, ".", "fleet") {
		for _, found := range plural.FindAllString(text, -1) {
			if !slices.Contains([]string{"%d bytes", "%d ends", "%d is"}, found) {
				t.Errorf("%q: write %q with count", text, found)
			}
		}
	}
}

// texts returns the string literals in the Go files of directories, except test files. Literals joined with + are one
// text.
func texts(t *testing.T, dirs ...string) (out []string) {
	t.Helper()
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if text, ok := joined(n); ok {
					out = append(out, text)
					return false
				}
				return true
			})
		}
	}
	return out
}

// joined returns the text of a string literal, or of literals joined with +. An operand of + that is not a literal
// counts as one space.
func joined(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.BasicLit:
		if n.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(n.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, ok := joined(n.X)
		right, ok2 := joined(n.Y)
		if n.Op != token.ADD || !ok && !ok2 {
			return "", false
		}
		if !ok {
			left = " "
		}
		if !ok2 {
			right = " "
		}
		return left + right, true
	}
	return "", false
}

// TestNoEndingInstanceLooksHealthy lists an instance that is being deleted. The last report of its agent may have
// called it healthy.
func TestNoEndingInstanceLooksHealthy(t *testing.T) {
	a := &app{Environment: Environment{Now: time.Now}}
	row := a.instanceRow("s", &nstancev1.InstanceStatus{State: "deleting", Health: "healthy"})
	if got := row[4].text; got != "deleting" {
		t.Errorf("its health is %q", got)
	}
}
