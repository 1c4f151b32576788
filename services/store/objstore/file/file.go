// Package file is an object store in a directory, for one machine. Keys are paths: cluster/ca.crt is stored in
// {dir}/cluster/ca.crt, where a person can read it.
//
// Invariant: an acknowledged object is completely on the disk, even if the process or machine is killed afterwards. A
// put holds a lock while it checks its condition and makes the new object visible by one rename. All processes that use
// the directory share this lock (flock on {dir}/.objstore/lock). Reads do not take the lock. The directory must be on a
// local file system.
//
// Two keys cannot both exist if one is a directory of the other ("a" and "a/b"). The layout of the bucket has no such
// keys.
package file

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

const (
	// private is a directory inside the bucket's directory. Instead of objects, it holds the lock and the file that is
	// being written. Only the holder of the lock writes that file, so one name is enough and a crash leaves no other
	// files.
	private  = ".objstore"
	lockPath = private + "/lock"
	tempPath = private + "/new"
)

// Store implements objstore.Store. Make it with Open.
type Store struct {
	root *os.Root // refuses every path and symbolic link that leads out of the directory
	lock *os.File
	turn chan struct{} // serializes the callers of this process
}

// Backend describes this kind of object store.
var Backend = objstore.Backend{Name: "file",
	Open: func(_ context.Context, at objstore.Location) (objstore.Store, error) { return Open(at.Bucket) }}

// Open opens the bucket in dir, and creates the directory if it does not exist. Close releases the open directory and
// the lock file.
func Open(dir string) (*Store, error) {
	s, err := open(dir)
	if err != nil {
		return nil, fmt.Errorf("open bucket in directory %q: %w", dir, err)
	}
	return s, nil
}

func open(dir string) (*Store, error) {
	if dir == "" {
		return nil, errors.New("no directory is named")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, turn: make(chan struct{}, 1)}
	if err = root.Mkdir(private, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
		s.lock, err = root.OpenFile(lockPath, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

// Close closes the store. Calls in progress fail.
func (s *Store) Close() error { return errors.Join(s.lock.Close(), s.root.Close()) }

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) (objstore.Object, error) {
	obj, _, err := s.GetModified(ctx, key)
	return obj, err
}

// GetModified is like Get and also returns the time at which the object was written.
func (s *Store) GetModified(ctx context.Context, key string) (objstore.Object, time.Time, error) {
	obj, modified, err := s.get(ctx, key)
	if err != nil {
		return objstore.Object{}, time.Time{}, wrap("get", key, err)
	}
	return obj, modified, nil
}

func (s *Store) get(ctx context.Context, key string) (objstore.Object, time.Time, error) {
	if err := validate(key); err != nil {
		return objstore.Object{}, time.Time{}, err
	}
	if err := ctx.Err(); err != nil {
		return objstore.Object{}, time.Time{}, err
	}
	f, err := s.root.Open(key)
	if missing(err) {
		return objstore.Object{}, time.Time{}, objstore.ErrNotFound
	}
	if err != nil {
		return objstore.Object{}, time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return objstore.Object{}, time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return objstore.Object{}, time.Time{}, objstore.ErrNotFound
	}
	body, err := io.ReadAll(f)
	if err != nil {
		return objstore.Object{}, time.Time{}, err
	}
	return objstore.Object{Key: key, Body: body, Token: tokenOf(body)}, info.ModTime(), nil
}

// tokenOf returns the MD5 sum of an object, because the development object store serves tokens as ETags. The sum
// detects accidental changes and races between Nstance's own programs. It does not stop an attacker with write access
// to the directory.
func tokenOf(body []byte) objstore.Token {
	sum := md5.Sum(body)
	return objstore.Token(hex.EncodeToString(sum[:]))
}

// Put implements objstore.Store. It returns only after the object is on the disk.
func (s *Store) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	err := objstore.ValidatePut(key, cond)
	if err == nil {
		err = validate(key)
	}
	if err != nil {
		return "", wrap("put", key, err)
	}
	unlock, err := s.acquire(ctx)
	if err != nil {
		return "", wrap("put", key, err)
	}
	defer unlock()
	if err := s.put(key, body, cond); err != nil {
		return "", wrap("put", key, err)
	}
	return tokenOf(body), nil
}

// put does the work of Put. The caller holds the lock.
func (s *Store) put(key string, body []byte, cond objstore.Condition) error {
	if cond.Conditional() {
		// The lock is held, so the context must not interrupt this read.
		current, _, err := s.get(context.Background(), key)
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return err
		}
		if !cond.Holds(current.Token, err == nil) {
			return objstore.ErrConflict
		}
	}
	if err := s.writeTemp(body); err != nil {
		return err
	}
	if err := s.makeDirs(path.Dir(key)); err != nil {
		return err
	}
	if info, err := s.root.Lstat(key); err == nil && info.IsDir() {
		if err := s.root.Remove(key); err != nil { // an empty directory left by a crash; Remove fails if it is in use
			return fmt.Errorf("%w: other keys lie below this one: %w", objstore.ErrInvalid, err)
		}
	}
	if err := s.root.Rename(tempPath, key); err != nil {
		return err
	}
	if err := s.syncDir(path.Dir(key)); err != nil {
		return fmt.Errorf("%w: %w", objstore.ErrIndeterminate, err) // visible, but perhaps not durable
	}
	return nil
}

