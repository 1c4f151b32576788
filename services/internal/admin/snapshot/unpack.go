package snapshot

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
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

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
)

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
