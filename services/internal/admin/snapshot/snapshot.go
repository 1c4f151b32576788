// Package snapshot copies the objects of a bucket into one archive, and reads such archives.
//
// An archive is a tar file with gzip. Its entries are the objects, each under objects/{key}, and then manifest.json.
//
// Invariant: [Unpack] writes only regular files below its directory, and never more than its limits. A consistent
// snapshot holds the state of all objects, except locks, journals and logs, at one moment.
package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

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
	home, err := record.DecodeHome(body)
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
