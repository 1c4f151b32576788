package folder

import (
	"bytes"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

// Memory is a [Folder] in memory, for tests and load generators. The zero value is an empty folder that is ready for
// use.
type Memory struct {
	mu    sync.Mutex
	files map[string]memoryFile
	count int64
}

type memoryFile struct {
	content []byte
	stamp   Stamp
}

// Read implements [Folder].
func (m *Memory) Read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	file, ok := m.files[name]
	if !ok {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	return bytes.Clone(file.content), nil
}

// Write implements [Folder]. It ignores the mode.
func (m *Memory) Write(name string, content []byte, _ fs.FileMode) error {
	if err := check("write", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files == nil {
		m.files = map[string]memoryFile{}
	}
	m.count++
	m.files[name] = memoryFile{bytes.Clone(content), Stamp{Size: int64(len(content)), Modified: m.count}}
	return nil
}

// Remove implements [Folder].
func (m *Memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}

// Stat implements [Folder].
func (m *Memory) Stat(name string) (Stamp, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	file, ok := m.files[name]
	if !ok {
		return Stamp{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return file.stamp, nil
}

// List implements [Folder].
func (m *Memory) List() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := slices.DeleteFunc(slices.Collect(maps.Keys(m.files)), hidden)
	slices.Sort(names)
	return names, nil
}
