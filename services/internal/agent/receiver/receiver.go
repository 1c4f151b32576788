// Package receiver stores the files that the server sends to an instance.
//
// Invariant: after a crash and the next start, the folder holds either the whole old set of files with the old hash, or
// the whole new set with the new hash. A batch is applied in these steps:
//
//  1. Write the whole batch to a journal. This durable write is the commit.
//  2. Write the files.
//  3. Remove obsolete files.
//  4. Write the state: the hash and the names.
//  5. Remove the journal.
//
// Opening the folder replays a journal that is still there.
package receiver

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

const (
	stateFile   = ".state.json"
	journalFile = ".journal.json"
	private     = 0o600
	// recheck is how often States reads every file, also if its stamp has not changed.
	recheck = time.Hour
)

// state is the stored state of the folder: the configuration hash of its files, and the names of the files that the
// receiver owns.
type state struct {
	Version     int    `json:"version"`
	RuntimeHash string `json:"runtime_hash"`
	// Files are the names of the files that the server sent. The receiver removes no other files.
	Files []string `json:"files"`
	// Sums are the SHA-256 sums (hexadecimal) that the files have according to the server, by name.
	Sums map[string]string `json:"sums,omitempty"`
	// Pending are the files that changed since the hook last ran.
	Pending []string `json:"pending,omitempty"`
}

// journal is a committed batch that is about to be applied.
type journal struct {
	Version int               `json:"version"`
	Write   map[string][]byte `json:"write,omitempty"`
	Remove  []string          `json:"remove,omitempty"`
	After   state             `json:"after"`
}

const version = 1

// Receiver stores batches of files. One goroutine may apply batches while another one calls [Receiver.States].
type Receiver struct {
	dir        folder.Folder
	mode       fs.FileMode
	extensions []string
	hooked     bool
	log        *slog.Logger

	apply sync.Mutex // held while a batch is applied

	mu      sync.Mutex // guards the fields below; never held during disk access
	state   state
	changed []string          // files that changed after the last call of Pending
	refused map[string]string // reasons of refusals, by name

	seen    map[string]fileCheck // used by States alone, like checked
	checked time.Time            // when States last read every file
}

// fileCheck is the result of the last check of a file.
type fileCheck struct {
	stamp folder.Stamp
	state *nstancev1.FileState
}

// Options configure [Open].
type Options struct {
	// Mode is the mode of received files.
	Mode fs.FileMode
	// Extensions are accepted in addition to [DefaultExtensions]. Each starts with a dot.
	Extensions []string
	// Hooked means that a hook runs after changes. The receiver then keeps the names of changed files until
	// [Receiver.Done] is called.
	Hooked bool
	Log    *slog.Logger
}

