// Package receiver owns the files that the server sends to an instance.
//
// Invariant: after a crash and the next start the folder holds the whole old set with the old hash, or the whole new
// set with the new one. A batch is first written whole to a journal, whose durable write is the commit; then the files
// are written, obsolete ones removed, the state (hash and names) written, and the journal removed. Opening the folder
// plays a journal again.
package receiver

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

const (
	stateFile   = ".state.json"
	journalFile = ".journal.json"
	private     = 0o600
)

// state is what the folder knows about itself: the hash of the configuration that its files are of, and which files are
// ours.
type state struct {
	Version     int    `json:"version"`
	RuntimeHash string `json:"runtime_hash"`
	// Files are the names of the files that the server sent: only these are ever removed.
	Files []string `json:"files"`
	// Pending are the files that changed since the hook last ran.
	Pending []string `json:"pending,omitempty"`
}

// journal is a batch that is about to be carried out.
type journal struct {
	Version int               `json:"version"`
	Write   map[string][]byte `json:"write,omitempty"`
	Remove  []string          `json:"remove,omitempty"`
	After   state             `json:"after"`
}

const version = 1

// Receiver stores batches of files. One goroutine may apply batches while others ask for states.
type Receiver struct {
	dir        folder.Folder
	mode       fs.FileMode
	extensions []string
	hooked     bool

	apply sync.Mutex // held while a batch is carried out

	mu      sync.Mutex // guards what follows; never held during disk access
	state   state
	refused map[string]string // why, by name

	seen map[string]look // of States alone
}

// look is what was found at the last look at a file.
type look struct {
	stamp folder.Stamp
	state *nstancev1.FileState
}

// Options of [Open].
type Options struct {
	// Mode of received files.
	Mode fs.FileMode
	// Extensions are accepted beside [DefaultExtensions]; each starts with a dot.
	Extensions []string
	// Hooked keeps account of what changed until [Receiver.Done] is called.
	Hooked bool
	Log    *slog.Logger
}

// Open returns the receiver in a folder, after finishing what a crash interrupted. Documents of its own that it cannot
// read are taken for absent: the hash is then unknown, and the server sends everything again.
func Open(dir folder.Folder, o Options) *Receiver {
	r := &Receiver{
		dir: dir, mode: o.Mode, extensions: append(DefaultExtensions(), o.Extensions...), hooked: o.Hooked,
		refused: map[string]string{}, seen: map[string]look{},
	}
	err := readDocument(dir, stateFile, &r.state)
	if err != nil {
		r.state = state{Version: version}
		if !errors.Is(err, fs.ErrNotExist) {
			o.Log.Warn("The state of received files is unknown; the server will send them again", "error", err)
		}
	}
	var left journal
	switch err := readDocument(dir, journalFile, &left); {
	case err == nil:
		r.play(left)
	case !errors.Is(err, fs.ErrNotExist):
		r.state.RuntimeHash = ""
		o.Log.Warn("An interrupted batch of files cannot be finished; the server will send it again", "error", err)
	}
	return r
}

