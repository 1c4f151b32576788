package receiver_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/agent/receiver"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

func open(dir folder.Folder) *receiver.Receiver {
	return receiver.Open(dir, receiver.Options{Mode: 0o640, Extensions: []string{".conf"}, Hooked: true,
		Log: slog.New(slog.DiscardHandler)})
}

func disk(t *testing.T) *folder.Disk {
	t.Helper()
	d, err := folder.Open(filepath.Join(t.TempDir(), "recv"), 0o750)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// files is a set of env files by name.
type files map[string]string

// apply applies a batch that sends some files and commits exactly the given names.
func apply(t *testing.T, r *receiver.Receiver, hash string, send files, names ...string) []string {
	t.Helper()
	changed, err := try(r, hash, send, names...)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func try(r *receiver.Receiver, hash string, send files, names ...string) ([]string, error) {
	batch := r.NewBatch()
	for name, content := range send {
		batch.Add(&nstancev1.File{Name: name, Content: []byte(content), Kind: "string"})
	}
	return r.Apply(batch, &nstancev1.FilesCommit{RuntimeHash: hash, Names: names})
}

// stored returns the files of a folder.
func stored(t *testing.T, dir folder.Folder) files {
	t.Helper()
	names, err := dir.List()
	if err != nil {
		t.Fatal(err)
	}
	got := files{}
	for _, name := range names {
		content, err := dir.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(content)
	}
	return got
}

// reported returns the hash of each file's content, or "error: …", according to the receiver.
func reported(r *receiver.Receiver) map[string]string {
	got := map[string]string{}
	for _, state := range r.States() {
		got[state.Name] = state.Sha256
		if state.Error != "" {
			got[state.Name] = "error: " + state.Error
		}
	}
	return got
}

func sum(content string) string {
	digest := sha256.Sum256([]byte(content))
	return hex.EncodeToString(digest[:])
}

func TestBatches(t *testing.T) {
	dir := disk(t)
	if err := dir.Write("foreign.env", []byte("MINE=1"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(dir)
	check := func(step string, changed, wantChanged []string, hash string, want files) {
		t.Helper()
		if diff := cmp.Diff(wantChanged, changed, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: changed: %s", step, diff)
		}
		states := map[string]string{}
		for name, content := range want {
			states[name] = sum(content)
		}
		for name, r := range map[string]*receiver.Receiver{"running": r, "reopened": open(dir)} {
			if r.Hash() != hash {
				t.Errorf("%s, %s: hash %q, want %q", step, name, r.Hash(), hash)
			}
			if diff := cmp.Diff(states, reported(r), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s, %s: states: %s", step, name, diff)
			}
		}
		want = maps.Clone(want)
		want["foreign.env"] = "MINE=1"
		if diff := cmp.Diff(want, stored(t, dir)); diff != "" {
			t.Errorf("%s: on disk: %s", step, diff)
		}
	}
	check("empty", nil, nil, "", files{})
	changed := apply(t, r, "h1", files{"a.env": "A=1", "b.conf": "b"}, "a.env", "b.conf", "later.crt")
	check("first", changed, []string{"a.env", "b.conf"}, "h1", files{"a.env": "A=1", "b.conf": "b"})
	changed = apply(t, r, "h1", files{"a.env": "A=1"}, "a.env", "b.conf")
	check("same", changed, nil, "h1", files{"a.env": "A=1", "b.conf": "b"})
	changed = apply(t, r, "h2", files{"a.env": "A=2", "c.json": "{}"}, "a.env", "c.json")
	check("replaced", changed, []string{"a.env", "c.json", "b.conf"}, "h2", files{"a.env": "A=2", "c.json": "{}"})
	changed = apply(t, r, "h3", nil, "a.env", "c.json")
	check("only the hash", changed, nil, "h3", files{"a.env": "A=2", "c.json": "{}"})
	changed = apply(t, r, "h4", nil)
	check("emptied", changed, []string{"a.env", "c.json"}, "h4", files{})
	if diff := cmp.Diff([]string{"a.env", "b.conf", "c.json"}, r.Pending()); diff != "" {
		t.Errorf("Pending: %s", diff)
	}
	if err := r.Done([]string{"a.env", "b.conf"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c.json"}, open(dir).Pending()); diff != "" {
		t.Errorf("Pending after Done: %s", diff)
	}
	if info, err := os.Stat(filepath.Join(dir.Path(), ".state.json")); err != nil || info.Mode() != 0o600 {
		t.Errorf("state: %v, %v", info, err)
	}
}

// An unchanged batch writes nothing to the disk.
func TestSameBatchWritesNothing(t *testing.T) {
	counter := &faulty{Folder: &foldertest.Memory{}}
	r := open(counter)
	apply(t, r, "h", files{"a.env": "A=1"}, "a.env")
	before := counter.steps
	apply(t, r, "h", files{"a.env": "A=1"}, "a.env")
	if counter.steps != before {
		t.Errorf("%d writes for an unchanged batch", counter.steps-before)
	}
}

func TestRefusals(t *testing.T) {
	dir := disk(t)
	r := open(dir)
	apply(t, r, "h1", files{"a.env": "A=1", "b.env": "B=1"}, "a.env", "b.env")
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir.Path(), "link.env")); err != nil {
		t.Fatal(err)
	}
	bad := files{
		"../up.env": "A=1", "/abs.env": "A=1", `back\slash.env`: "A=1", "link.env": "A=1", "script.sh": "x",
		"none": "x", ".env": "A=1",
		"bad.json": "{", "b.env": "not env", "big.conf": strings.Repeat("x", 1<<20+1),
	}
	send := maps.Clone(bad)
	send["a.env"], send["big-enough.conf"] = "A=2", strings.Repeat("x", 1<<20)
	names := slices.Collect(maps.Keys(send))
	changed := apply(t, r, "h2", send, names...)
	if diff := cmp.Diff([]string{"a.env", "big-enough.conf"}, changed); diff != "" {
		t.Errorf("changed: %s", diff)
	}
	if r.Hash() != "" {
		t.Errorf("some files are new and some old, and the hash is %q", r.Hash())
	}
	states := reported(r)
	for name := range bad {
		if !strings.HasPrefix(states[name], "error: ") {
			t.Errorf("%q is reported as %q", name, states[name])
		}
	}
	if states["a.env"] != sum("A=2") || len(states) != len(send) {
		t.Errorf("states: %v", states)
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "untouched" {
		t.Errorf("the link's target holds %q, %v", got, err)
	}

	// Apply sets the hash only if no file is refused. A refusal ends when the server sends a correct file, or when the
	// file no longer belongs to the instance.
	apply(t, r, "h2", files{"bad.json": "{}"}, "a.env", "b.env", "bad.json")
	if r.Hash() != "" || !strings.HasPrefix(reported(r)["b.env"], "error: ") {
		t.Errorf("b.env is still refused; hash %q, states %v", r.Hash(), reported(r))
	}
	apply(t, r, "h2", files{"b.env": "B=2"}, "a.env", "b.env", "bad.json")
	want := map[string]string{"a.env": sum("A=2"), "b.env": sum("B=2"), "bad.json": sum("{}")}
	if diff := cmp.Diff(want, reported(r)); diff != "" || r.Hash() != "h2" {
		t.Errorf("hash %q, states: %s", r.Hash(), diff)
	}

	// If no file of a batch can be stored, the old set of files and its hash stay.
	apply(t, r, "h3", files{"a.env": "?"}, "a.env", "b.env", "bad.json")
	if r.Hash() != "h2" {
		t.Errorf("nothing changed, and the hash is %q", r.Hash())
	}
}

func TestBatchLimits(t *testing.T) {
	r := open(&foldertest.Memory{})
	batch := r.NewBatch()
	for i := range 600 {
		batch.Add(&nstancev1.File{Name: fmt.Sprintf("%d.conf", i), Kind: "string"})
	}
	if changed, err := r.Apply(batch, &nstancev1.FilesCommit{}); len(changed) != 512 || err != nil {
		t.Errorf("%d files, %v", len(changed), err)
	}
	batch = r.NewBatch()
	for i := range 40 {
		batch.Add(&nstancev1.File{Name: fmt.Sprintf("%d.conf", i), Kind: "string", Content: make([]byte, 1<<20)})
	}
	// The batch writes 32 files and removes 480.
	if changed, err := r.Apply(batch, &nstancev1.FilesCommit{}); len(changed) != 512 || err != nil {
		t.Errorf("%d files, %v", len(changed), err)
	}
}

// A report about the files of any batch must keep the server's limits for the number of files and the length of texts.
func TestStatesFitIntoAReport(t *testing.T) {
	r := open(&foldertest.Memory{})
	batch := r.NewBatch()
	batch.Add(&nstancev1.File{})
	batch.Add(&nstancev1.File{Name: strings.Repeat("é", 200) + ".env", Kind: strings.Repeat("é", 5000)})
	for i := range 1000 {
		batch.Add(&nstancev1.File{Name: fmt.Sprintf("%d.conf", i), Kind: "string"})
	}
	if _, err := r.Apply(batch, &nstancev1.FilesCommit{}); err != nil {
		t.Fatal(err)
	}
	states := r.States()
	if len(states) != 512 {
		t.Errorf("%d states", len(states))
	}
	for _, state := range states {
		if name, text := state.GetName(), state.GetError(); name == "" || len(name) > 255 || !utf8.ValidString(name) ||
			len(text) > 1024 || !utf8.ValidString(text) {
			t.Errorf("%q: %q", name, text)
		}
	}
	if _, err := proto.Marshal(&nstancev1.ReportHealthRequest{Files: states}); err != nil {
		t.Error(err)
	}
}

// States shows files that were changed or removed on the disk. It reads an unchanged file only once.
func TestStatesMatchTheDisk(t *testing.T) {
	dir := &faulty{Folder: disk(t)}
	r := open(dir)
	apply(t, r, "h", files{"a.env": "A=1", "b.env": "B=1", "c.env": "C=1"}, "a.env", "b.env", "c.env")
	reported(r)
	reads := dir.reads
	reported(r)
	if dir.reads != reads {
		t.Errorf("%d reads of unchanged files", dir.reads-reads)
	}
	if err := dir.Folder.Write("a.env", []byte("A=changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.Folder.Remove("b.env"); err != nil {
		t.Fatal(err)
	}
	states := reported(r)
	if !strings.Contains(states["a.env"], "error: its content is not what the server sent") ||
		!strings.HasPrefix(states["b.env"], "error: ") ||
		states["c.env"] != sum("C=1") {
		t.Errorf("states: %v", states)
	}
}

var errCrash = errors.New("the process is dead")

// faulty numbers the writes and removals from 1. Number `dies` and all later ones fail without effect. If half is set,
// number `dies` takes effect, but its caller still gets an error.
type faulty struct {
	folder.Folder
	steps, dies int
	half        bool
	reads       int
	fail        string // writes to this name fail
}

func (f *faulty) step(do func() error) error {
	f.steps++
	if f.dies > 0 && f.steps >= f.dies {
		if f.half && f.steps == f.dies {
			if err := do(); err != nil {
				return err
			}
		}
		return errCrash
	}
	return do()
}

func (f *faulty) Write(name string, content []byte, mode fs.FileMode) error {
	if name == f.fail {
		return errors.New("no space left on device")
	}
	return f.step(func() error { return f.Folder.Write(name, content, mode) })
}

func (f *faulty) Remove(name string) error {
	return f.step(func() error { return f.Folder.Remove(name) })
}

func (f *faulty) Read(name string) ([]byte, error) {
	f.reads++
	return f.Folder.Read(name)
}

// If the process crashes between any two steps, the folder has a complete set after the next start: the old set with
// the old hash, or the new set with the new hash.
func TestCrashLeavesOldOrNew(t *testing.T) {
	old := files{"a.env": "A=1", "b.env": "B=1", "gone.env": "G=1"}
	new := files{"a.env": "A=2", "b.env": "B=1", "c.env": "C=2"}
	outcomes := map[string]int{}
	for dies := 1; ; dies++ {
		finished := false
		for _, half := range []bool{false, true} {
			dir := disk(t)
			apply(t, open(dir), "old", old, "a.env", "b.env", "gone.env")
			dying := &faulty{Folder: dir, dies: dies, half: half}
			if _, err := try(open(dying), "new", new, "a.env", "b.env", "c.env"); err != nil &&
				!errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			finished = dying.steps < dies

			// The restart after the crash may crash, too.
			open(&faulty{Folder: dir, dies: dies, half: half})

			r := open(dir)
			want := map[string]files{"old": old, "new": new}[r.Hash()]
			if want == nil {
				t.Fatalf("crash at step %d (%v): hash %q", dies, half, r.Hash())
			}
			outcomes[r.Hash()]++
			if diff := cmp.Diff(want, stored(t, dir)); diff != "" {
				t.Errorf("crash at step %d (%v): hash %q: %s", dies, half, r.Hash(), diff)
			}
			if names, err := os.ReadDir(dir.Path()); err != nil || len(names) != len(want)+2 { // .state.json, .tmp
				t.Errorf("crash at step %d (%v): left %v, %v", dies, half, names, err)
			}
			// After the crash, the disk has the old set of files or the new set. In both cases, applying the batch
			// again leads to the new set. The changed files then wait for the hook.
			apply(t, r, "new", new, "a.env", "b.env", "c.env")
			if diff := cmp.Diff(new, stored(t, dir)); diff != "" || r.Hash() != "new" {
				t.Errorf("crash at step %d (%v), sent again: %s", dies, half, diff)
			}
			if pending := r.Pending(); !slices.Contains(pending, "c.env") || !slices.Contains(pending, "gone.env") {
				t.Errorf("crash at step %d (%v): pending %v", dies, half, pending)
			}
		}
		if finished {
			break
		}
	}
	if outcomes["old"] == 0 || outcomes["new"] < 8 {
		t.Errorf("outcomes %v do not look like a crash at every step", outcomes)
	}
}

// A file that cannot be written is reported and makes the hash empty. The others are stored.
func TestDiskErrors(t *testing.T) {
	dir := &faulty{Folder: &foldertest.Memory{}, fail: "b.env"}
	r := open(dir)
	changed := apply(t, r, "h", files{"a.env": "A=1", "b.env": "B=1"}, "a.env", "b.env")
	if diff := cmp.Diff([]string{"a.env"}, changed); diff != "" || r.Hash() != "" {
		t.Errorf("hash %q, changed: %s", r.Hash(), diff)
	}
	if got := reported(r)["b.env"]; !strings.Contains(got, "no space") {
		t.Errorf("b.env: %s", got)
	}
	dir.fail = ""
	apply(t, r, "h", files{"b.env": "B=1"}, "a.env", "b.env")
	if r.Hash() != "h" || reported(r)["b.env"] != sum("B=1") {
		t.Errorf("hash %q, states %v", r.Hash(), reported(r))
	}
}

// If the stored state or the journal is damaged, the receiver forgets the state, but it still works.
func TestDamagedState(t *testing.T) {
	for _, name := range []string{".state.json", ".journal.json"} {
		dir := disk(t)
		apply(t, open(dir), "h", files{"a.env": "A=1"}, "a.env")
		if err := dir.Write(name, []byte(`{"version":7}`), 0o600); err != nil {
			t.Fatal(err)
		}
		r := open(dir)
		if r.Hash() != "" {
			t.Errorf("%s is damaged and the hash is %q", name, r.Hash())
		}
		apply(t, r, "h", files{"a.env": "A=1"}, "a.env")
		if r = open(dir); r.Hash() != "h" || reported(r)["a.env"] != sum("A=1") {
			t.Errorf("after %s was damaged: hash %q, states %v", name, r.Hash(), reported(r))
		}
	}
}

// TestKeptFilesAreCompared checks that an agent does not store a hash while a kept file is missing or has another content
// than the commit says, and that it notices an edit that keeps the file's stamp within an hour.
func TestKeptFilesAreCompared(t *testing.T) {
	dir := disk(t)
	r := open(dir)
	sums := map[string]string{"a.env": sum("A=1"), "b.env": sum("B=1")}
	commit := func(hash string, send files) {
		t.Helper()
		batch := r.NewBatch()
		for name, content := range send {
			batch.Add(&nstancev1.File{Name: name, Content: []byte(content), Kind: "string"})
		}
		if _, err := r.Apply(batch, &nstancev1.FilesCommit{RuntimeHash: hash, Names: slices.Sorted(maps.Keys(sums)),
			Sha256: sums}); err != nil {
			t.Fatal(err)
		}
	}
	commit("one", files{"a.env": "A=1"})
	if r.Hash() != "" {
		t.Errorf("hash %q, but b.env is missing", r.Hash())
	}
	commit("one", files{"b.env": "B=1"})
	if r.Hash() != "one" {
		t.Errorf("hash %q, and the files are complete", r.Hash())
	}
	sums["a.env"] = sum("A=2") // the server believes that it sent this
	commit("two", nil)
	r = open(dir)
	if got := reported(r)["a.env"]; r.Hash() != "" || !strings.Contains(got,
		"its content is not what the server sent") {
		t.Errorf("hash %q, a.env: %s", r.Hash(), got)
	}
	commit("two", files{"a.env": "A=2"})
	if got := reported(r)["a.env"]; r.Hash() != "two" || got != sum("A=2") {
		t.Errorf("hash %q, a.env: %s", r.Hash(), got)
	}
}

// TestFilesAreReadEveryHour checks that an edit that keeps size, modification time and inode is noticed after an hour.
func TestFilesAreReadEveryHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := disk(t)
		r := open(dir)
		apply(t, r, "h", files{"a.env": "A=1"}, "a.env")
		reported(r)
		name := filepath.Join(dir.Path(), "a.env")
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(name, []byte("A=2"), 0o600),
			os.Chtimes(name, info.ModTime(), info.ModTime())); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if got := reported(r)["a.env"]; !strings.Contains(got, sum("A=2")) || !strings.HasPrefix(got, "error: ") {
			t.Errorf("a.env: %s", got)
		}
	})
}

// TestRefusalsAreLoggedOnce checks that the agent's log names a file that it refuses, and why, once, although the server
// sends it again and again.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	r := receiver.Open(disk(t), receiver.Options{Mode: 0o640, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		apply(t, r, "h1", files{"a.env": "A=1", "tool.exe": "MZ"}, "a.env", "tool.exe")
	}
	if got := log.String(); strings.Count(got, "file=tool.exe") != 1 || strings.Contains(got, "a.env") {
		t.Errorf("the log:\n%s", got)
	}
}
