package admin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// refuseExisting returns an error if the file already exists. Commands call it before long work.
func refuseExisting(path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		return withHint(fmt.Errorf("%s exists already, and is not replaced", path), "choose another name with --output")
	}
	return nil
}

// writeNewFile writes a file under a temporary name, with access for the owner only, and then renames the file. It does
// not replace an existing file.
func writeNewFile(path string, write func(io.Writer) error) (size int64, err error) {
	if err := refuseExisting(path); err != nil {
		return 0, err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(file.Name()) }() // fails after a rename
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		size, err = file.Seek(0, io.SeekCurrent)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Link(file.Name(), path) // unlike a rename, it replaces nothing
		if err != nil && !errors.Is(err, fs.ErrExist) {
			// The file system may lack hard links, so rename the file. The rename could replace a file that another
			// program has just made.
			if err = refuseExisting(path); err == nil {
				err = os.Rename(file.Name(), path)
			}
		}
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	return size, nil
}
