//go:build mutation

package election

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each mutation is a mistake that one could make with the heir. The model, the worlds, or where those would have to be
// lucky the tests of unsettled writes, must find every one of them: else they would not find the next real mistake
// either.
var mutations = []struct{ name, file, from, to string }{
	{"the leader counts a promise from its arrival", "heir.go",
		"l.promises, l.promised = true, sent", "l.promises, l.promised = true, now"},
	{"the leader acts without a promise", "heir.go",
		"if end := e.promiseEnd(heir); end < until {", "if end := e.promiseEnd(heir); end < 0 {"},
	{"who has sent a take-over promises on", "promise.go",
		"case e.pending == write || e.write.sends > 0:", "case e.pending != write && e.write.sends > 0:"},
	{"a take-over without answer allows promises", "promise.go",
		"case e.pending == write || e.write.sends > 0:", "case e.pending == write:"},
	{"a restarted heir keeps its claim", "promise.go",
		"return lock.Heir == e.self.Peer() && e.promise.to.Incarnation == lock.Incarnation && e.promise.term == " +
			"lock.Term",
		"return lock.Heir.ID == e.self.ID"},
	{"while a change is unsettled only the new heir is asked", "heir.go",
		"heirs := [2]Peer{e.heir}", "heirs := [2]Peer{}\n\tif e.write.sends == 0 {\n\t\theirs[0] = e.heir\n\t}"},
	{"while a change is unsettled only the old heir is asked", "heir.go",
		"heirs[1] = e.write.lock.Heir", ""},
	{"while a change is unsettled the lease of before counts", "heir.go",
		"until = min(until, e.write.began.Add(authority(e.write.lock.Lease())))", ""},
	{"no margin between a promise and its end", "promise.go",
		"now.Add(promiseHold(h.Length))", "now.Add(h.Length*9/10)"},
	{"the heir does not wait for the end of its promise", "watch.go",
		"return e.promise.until\n\t\t}", "return e.seen.since\n\t\t}"},
	{"followers wait for the short lease of a lock with an heir", "watch.go",
		"return max(e.seen.since.Add(takeoverWait(lock.Lease())), e.promise.until)",
		"return max(e.seen.since.Add(takeoverWait(e.opt.Lease)), e.promise.until)"},
	{"the leader keeps an heir that does not answer", "heir.go",
		"case !l.up || !l.promises || now >= l.promised.Add(e.opt.stale()):", "case !l.promises:"},
	{"promises are forgotten with the link", "heir.go",
		"\t\tl.up = false\n\t}\n\tif e.role == Releasing", "\t\t*l = link{}\n\t}\n\tif e.role == Releasing"},
	{"the leader stops without a farewell", "elector.go",
		"if led {\n\t\te.sayFarewell(now, d)\n\t}", ""},
	{"a farewell is said and the lock kept", "heir.go",
		"e.stale, e.retryAt = true, now.Add(e.opt.PeerLease)", "e.taken = true"},
}

func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			text, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), m.from); n != 1 {
				t.Fatalf("%q is %d times in %s", m.from, n, m.file)
			}
			dir := t.TempDir()
			changed := filepath.Join(dir, m.file)
			if err := os.WriteFile(changed, []byte(strings.Replace(string(text), m.from, m.to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			path, err := filepath.Abs(m.file)
			if err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "overlay.json")
			if err := os.WriteFile(file, overlay, 0o600); err != nil {
				t.Fatal(err)
			}
			var out []byte
			for _, effort := range []string{"-short", "-short=false"} { // most are found at once
				cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", file, "-vet=off", effort, "-failfast",
					"-timeout", "280s",
					"-run", "^(TestUnsettled.*|TestHeirModel|TestHeirWorlds|TestHeirTimes|TestHeirEnds)$", ".")
				if out, err = cmd.CombinedOutput(); err != nil {
					break
				}
			}
			switch {
			case err == nil:
				t.Error("not found")
			case !strings.Contains(string(out), "--- FAIL: Test"):
				t.Errorf("it does not even run: %s", out)
			default:
				for line := range strings.Lines(string(out)) {
					if strings.Contains(line, "_test.go") && !strings.Contains(line, "all stories of") {
						t.Logf("found: %s", strings.TrimSpace(line))
						break
					}
				}
			}
		})
	}
}
