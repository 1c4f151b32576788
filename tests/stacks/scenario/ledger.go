package scenario

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// Ledger records the calls of the servers of all stacks, and what their roles allow. Its methods may be called
// concurrently.
//
// The roles must allow exactly what the servers' calls require, and no call may be denied. Removing any permission from
// a role therefore makes the test fail: either a call is denied, or the permission was never needed. TestLedger proves
// that the ledger reports each kind of difference.
type Ledger struct {
	mu      sync.Mutex
	used    map[string]map[string]bool // Permissions that a call requires, by call: "ec2:RunInstances".
	allowed map[string]bool
	denied  []string
}

// Allow records permissions that the roles have.
func (l *Ledger) Allow(permissions ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.allowed == nil {
		l.allowed = map[string]bool{}
	}
	for _, permission := range permissions {
		l.allowed[permission] = true
	}
}

// Use records that a server made a call.
func (l *Ledger) Use(call string) { l.use(call, func(map[string]bool) {}) }

// Check records that a call required a permission. "denied" is the reason why the caller lacks the permission, or "" if
// the caller has it.
func (l *Ledger) Check(call, permission, denied string) {
	l.use(call, func(permissions map[string]bool) {
		permissions[permission] = true
		if denied != "" {
			l.denied = append(l.denied, permission+" "+denied)
		}
	})
}

func (l *Ledger) use(call string, record func(permissions map[string]bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used == nil {
		l.used = map[string]map[string]bool{}
	}
	if l.used[call] == nil {
		l.used[call] = map[string]bool{}
	}
	record(l.used[call])
}

// Compare fails the test if the recorded calls do not match the permissions of the roles, or the tables on a page in
// docs/reference. It must be called after the stacks have run.
func (l *Ledger) Compare(t *testing.T, page string) {
	t.Helper()
	if len(l.used) == 0 {
		t.Fatal("no stack ran, so there are no calls to compare with the roles")
	}
	for _, problem := range l.problems(documented(t, page)) {
		t.Error(problem)
	}
}

func (l *Ledger) problems(documented map[string]string) (problems []string) {
	for _, denied := range l.denied {
		problems = append(problems, "a server was denied "+denied)
	}
	used, calls := map[string]bool{}, map[string]string{}
	for call, permissions := range l.used {
		maps.Copy(used, permissions)
		calls[call] = strings.Join(slices.Sorted(maps.Keys(permissions)), " ")
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(l.allowed)), slices.Sorted(maps.Keys(used))); diff != "" {
		problems = append(problems, "permissions that the roles have (-), and that the servers' calls asked for (+):\n"+
			diff)
	}
	if diff := cmp.Diff(documented, calls); diff != "" {
		problems = append(problems, "calls in the documentation (-), and calls that servers made (+):\n"+diff)
	}
	return problems
}

// row matches a row of a table of calls. The row has a call, and the permissions that the call needs.
var row = regexp.MustCompile("(?m)^\\| `([a-z0-9]+[:.][A-Za-z0-9.]+)` \\| ((?:`[a-z0-9]+[:.][A-Za-z.]+` ?)+)\\|")

// documented returns the contents of the tables of calls in a page of docs/reference.
func documented(t *testing.T, page string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(lab.Root(), "docs", "reference", page))
	if err != nil {
		t.Fatal(fmt.Errorf("read the tables of calls: %w", err))
	}
	calls := map[string]string{}
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		permissions := strings.Fields(strings.ReplaceAll(match[2], "`", ""))
		slices.Sort(permissions)
		calls[match[1]] = strings.Join(permissions, " ")
	}
	return calls
}