// Open returns the receiver in a folder, after completing an interrupted batch. It treats an unreadable state or
// journal as missing. The hash is then unknown, and the server sends all files again.
func Open(dir folder.Folder, o Options) *Receiver {
	r := &Receiver{
		dir: dir, mode: o.Mode, extensions: append(DefaultExtensions(), o.Extensions...), hooked: o.Hooked,
		log: o.Log, refused: map[string]string{}, seen: map[string]fileCheck{},
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

// readDocument reads the state or the journal, and rejects unknown fields and versions.
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

// Apply stores the files of a batch. Then it removes the files that the server sent earlier and that the commit does
// not list, and stores the hash. It returns the names of files that changed or were removed.
//
// If one file cannot be stored, Apply stores the others, and [Receiver.States] reports the failure. The files are then
// neither the old set nor the new set, so the hash is empty. An error means that nothing of the batch was applied.
func (r *Receiver) Apply(b *Batch, commit *nstancev1.FilesCommit) (changed []string, err error) {
	r.apply.Lock()
	defer r.apply.Unlock()
	r.mu.Lock()
	old := r.state
	// The receiver remembers each refused file until the server sends the file again, or until a commit does not list
	// the file.
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
	sums, whole := r.expect(b, commit, ours, refused, old.Sums)
	changed = slices.Sorted(maps.Keys(plan.Write))
	changed = append(changed, plan.Remove...)

	plan.After = state{Version: version, RuntimeHash: commit.GetRuntimeHash(), Files: slices.Sorted(maps.Keys(ours)),
		Sums: sums, Pending: old.Pending}
	if len(refused) > 0 {
		plan.After.RuntimeHash = ""
		if len(changed) == 0 { // the set is still the whole old one
			plan.After.RuntimeHash = old.RuntimeHash
		}
	}
	if !whole {
		plan.After.RuntimeHash = ""
	}
	if r.hooked {
		plan.After.Pending = union(old.Pending, changed)
	}
	same := plan.After.RuntimeHash == old.RuntimeHash && slices.Equal(plan.After.Files, old.Files) &&
		maps.Equal(plan.After.Sums, old.Sums) && len(changed) == 0
	if !same {
		if err := r.writeDocument(journalFile, plan); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	r.keepRefused(refused)
	r.mu.Unlock()
	if same {
		return nil, nil
	}
	return r.play(plan, changed...), nil
}

// expect returns the sums that the files have after a batch, by name: those in the commit, and those of the batch's
// files. For other files, the sums stay. whole is false if a kept file has another sum than the commit says. The server
// then sends the file again.
func (r *Receiver) expect(b *Batch, commit *nstancev1.FilesCommit, ours map[string]bool,
	refused, old map[string]string) (sums map[string]string, whole bool) {
	sums, whole = map[string]string{}, true
	for name := range ours {
		content, sent := b.files[name]
		want := commit.GetSha256()[name]
		switch {
		case sent:
			sums[name] = folder.Sum(content)
		case want == "" || refused[name] != "":
			if sum := old[name]; sum != "" {
				sums[name] = sum
			}
		default:
			sums[name] = want
			have, err := r.dir.Read(name)
			whole = whole && err == nil && folder.Sum(have) == want
		}
	}
	for name := range commit.GetSha256() {
		whole = whole && (ours[name] || refused[name] != "")
	}
	return sums, whole
}

// play applies a durable journal and removes it. Applying a journal twice has the same result as applying it once. If a
// file cannot be written or removed, play records why, and the hash becomes empty. play removes the journal
// nevertheless, so that an old journal never undoes a newer batch. play returns the names, except those of files that
// failed.
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
	if r.hooked {
		r.changed = union(r.changed, names)
	}
	refused := maps.Clone(r.refused)
	maps.Copy(refused, failed)
	r.keepRefused(refused)
	return slices.DeleteFunc(names, func(name string) bool { return failed[name] != "" })
}

// keepRefused stores the reasons of refusals by name, and logs those that are new. Call with mu held.
func (r *Receiver) keepRefused(refused map[string]string) {
	for name, reason := range refused {
		if r.refused[name] != reason {
			r.log.Warn("A file from the server is refused", "file", name, "error", reason)
		}
	}
	r.refused = refused
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Hash returns the runtime configuration hash of the stored files. It is empty if no hash is stored, or if the files
// are not all from one configuration.
func (r *Receiver) Hash() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.RuntimeHash
}

// Forget makes the server send all files again. It keeps the files until then.
func (r *Receiver) Forget() error {
	r.apply.Lock()
	defer r.apply.Unlock()
	r.mu.Lock()
	after := r.state
	r.mu.Unlock()
	if after.RuntimeHash == "" && len(after.Sums) == 0 {
		return nil
	}
	after.RuntimeHash, after.Sums = "", nil
	return r.replaceState(after)
}

// replaceState stores another state. The caller must hold the lock `apply`.
func (r *Receiver) replaceState(after state) error {
	if err := r.writeDocument(stateFile, after); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = after
	return nil
}

// Pending returns the files that changed since the hook last ran. Call it before each run of the hook.
func (r *Receiver) Pending() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = nil
	return slices.Clone(r.state.Pending)
}

// Done records that the hook ran for these files. Files that changed after the last call of [Receiver.Pending] stay
// pending, because the hook may have read their former content.
func (r *Receiver) Done(names []string) error {
	r.apply.Lock()
	defer r.apply.Unlock()
	r.mu.Lock()
	after, changed := r.state, r.changed
	r.mu.Unlock()
	after.Pending = slices.DeleteFunc(slices.Clone(after.Pending), func(name string) bool {
		return slices.Contains(names, name) && !slices.Contains(changed, name)
	})
	return r.replaceState(after)
}

// States returns the current state on disk of every file that belongs to the instance, sorted by name. The result has
// at most 512 entries, which is the limit of a server. A file is read only if its stamp has changed, and once an hour.
// If a file has another content than the server sent, its state has an error. States is not safe for concurrent calls.
func (r *Receiver) States() []*nstancev1.FileState {
	r.mu.Lock()
	names, refused, sums := slices.Clone(r.state.Files), maps.Clone(r.refused), maps.Clone(r.state.Sums)
	r.mu.Unlock()
	if now := time.Now(); now.Sub(r.checked) >= recheck {
		clear(r.seen)
		r.checked = now
	}

	states := map[string]*nstancev1.FileState{}
	seen := map[string]fileCheck{}
	for _, name := range names {
		found := r.checkFile(name)
		seen[name], states[name] = found, found.state
		if want := sums[name]; want != "" && found.state.GetError() == "" && found.state.GetSha256() != want {
			states[name] = &nstancev1.FileState{Name: name,
				Error: fmt.Sprintf("its content is not what the server sent: "+
					"its SHA-256 sum is %s, want %s", found.state.GetSha256(), want)}
		}
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

func (r *Receiver) checkFile(name string) fileCheck {
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
			found := &nstancev1.FileState{Name: name, Sha256: folder.Sum(content)}
			if notBefore, notAfter, ok := validity(content); ok {
				found.NotBefore, found.NotAfter = timestamppb.New(notBefore), timestamppb.New(notAfter)
			}
			return fileCheck{stamp: stamp, state: found}
		}
	}
	return fileCheck{state: &nstancev1.FileState{Name: name, Error: folder.Clip(err.Error(), folder.MaxReportedText)}}
}

const (
	maxFile  = 1 << 20  // bytes
	maxBatch = 32 << 20 // bytes
	maxFiles = 512
)

// DefaultExtensions returns the extensions that every receiver accepts.
func DefaultExtensions() []string { return []string{".crt", ".key", ".pub", ".json", ".env"} }

// Batch collects the files of one stream until their commit. The zero value is not usable. See [Receiver.NewBatch].
type Batch struct {
	extensions []string
	files      map[string][]byte
	refused    map[string]string // reasons of refusals, by name
	size       int
}

// NewBatch returns an empty batch.
func (r *Receiver) NewBatch() *Batch {
	return &Batch{extensions: r.extensions, files: map[string][]byte{}, refused: map[string]string{}}
}

// Add checks a file and adds it to the batch. It records the reason if it refuses the file. Of two files with the same
// name, the last one counts.
func (b *Batch) Add(file *nstancev1.File) {
	name := file.GetName()
	b.size -= len(b.files[name])
	delete(b.files, name)
	delete(b.refused, name)
	if err := b.check(file); err != nil {
		if len(b.refused) < maxFiles {
			b.refused[cmp.Or(folder.Clip(name, folder.MaxReportedName), "(no name)")] = err.Error()
		}
		return
	}
	b.files[name] = file.GetContent()
	b.size += len(file.GetContent())
}

func (b *Batch) check(file *nstancev1.File) error {
	if err := b.checkName(file.GetName()); err != nil {
		return err
	}
	size := len(file.GetContent())
	switch {
	case size > maxFile:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", size, maxFile)
	case len(b.files) >= maxFiles:
		return fmt.Errorf("there are more than %d files at once", maxFiles)
	case b.size+size > maxBatch:
		return fmt.Errorf("there are more than %d bytes at once", maxBatch)
	}
	return checkContent(file.GetName(), file.GetKind(), file.GetContent())
}

func (b *Batch) checkName(name string) error {
	if err := folder.ValidateName(name); err != nil {
		return err
	}
	if !slices.Contains(b.extensions, path.Ext(name)) {
		return fmt.Errorf("its extension %q is not among %v; NSTANCE_RECV_EXTENSIONS adds more", path.Ext(name),
			b.extensions)
	}
	return nil
}

// The kinds of files, as in the shard configuration.
const (
	kindCertificate = "certificate"
	kindSecret      = "secret"
	kindStorage     = "storage"
	kindEnv         = "env"
	kindJSON        = "json"
	kindString      = "string"
)

// checkContent checks that the content of a file fits its kind. Files of the kinds secret, storage and string may have
// any content, unless the file's name has an extension that implies a format. Errors do not quote the content, because
// it may be secret.
func checkContent(name, kind string, content []byte) error {
	switch kind {
	case kindCertificate:
		return checkCertificates(content)
	case kindEnv:
		return checkEnv(content)
	case kindJSON:
		return checkJSON(content)
	case kindSecret, kindStorage, kindString:
	default:
		return fmt.Errorf("its kind is unknown (%q); a newer agent may know it", folder.Clip(kind, 40))
	}
	switch path.Ext(name) {
	case ".crt":
		return checkCertificates(content)
	case ".env":
		return checkEnv(content)
	case ".json":
		return checkJSON(content)
	}
	return nil
}

// checkCertificates accepts one or more PEM certificates, separated by nothing but white space.
func checkCertificates(content []byte) error {
	count := 0
	for rest := bytes.TrimSpace(content); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		count++
		if !bytes.HasPrefix(rest, []byte("-----BEGIN CERTIFICATE-----")) {
			return fmt.Errorf("block %d is not a PEM certificate", count)
		}
		block, after := pem.Decode(rest)
		// pem.Decode skips an unreadable block and returns the next one.
		if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 ||
			bytes.Count(rest[:len(rest)-len(after)], []byte("-----BEGIN")) != 1 {
			return fmt.Errorf("block %d is not a PEM certificate", count)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("block %d is not an X.509 certificate", count)
		}
		rest = after
	}
	if count == 0 {
		return errors.New("there is no certificate in it")
	}
	return nil
}

