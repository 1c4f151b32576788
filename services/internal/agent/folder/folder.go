// Package folder stores the agent's small files in flat directories. Every write is atomic and durable.
//
// Invariant: a reader sees either all of the old content or all of the new content, also after a crash. A confirmed
// write or removal survives a crash. The package neither follows nor replaces symbolic links and other irregular files.
package folder

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// ErrIrregular means that the name belongs to a directory, a symbolic link, or another file that is not regular.
var ErrIrregular = errors.New("not a regular file")

// Folder is a flat directory. Names are base names. Implementations are safe for concurrent use. If two goroutines
// write the same name, the file has the content of one of them.
type Folder interface {
	// Read returns the content of a file. The error wraps [fs.ErrNotExist] if the file does not exist, and
	// [ErrIrregular] if it is not a regular file.
	Read(name string) ([]byte, error)
	// Write creates or replaces a file. The file is durable when Write returns nil. After an error the file has either
	// the old content or the new content.
	Write(name string, content []byte, mode fs.FileMode) error
	// Remove removes a file durably. Removing a missing file is not an error.
	Remove(name string) error
	// Stat returns the stamp of a file without reading its content. Its errors are those of Read.
	Stat(name string) (Stamp, error)
	// List returns the names of the regular files in sorted order. It omits names that start with a dot.
	List() ([]string, error)
}

// Stamp identifies a version of a file. If the content of a file changes, its stamp changes. Stamps are comparable.
type Stamp struct {
	Size     int64
	Modified int64 // in nanoseconds, or a counter
	Inode    uint64
}

// maxName leaves room for the suffix of a temporary file's name within the 255 bytes that file systems allow.
const maxName = 200

// ValidateName checks that a name is a base name that is safe on every file system. It may have at most 200 characters:
// ASCII letters, digits, and "._-@+". It must not start with a dot or a dash.
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

// Sum returns the SHA-256 sum of a content in hexadecimal, as a report has it.
func Sum(content []byte) string {
	digest := sha256.Sum256(content)
	return hex.EncodeToString(digest[:])
}

// MaxReportedName and MaxReportedText are a server's limits, in bytes, for names and texts in an agent's report.
const (
	MaxReportedName = 255
	MaxReportedText = 1024
)

// Clip shortens a text to at most limit bytes of valid UTF-8.
func Clip(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}
