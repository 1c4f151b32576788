// Package folder owns how the agent keeps small files: flat directories in which every write is atomic and durable.
//
// Invariant: a reader sees the whole of the old content or the whole of the new, also after a crash, and what a call
// has confirmed is still there after one. Symbolic links and other irregular files are neither followed nor replaced.
package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// ErrIrregular is the error of a name that is taken by something else than a regular file.
var ErrIrregular = errors.New("not a regular file")

// Folder is a flat directory. Names are base names. Implementations are safe for concurrent use; two writers of one
// name leave the content of one of them.
type Folder interface {
	// Read returns the content of a file. The error is [fs.ErrNotExist] if there is none, [ErrIrregular] if it is no
	// regular file.
	Read(name string) ([]byte, error)
	// Write creates or replaces a file. It is durable when Write returns nil; after an error the old content or the new
	// is there.
	Write(name string, content []byte, mode fs.FileMode) error
	// Remove removes a file durably. Removing what is not there is no error.
	Remove(name string) error
	// Stat is a cheap look at a file; its errors are those of Read.
	Stat(name string) (Stamp, error)
	// List returns the names of the regular files in order. Names that start with a dot are left out.
	List() ([]string, error)
}

// Stamp changes whenever a file's content may have changed. It is comparable.
type Stamp struct {
	Size     int64
	Modified int64 // nanoseconds, or a counter
	Inode    uint64
}

// maxName leaves room for what a temporary file's name adds, in the 255 bytes that file systems allow.
const maxName = 200

// ValidateName checks that a name is a base name that is safe everywhere: ASCII letters, digits and "._-@+", not
// starting with a dot or a dash, at most 200 characters.
func ValidateName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case strings.ContainsAny(name, `/\`):
		return errors.New("the name contains a path separator")
	case len(name) > maxName:
		return fmt.Errorf("the name has %d characters, at most %d are allowed", len(name), maxName)
	case name[0] == '.' || name[0] == '-':
		return errors.New("the name starts with a dot or a dash")
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("._-@+", rune(c)) {
			return fmt.Errorf("the name contains %q; letters, digits and ._-@+ are allowed", c)
		}
	}
	return nil
}

// What a server takes in reports, in bytes.
const (
	MaxReportedName = 255
	MaxReportedText = 1024
)

// Clip shortens a text to at most limit bytes of valid UTF-8.
func Clip(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}

// hidden reports whether a name is left out of listings.
func hidden(name string) bool { return strings.HasPrefix(name, ".") }
