// Package foldertest has a folder of the agent in memory, for tests and load generators.
package foldertest

import (
	"bytes"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

// Memory is a [folder.Folder] in memory. The zero value is an empty folder that is ready for use.
type Memory struct {
	mu    sync.Mutex
	files map[string]memoryFile
	count int64
}

type memoryFile struct {
	content []byte
	stamp   folder.Stamp
}

// Read implements [folder.Folder].
func (m *Memory) Read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	file, ok := m.files[name]
	if !ok {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	return bytes.Clone(file.content), nil
}

// Write implements [folder.Folder]. It ignores the mode.
func (m *Memory) Write(name string, content []byte, _ fs.FileMode) error {
	if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, '/') {
		return &fs.PathError{Op: "write", Path: name, Err: fs.ErrInvalid}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil {
		m.files = map[string]memoryFile{}
	}
	m.count++
	m.files[name] = memoryFile{bytes.Clone(content), folder.Stamp{Size: int64(len(content)), Modified: m.count}}
	return nil
}

// Remove implements [folder.Folder].
func (m *Memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}

// Stat implements [folder.Folder].
func (m *Memory) Stat(name string) (folder.Stamp, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	file, ok := m.files[name]
	if !ok {
		return folder.Stamp{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return file.stamp, nil
}

// List implements [folder.Folder].
func (m *Memory) List() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.DeleteFunc(slices.Collect(maps.Keys(m.files)), func(name string) bool {
		return strings.HasPrefix(name, ".")
	})
	slices.Sort(names)
	return names, nil
}
