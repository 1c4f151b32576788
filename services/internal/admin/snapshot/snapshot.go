// Package snapshot copies the objects of a bucket into one archive, and reads such archives.
//
// An archive is a tar file with gzip. Its entries are the objects, each under objects/{key}, and then manifest.json.
//
// Invariant: [Unpack] writes only regular files below its directory, and never more than its limits. A consistent
// snapshot holds the state of all objects, except locks, journals and logs, at one moment.
package snapshot

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// Schema is the version of the manifest.
const Schema = 1

const (
	manifestName  = "manifest.json"
	objectsPrefix = "objects/"
)

// Manifest describes an archive.
type Manifest struct {
	Schema  int    `json:"schema"`
	Cluster string `json:"cluster_id"`
	// Program is the version of nstance-admin that made the archive.
	Program string `json:"nstance_admin"`
	// Began is a time before the first object was read. Ended is a time after the last object was read.
	Began time.Time `json:"began_at"`
	Ended time.Time `json:"ended_at"`
	// Consistent reports whether no document, except locks, journals and logs, changed between Began and Ended.
	Consistent bool `json:"consistent"`
	// Objects are sorted by key.
	Objects []Object `json:"objects"`
	// LeftOut are the keys of objects that a restore does not need.
	LeftOut []string `json:"left_out,omitempty"`
}

// Object is one object of an archive.
type Object struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// ETag and Modified identify the version that was copied. Modified is zero if the store did not return it.
	ETag     string    `json:"etag"`
	Modified time.Time `json:"modified,omitzero"`
	// Changed means that there was a newer version, or that the object was deleted, when the snapshot ended.
	Changed bool `json:"changed,omitempty"`
}