// readDocument reads one of our own documents, strictly.
func readDocument(dir folder.Folder, name string, into any) error {
	text, err := dir.Read(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return decode(name, text, into)
}

func decode(name string, text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("read %s: not written by this version of the agent: %w", name, position(err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: something follows the document", name)
	}
	got := version
	switch document := into.(type) {
	case *state:
		got = document.Version
	case *journal:
		got = document.Version
	}
	if got != version {
		return fmt.Errorf("read %s: version %d, this agent knows %d", name, got, version)
	}
	return nil
}

func (r *Receiver) writeDocument(name string, document any) error {
	text, err := json.Marshal(document)
	if err == nil {
		err = r.dir.Write(name, text, private)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Apply carries out a batch: its files replace the stored ones, files that we stored earlier and that the commit does
// not name are removed, then the hash is stored. It returns the names of files that changed or went. A file that cannot
// be stored is reported in [Receiver.States] and leaves the others alone, but then the set is neither the old nor the
// new: its hash is empty. The error says that nothing of the batch was done.
func (r *Receiver) Apply(b *Batch, commit *nstancev1.FilesCommit) (changed []string, err error) {
	r.apply.Lock()
	defer r.apply.Unlock()
	r.mu.Lock()
	old := r.state
	// What was refused before stays so until it is sent again or no longer belongs to the instance.
	refused := maps.Clone(r.refused)
	r.mu.Unlock()
	maps.DeleteFunc(refused, func(name, _ string) bool {
		_, sent := b.files[name]
		return sent || !slices.Contains(commit.GetNames(), name)
	})
	maps.Copy(refused, b.refused)
	plan := journal{Version: version, Write: map[string][]byte{}}
	for name, content := range b.files {
		have, err := r.dir.Read(name)
		switch {
		case err == nil && bytes.Equal(have, content):
		case err == nil, errors.Is(err, fs.ErrNotExist):
			plan.Write[name] = content
		default:
			refused[name] = err.Error()
		}
	}
	ours := map[string]bool{}
	for _, name := range old.Files {
		ours[name] = true
	}
	for name := range b.files {
		ours[name] = refused[name] == "" || ours[name]
	}
	for name := range ours {
		_, sent := b.files[name]
		switch {
		case !ours[name]:
			delete(ours, name)
		case !sent && !slices.Contains(commit.GetNames(), name):
			plan.Remove = append(plan.Remove, name)
			delete(ours, name)
		}
	}
	slices.Sort(plan.Remove)
	changed = slices.Sorted(maps.Keys(plan.Write))
	changed = append(changed, plan.Remove...)

	plan.After = state{Version: version, RuntimeHash: commit.GetRuntimeHash(), Files: slices.Sorted(maps.Keys(ours)),
		Pending: old.Pending}
	if len(refused) > 0 {
		plan.After.RuntimeHash = ""
		if len(changed) == 0 { // the whole old set
			plan.After.RuntimeHash = old.RuntimeHash
		}
	}
	if r.hooked {
		plan.After.Pending = union(old.Pending, changed)
	}
	same := plan.After.RuntimeHash == old.RuntimeHash && slices.Equal(plan.After.Files, old.Files) && len(changed) == 0
	if !same {
		if err := r.writeDocument(journalFile, plan); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	r.refused = refused
	r.mu.Unlock()
	if same {
		return nil, nil
	}
	return r.play(plan, changed...), nil
}

// play carries out a journal whose write is durable, as often as it takes, and removes it. It returns those of the
// given names whose change succeeded. What fails is reported by name and costs the hash; the journal is removed all the
// same, so that an old one never undoes a newer batch.
func (r *Receiver) play(plan journal, names ...string) (changed []string) {
	after, failed := plan.After, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(plan.Write)) {
		if err := r.dir.Write(name, plan.Write[name], r.mode); err != nil {
			failed[name] = err.Error()
		}
	}
	for _, name := range plan.Remove {
		if err := r.dir.Remove(name); err != nil {
			failed[name] = err.Error()
			after.Files = union(after.Files, []string{name})
		}
	}
	if len(failed) > 0 {
		after.RuntimeHash = ""
	}
	err := r.writeDocument(stateFile, after)
	if err == nil {
		err = r.dir.Remove(journalFile)
	}
	if err != nil {
		failed[stateFile] = err.Error()
		after.RuntimeHash = ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = after
	maps.Copy(r.refused, failed)
	return slices.DeleteFunc(names, func(name string) bool { return failed[name] != "" })
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Hash returns the runtime configuration hash that the stored files are of; empty when there is none, or when some are
// of another.
func (r *Receiver) Hash() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.RuntimeHash
}

// Pending returns the files that changed since the hook last ran.
func (r *Receiver) Pending() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.state.Pending)
}

// Done says that the hook ran for these files. What changed meanwhile stays pending.
func (r *Receiver) Done(names []string) error {
	r.apply.Lock()
	defer r.apply.Unlock()
	r.mu.Lock()
	after := r.state
	r.mu.Unlock()
	after.Pending = slices.DeleteFunc(slices.Clone(after.Pending), func(name string) bool {
		return slices.Contains(names, name)
	})
	if err := r.writeDocument(stateFile, after); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = after
	return nil
}

// States returns the state of every file that belongs to the instance, as it is on disk now, in the order of their
// names; 512 at most, which is what a server takes. Files are read only when they have changed. Only one goroutine at a
// time may call it.
func (r *Receiver) States() []*nstancev1.FileState {
	r.mu.Lock()
	names, refused := slices.Clone(r.state.Files), maps.Clone(r.refused)
	r.mu.Unlock()

	states := map[string]*nstancev1.FileState{}
	seen := map[string]look{}
	for _, name := range names {
		found := r.look(name)
		seen[name], states[name] = found, found.state
	}
	for name, reason := range refused {
		states[name] = &nstancev1.FileState{Name: name, Error: folder.Clip(reason, folder.MaxReportedText)}
	}
	r.seen = seen
	sorted := slices.SortedFunc(maps.Values(states), func(a, b *nstancev1.FileState) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return sorted[:min(len(sorted), maxFiles)]
}

func (r *Receiver) look(name string) look {
	stamp, err := r.dir.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("it is no longer on the disk")
	}
	if err == nil {
		if before, ok := r.seen[name]; ok && before.stamp == stamp && before.state.Error == "" {
			return before
		}
		var content []byte
		if content, err = r.dir.Read(name); err == nil {
			sum := sha256.Sum256(content)
			found := &nstancev1.FileState{Name: name, Sha256: hex.EncodeToString(sum[:])}
			if notBefore, notAfter, ok := validity(content); ok {
				found.NotBefore, found.NotAfter = timestamppb.New(notBefore), timestamppb.New(notAfter)
			}
			return look{stamp: stamp, state: found}
		}
	}
	return look{state: &nstancev1.FileState{Name: name, Error: folder.Clip(err.Error(), folder.MaxReportedText)}}
}