// validity returns the validity period of the first certificate in a PEM text.
func validity(content []byte) (notBefore, notAfter time.Time, ok bool) {
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE" {
		return time.Time{}, time.Time{}, false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, time.Time{}, false
	}
	return cert.NotBefore, cert.NotAfter, true
}

// checkJSON accepts exactly one JSON value.
func checkJSON(content []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	var value json.RawMessage
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("it is not JSON: %w", position(err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("it is not JSON: something follows the first value")
	}
	return nil
}

// position describes a JSON error by its kind and position. It leaves out the part of the input that the error quotes.
func position(err error) error {
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return fmt.Errorf("syntax error at byte %d", syntax.Offset)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return errors.New("syntax error")
}

// checkEnv accepts what systemd's EnvironmentFile= (systemd.exec(5)) and shell assignments have in common: empty lines,
// comments, and NAME=value. The value may have quoted parts, and a quoted part may span several lines.
func checkEnv(content []byte) error {
	if bytes.IndexByte(content, 0) >= 0 {
		return errors.New("it contains a zero byte")
	}
	line := 1
	for rest := content; len(rest) > 0; {
		if end := bytes.IndexByte(rest, '\n'); blankOrComment(firstLine(rest)) {
			if end < 0 {
				return nil
			}
			rest, line = rest[end+1:], line+1
			continue
		}
		length, ok := envName(rest)
		if !ok {
			return fmt.Errorf("line %d: want NAME=value", line)
		}
		after, ok := envValue(rest[length+1:])
		if !ok {
			return fmt.Errorf("line %d: a quote is not closed", line)
		}
		line += bytes.Count(rest[:len(rest)-len(after)], []byte("\n"))
		rest = after
	}
	return nil
}

func firstLine(text []byte) []byte {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return line
}

func blankOrComment(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#' || line[0] == ';'
}

// envName returns the length of the variable's name before "=".
func envName(text []byte) (int, bool) {
	for i, c := range text {
		switch {
		case c == '=':
			return i, i > 0
		case c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		case c >= '0' && c <= '9' && i > 0:
		default:
			return 0, false
		}
	}
	return 0, false
}

// envValue skips the value at the start of text and the line break that ends the value. It returns the remaining text.
// Within single quotes every character is literal. Elsewhere a backslash escapes the next character.
func envValue(text []byte) ([]byte, bool) {
	var quote byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quote != '\'':
			i++
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == '\n':
			return text[i+1:], true
		}
	}
	return nil, quote == 0
}