// Options configure [Copy]. All are required.
type Options struct {
	// Dir holds the copies of the objects until they are in the archive.
	Dir *os.Root
	Now func() time.Time
	// ForEach calls fn for 0 to n-1, with at most limit calls at a time.
	ForEach func(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error
}

const (
	// rounds is the maximum number of rounds in which Copy reads objects. After the first round, Copy reads only
	// objects that have changed since it read them.
	rounds = 5
	// parallel is how many objects are read at a time.
	parallel = 32
)

// copier is one run of Copy.
type copier struct {
	store   objstore.Store
	options Options
	copied  map[string]Object
}

// Copy reads all objects that a restore needs into options.Dir, and returns their manifest. The caller adds Cluster and
// Program to the manifest. Objects that change meanwhile are read again, in at most `rounds` rounds in total.
func Copy(ctx context.Context, store objstore.Store, options Options) (Manifest, error) {
	m := Manifest{Schema: Schema, Began: options.Now().UTC()}
	c := &copier{store: store, options: options, copied: map[string]Object{}}
	for round := 0; ; round++ {
		listed, err := c.list(ctx, &m)
		if err != nil {
			return Manifest{}, err
		}
		stale, steady := c.compare(listed)
		if round > 0 && steady == 0 || round == rounds {
			m.Consistent = steady == 0
			break
		}
		if err := c.read(ctx, stale); err != nil {
			return Manifest{}, err
		}
	}
	m.Ended = options.Now().UTC()
	for _, object := range c.copied {
		m.Objects = append(m.Objects, object)
	}
	slices.SortFunc(m.Objects, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
	return m, nil
}

// list returns the objects that a restore needs.
func (c *copier) list(ctx context.Context, m *Manifest) (map[string]objstore.Entry, error) {
	entries, err := c.store.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list the bucket: %w", err)
	}
	listed := map[string]objstore.Entry{}
	m.LeftOut = nil
	for _, entry := range entries {
		if key, err := keys.Parse(entry.Key); err != nil || key.Kind == keys.KindProbe {
			m.LeftOut = append(m.LeftOut, entry.Key)
			continue
		}
		listed[entry.Key] = entry
	}
	return listed, nil
}

// compare marks the copies that differ from the bucket's list, and returns the objects to read. steady is the number of
// changed objects for which [Object.Moving] returns false. A change of such an object makes the copy inconsistent.
func (c *copier) compare(listed map[string]objstore.Entry) (stale []objstore.Entry, steady int) {
	for key, object := range c.copied {
		entry, there := listed[key]
		object.Changed = !there || string(entry.Token) != object.ETag
		if object.Changed && !moving(key) {
			steady++
			if !there {
				delete(c.copied, key)
				continue
			}
		}
		if !object.Changed {
			object.Modified = entry.Modified.UTC()
		}
		c.copied[key] = object
	}
	for key, entry := range listed {
		object, known := c.copied[key]
		if !known && !moving(key) {
			steady++
		}
		if !known || object.Changed && !moving(key) {
			stale = append(stale, entry)
		}
	}
	return stale, steady
}

// Moving reports whether the object changes even while nothing happens to VMs, as locks, journals and logs do.
func (o Object) Moving() bool { return moving(o.Key) }

func moving(name string) bool {
	key, err := keys.Parse(name)
	return err == nil && slices.Contains([]keys.Kind{keys.KindAgentKey, keys.KindLeader, keys.KindJournal,
		keys.KindCertLog, keys.KindClusterJournal, keys.KindServerReport}, key.Kind)
}

// read copies objects, the locks first. A lock lists the highest versions of documents that servers have seen. If read
// copied the lock last, the lock could list newer versions than those of the copied documents.
func (c *copier) read(ctx context.Context, entries []objstore.Entry) error {
	locks := slices.DeleteFunc(slices.Clone(entries), func(e objstore.Entry) bool { return !isLock(e.Key) })
	rest := slices.DeleteFunc(entries, func(e objstore.Entry) bool { return isLock(e.Key) })
	for _, part := range [][]objstore.Entry{locks, rest} {
		results := make([]*Object, len(part))
		err := c.options.ForEach(ctx, len(part), parallel, func(ctx context.Context, i int) (err error) {
			results[i], err = c.readObject(ctx, part[i])
			return err
		})
		if err != nil {
			return err
		}
		for i, object := range results {
			if object != nil {
				c.copied[object.Key] = *object
			} else {
				delete(c.copied, part[i].Key)
			}
		}
	}
	return nil
}

func isLock(name string) bool {
	key, err := keys.Parse(name)
	return err == nil && key.Kind == keys.KindLeader
}

// readObject copies one object. It returns nil if the object was deleted.
func (c *copier) readObject(ctx context.Context, entry objstore.Entry) (*Object, error) {
	object, err := c.store.Get(ctx, entry.Key)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, nil //nolint:nilnil // there is no object
	}
	if err == nil {
		object.Body, err = c.mark(entry.Key, object.Body)
	}
	if err == nil {
		err = c.options.Dir.WriteFile(fileOf(entry.Key), object.Body, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", entry.Key, err)
	}
	copied := &Object{Key: entry.Key, Size: int64(len(object.Body)), SHA256: sum(object.Body),
		ETag: string(object.Token)}
	if object.Token == entry.Token {
		copied.Modified = entry.Modified.UTC()
	}
	return copied, nil
}

// mark marks the home of a shard as that of a snapshot. So no server leads in a bucket with the objects of the archive
// before `nstance-admin cluster restore`, even if it is the bucket of which the snapshot was made.
func (c *copier) mark(name string, body []byte) ([]byte, error) {
	if key, err := keys.Parse(name); err != nil || key.Kind != keys.KindHome {
		return body, nil //nolint:nilerr // a foreign object is copied as it is
	}
	home, err := record.Decode[record.Home](body)
	if err != nil {
		return body, nil //nolint:nilerr // restore-check reports what is wrong with it
	}
	home.SnapshotAt = c.options.Now()
	return home.Encode()
}

// fileOf returns the name of the file with the copy of an object.
func fileOf(key string) string { return sum([]byte(key)) }

func sum(body []byte) string {
	digest := sha256.Sum256(body)
	return hex.EncodeToString(digest[:])
}

// Write writes an archive of the objects that are in dir after [Copy].
func Write(w io.Writer, m Manifest, dir *os.Root) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	for _, object := range m.Objects {
		body, err := dir.ReadFile(fileOf(object.Key))
		if err != nil {
			return fmt.Errorf("read the copy of %s: %w", object.Key, err)
		}
		if err := add(archive, objectsPrefix+object.Key, body, object.Modified); err != nil {
			return fmt.Errorf("add %s: %w", object.Key, err)
		}
	}
	body, err := encode(m)
	if err == nil {
		err = add(archive, manifestName, body, m.Ended)
	}
	if err != nil {
		return fmt.Errorf("add %s: %w", manifestName, err)
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zip.Close()
}

func add(archive *tar.Writer, name string, body []byte, at time.Time) error {
	head := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(body)),
		ModTime: at.Truncate(time.Second)}
	if err := archive.WriteHeader(head); err != nil {
		return err
	}
	_, err := archive.Write(body)
	return err
}