func (s *Store) writeTemp(body []byte) error {
	f, err := s.root.OpenFile(tempPath, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// makeDirs makes dir and its parents. It syncs the parent of each new directory, so that a crash does not remove the
// directory.
func (s *Store) makeDirs(dir string) error {
	if dir == "." {
		return nil
	}
	err := s.root.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeDirs(path.Dir(dir)); err != nil {
			return err
		}
		err = s.root.Mkdir(dir, 0o700)
	}
	switch {
	case err == nil:
		return s.syncDir(path.Dir(dir))
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: a part of the key is another key: %w", objstore.ErrInvalid, err)
	case errors.Is(err, fs.ErrExist):
		info, serr := s.root.Lstat(dir)
		if serr == nil && !info.IsDir() {
			return fmt.Errorf("%w: a part of the key is another key: %w", objstore.ErrInvalid, err)
		}
		return serr
	}
	return err
}

// Delete implements objstore.Store. It also removes directories that become empty.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := validate(key); err != nil {
		return wrap("delete", key, err)
	}
	unlock, err := s.acquire(ctx)
	if err != nil {
		return wrap("delete", key, err)
	}
	defer unlock()
	info, err := s.root.Lstat(key)
	if missing(err) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err == nil {
		err = s.root.Remove(key)
	}
	if err != nil {
		return wrap("delete", key, err)
	}
	dir := path.Dir(key)
	for dir != "." && s.root.Remove(dir) == nil {
		dir = path.Dir(dir)
	}
	if err := s.syncDir(dir); err != nil {
		return wrap("delete", key, err)
	}
	return nil
}

// List implements objstore.Store. It reads every object that it lists, to compute the object's token.
func (s *Store) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	keys, err := s.walk(ctx, prefix)
	if err != nil {
		return nil, wrap("list", prefix, err)
	}
	entries := make([]objstore.Entry, 0, len(keys))
	for _, key := range keys {
		obj, modified, err := s.get(ctx, key)
		if errors.Is(err, objstore.ErrNotFound) {
			continue // deleted in the meantime
		}
		if err != nil {
			return nil, wrap("list", prefix, fmt.Errorf("read %q: %w", key, err))
		}
		entries = append(entries, objstore.Entry{Key: key, Token: obj.Token, Size: int64(len(obj.Body)),
			Modified: modified})
	}
	return entries, nil
}

// walk lists the keys under the lock. Without the lock, files that are renamed into a directory during the read could
// be missed.
func (s *Store) walk(ctx context.Context, prefix string) ([]string, error) {
	dir := path.Dir(prefix + "x")
	if !fs.ValidPath(dir) {
		return nil, nil // no valid key starts with this prefix
	}
	unlock, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var keys []string
	err = fs.WalkDir(s.root.FS(), dir, func(key string, entry fs.DirEntry, err error) error {
		switch {
		case missing(err):
			return nil // no key starts with the prefix
		case err != nil:
			return err
		case key == private:
			return fs.SkipDir
		case entry.Type().IsRegular() && strings.HasPrefix(key, prefix) && objstore.ValidateKey(key) == nil:
			keys = append(keys, key)
		}
		return nil
	})
	slices.Sort(keys)
	return keys, err
}

// acquire takes the lock, or fails when ctx ends. Work under the lock is not interrupted.
func (s *Store) acquire(ctx context.Context) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// Another process may be suspended while it holds the lock, so poll instead of blocking in the kernel.
	for tries := 1; ; tries++ {
		held, err := tryLock(s.lock)
		if err != nil {
			<-s.turn
			return nil, fmt.Errorf("lock: %w", err)
		}
		if held {
			return func() { releaseLock(s.lock); <-s.turn }, nil
		}
		if err := objstore.Sleep(ctx, reconnect.Backoff(time.Millisecond, 20*time.Millisecond, tries)); err != nil {
			<-s.turn
			return nil, fmt.Errorf("lock is held by another process: %w", err)
		}
	}
}

func (s *Store) syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // this system cannot sync directories, and journals renames
	}
	d, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func validate(key string) error {
	if key == private || strings.HasPrefix(key, private+"/") {
		return fmt.Errorf("%w: keys below %s are reserved", objstore.ErrInvalid, private)
	}
	return objstore.ValidateKey(key)
}

// missing reports whether err means that the file does not exist: nothing has its name, or a part of its path is a file
// instead of a directory.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func wrap(op, key string, err error) error { return fmt.Errorf("file: %s %q: %w", op, key, err) }
