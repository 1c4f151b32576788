package folder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/google/renameio/v2"
)

// tempName is the directory inside a [Disk] in which files are written before they are renamed.
const tempName = ".tmp"

// Disk is a [Folder] on a file system. Only one process at a time may use a directory.
type Disk struct {
	path string
	mode fs.FileMode

	mu    sync.Mutex
	ready bool // prepare has succeeded
}

// Open returns the folder at path. It removes the temporary files that a crash left. If the directory is missing, Open
// creates it with the given mode, and its parents with mode 0755. If the file system is full, read-only or damaged,
// Open succeeds all the same: the files can be read, and every write tries again to prepare the directory.
func Open(path string, mode fs.FileMode) (*Disk, error) {
	d := &Disk{path: path, mode: mode}
	if err := d.prepare(); err != nil && !transient(err) {
		return nil, err
	}
	return d, nil
}

// transient reports whether an error is due to a state of the file system that may end while the agent runs.
func transient(err error) bool {
	return slices.ContainsFunc([]syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO,
		syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// prepare creates the directory and an empty directory for temporary files. It does so once.
func (d *Disk) prepare() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ready {
		return nil
	}
	err := prepare(d.path, d.mode)
	d.ready = err == nil
	return err
}

func prepare(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create directory: %w", err)
	}
	temp := filepath.Join(path, tempName)
	if err := os.RemoveAll(temp); err != nil {
		return fmt.Errorf("clear temporary files: %w", err)
	}
	if err := os.Mkdir(temp, 0o700); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	return syncDirectory(path)
}

// Path returns the path of the directory.
func (d *Disk) Path() string { return d.path }

func (d *Disk) join(name string) string { return filepath.Join(d.path, name) }

// check rejects names that lead out of the directory. So Disk is safe even if its caller does not check names.
func check(op, name string) error {
	if name == "" || name == "." || name == ".." || name == tempName || filepath.Base(name) != name {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return nil
}

// Read implements [Folder].
func (d *Disk) Read(name string) ([]byte, error) {
	if err := check("read", name); err != nil {
		return nil, err
	}
	// Without O_NONBLOCK, opening a named pipe would wait until another process opens it for writing.
	file, err := os.OpenFile(d.join(name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, &fs.PathError{Op: "read", Path: name, Err: ErrIrregular}
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: ErrIrregular}
	}
	return io.ReadAll(file)
}

// Write implements [Folder]. The file gets exactly the given mode, independent of the umask.
func (d *Disk) Write(name string, content []byte, mode fs.FileMode) error {
	if err := d.prepare(); err != nil {
		return err
	}
	if _, err := d.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := renameio.NewPendingFile(d.join(name), renameio.WithTempDir(d.join(tempName)),
		renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.CloseAtomicallyReplace()
	}
	if err != nil {
		return errors.Join(err, file.Cleanup())
	}
	return d.sync()
}

// Remove implements [Folder].
func (d *Disk) Remove(name string) error {
	_, err := d.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(d.join(name)); err != nil {
		return err
	}
	return d.sync()
}

// Stat implements [Folder].
func (d *Disk) Stat(name string) (Stamp, error) {
	if err := check("stat", name); err != nil {
		return Stamp{}, err
	}
	info, err := os.Lstat(d.join(name))
	if err != nil {
		return Stamp{}, err
	}
	if !info.Mode().IsRegular() {
		return Stamp{}, &fs.PathError{Op: "stat", Path: name, Err: ErrIrregular}
	}
	stamp := Stamp{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp.Inode = sys.Ino
	}
	return stamp, nil
}

// List implements [Folder].
func (d *Disk) List() ([]string, error) {
	entries, err := os.ReadDir(d.path) // ReadDir sorts by name
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.Type().IsRegular() && !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// sync makes renames and removals in the directory durable.
func (d *Disk) sync() error { return syncDirectory(d.path) }

// syncDirectory syncs a directory, because renames and removals change the directory, not the file.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