func encode(m Manifest) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(m)
	return out.Bytes(), err
}

// Limits bound what [Unpack] writes.
type Limits struct {
	// Object and Manifest are the maximum sizes of one object and of the manifest, in bytes. Total is the maximum size
	// of all objects together.
	Object, Manifest, Total int64
	// Count is the largest number of objects.
	Count int
}

// DefaultLimits are far above what a large cluster needs.
var DefaultLimits = Limits{Object: 1 << 30, Manifest: 1 << 30, Total: 32 << 30, Count: 4 << 20}

// ErrArchive means that a file is not an archive of this package, or is incomplete.
var ErrArchive = errors.New("it is no complete snapshot")

// Difference is an object that differs from the manifest.
type Difference struct{ Key, Problem string }

// unpacker is one run of Unpack.
type unpacker struct {
	dir    *os.Root
	limits Limits
	sums   map[string]Object // Key, Size and SHA256 of what was unpacked
	total  int64
}

// Unpack unpacks the objects of an archive into dir, which must be empty. An object's key is its path. Unpack returns
// the manifest and the objects that differ from the manifest. For an archive that this package cannot have written, the
// error wraps [ErrArchive], and dir may hold a part of the archive.
func Unpack(r io.Reader, dir *os.Root, limits Limits) (Manifest, []Difference, error) {
	source := bufio.NewReader(r)
	zip, err := gzip.NewReader(source)
	if err != nil {
		return Manifest{}, nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	zip.Multistream(false)
	u := &unpacker{dir: dir, limits: limits, sums: map[string]Object{}}
	manifest, err := u.unpack(tar.NewReader(zip))
	if err != nil {
		return Manifest{}, nil, err
	}
	// Reading the zeros that pad the tar file also makes gzip verify its checksum.
	padding, err := io.Copy(io.Discard, io.LimitReader(zip, limits.Manifest))
	if err != nil {
		return Manifest{}, nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if _, err := source.ReadByte(); !errors.Is(err, io.EOF) || padding > maxPadding {
		return Manifest{}, nil, fmt.Errorf("%w: data follows its end", ErrArchive)
	}
	return manifest, u.compare(manifest), nil
}

// maxPadding is the largest number of bytes after the last entry of a tar file.
const maxPadding = 10 << 10

func (u *unpacker) unpack(archive *tar.Reader) (manifest Manifest, err error) {
	for found := false; ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) && found {
			return manifest, nil
		}
		if errors.Is(err, io.EOF) {
			return Manifest{}, fmt.Errorf("%w: it has no %s", ErrArchive, manifestName)
		}
		if err != nil {
			return Manifest{}, fmt.Errorf("%w: %w", ErrArchive, err)
		}
		key, isObject := strings.CutPrefix(head.Name, objectsPrefix)
		switch {
		case found:
			err = fmt.Errorf("%w: %q follows %s", ErrArchive, head.Name, manifestName)
		case head.Typeflag != tar.TypeReg:
			err = fmt.Errorf("%w: %q is no regular file", ErrArchive, head.Name)
		case head.Name == manifestName:
			found = true
			manifest, err = u.readManifest(archive, head.Size)
		case !isObject:
			err = fmt.Errorf("%w: %q is neither an object nor the manifest", ErrArchive, head.Name)
		default:
			err = u.writeObject(key, head.Size, archive)
		}
		if err != nil {
			return Manifest{}, err
		}
	}
}

func (u *unpacker) readManifest(r io.Reader, size int64) (Manifest, error) {
	if size > u.limits.Manifest {
		return Manifest{}, fmt.Errorf("%w: its manifest has %d bytes, at most %d are allowed", ErrArchive, size,
			u.limits.Manifest)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		return Manifest{}, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	m, err := decodeManifest(body)
	if err != nil {
		return Manifest{}, fmt.Errorf("%w: %s: %w", ErrArchive, manifestName, err)
	}
	return m, nil
}

func decodeManifest(body []byte) (Manifest, error) {
	var head struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return Manifest{}, err
	}
	if head.Schema != Schema {
		return Manifest{}, fmt.Errorf("its schema version is %d, this nstance-admin knows %d", head.Schema, Schema)
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	var m Manifest
	if err := decoder.Decode(&m); err != nil {
		return Manifest{}, err
	}
	if err := ident.ValidateClusterName(m.Cluster); err != nil {
		return Manifest{}, fmt.Errorf("cluster_id: %w", err)
	}
	for i, object := range m.Objects {
		if i > 0 && m.Objects[i-1].Key >= object.Key {
			return Manifest{}, fmt.Errorf("the objects are not sorted at %q", object.Key)
		}
	}
	return m, nil
}

// writeObject unpacks one object. It refuses a key that does not fit the bucket's layout, so no path leads out of the
// directory.
func (u *unpacker) writeObject(key string, size int64, r io.Reader) error {
	parsed, err := keys.Parse(key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	_, twice := u.sums[key]
	u.total += size
	switch {
	case parsed.Kind == keys.KindProbe:
		return fmt.Errorf("%w: it has the probe %s", ErrArchive, key)
	case twice:
		return fmt.Errorf("%w: it has %s twice", ErrArchive, key)
	case size > u.limits.Object, u.total > u.limits.Total, len(u.sums) >= u.limits.Count:
		return fmt.Errorf("%w: more than %d objects, %d bytes in one, or %d bytes in all are not allowed", ErrArchive,
			u.limits.Count, u.limits.Object, u.limits.Total)
	}
	if err := u.dir.MkdirAll(path.Dir(key), 0o700); err != nil {
		return fmt.Errorf("unpack %s: %w", key, err)
	}
	file, err := u.dir.OpenFile(key, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", key, err)
	}
	digest := sha256.New()
	source := &reading{Reader: r}
	written, err := io.Copy(io.MultiWriter(file, digest), io.LimitReader(source, size))
	switch closed := file.Close(); {
	case source.err != nil:
		return fmt.Errorf("%w: %s: %w", ErrArchive, key, source.err)
	case err != nil || closed != nil:
		return fmt.Errorf("unpack %s: %w", key, errors.Join(err, closed))
	case written != size:
		return fmt.Errorf("%w: %s has %d bytes, want %d", ErrArchive, key, written, size)
	}
	u.sums[key] = Object{Key: key, Size: size, SHA256: hex.EncodeToString(digest.Sum(nil))}
	return nil
}

// reading is a reader that remembers its own error. The caller can then tell a read error from a write error of the
// disk.
type reading struct {
	io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// compare returns the differences between the unpacked objects and the manifest, sorted by key.
func (u *unpacker) compare(m Manifest) []Difference {
	problems := map[string]string{}
	for key := range u.sums {
		problems[key] = "the manifest does not have it"
	}
	for _, object := range m.Objects {
		got, there := u.sums[object.Key]
		switch {
		case !there:
			problems[object.Key] = "it is missing"
		case got.SHA256 != object.SHA256 || got.Size != object.Size:
			problems[object.Key] = "its content is not the one that was copied: another SHA-256"
		default:
			delete(problems, object.Key)
		}
	}
	var differences []Difference
	for _, key := range slices.Sorted(maps.Keys(problems)) {
		differences = append(differences, Difference{key, problems[key]})
	}
	return differences
}
