package k8s

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	suffix = ".json"
	// tempPath is the path of a file that is being written. Each writer holds the store's lock, so one path is enough.
	// After a crash, at most one such file remains.
	tempPath = ".new"
)

// pathOf returns the path of an object relative to the directory. The names in k must be valid.
func pathOf(c *collection, k key) string {
	return path.Join(c.resource.name, k.namespace, k.name+suffix)
}

// locate is the inverse of pathOf. It returns false for files that are not objects: other directories, hidden files and
// copies made by editors.
func (s *store) locate(name string) (c *collection, k key, ok bool) {
	parts := strings.Split(name, "/")
	c = s.kinds[parts[0]]
	if c == nil || len(parts) != depth(c) {
		return nil, k, false
	}
	file, found := strings.CutSuffix(parts[len(parts)-1], suffix)
	if !found || checkName(file) != nil {
		return nil, k, false
	}
	k.name = file
	if !c.resource.cluster {
		if k.namespace = parts[1]; checkNamespace(k.namespace) != nil {
			return nil, k, false
		}
	}
	return c, k, true
}

// depth returns the number of elements in the path of an object's file.
func depth(c *collection) int {
	if c.resource.cluster {
		return 2
	}
	return 3
}

// begin reads all files and creates the objects that every cluster has.
func (s *store) begin() error {
	if err := s.root.Remove(tempPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range s.scan() {
		s.readChangedFile(name, false)
	}
	for _, namespace := range []string{"default", "kube-system"} {
		o := map[string]any{"metadata": map[string]any{"name": namespace}, "status": map[string]any{"phase": "Active"}}
		if err := s.ensure(find("", "v1", "namespaces"), key{name: namespace}, o); err != nil {
			return err
		}
	}
	// Create the CRDs. From the labels of a CRD, Cluster API learns which version implements which contract.
	// https://cluster-api.sigs.k8s.io/developer/providers/contracts/overview
	for _, r := range resources {
		if !r.custom {
			continue
		}
		if err := s.ensure(find("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
			key{name: r.name + "." + r.group}, definition(r)); err != nil {
			return err
		}
	}
	return nil
}

// definition returns the parts of a CRD that dev-k8s provides.
func definition(r *resource) map[string]any {
	scope := "Namespaced"
	if r.cluster {
		scope = "Cluster"
	}
	return map[string]any{
		"metadata": map[string]any{"name": r.name + "." + r.group, "labels": map[string]any{
			"cluster.x-k8s.io/v1beta2": r.version}},
		"spec": map[string]any{
			"group": r.group, "scope": scope,
			"names": map[string]any{"plural": r.name, "singular": strings.ToLower(r.kind), "kind": r.kind,
				"listKind": r.kind + "List"},
			"versions": []any{map[string]any{"name": r.version, "served": true, "storage": true}},
		},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True",
			"reason": "Served", "message": "served by dev-k8s"}}},
	}
}

// ensure creates an object if there is none. If the file at the object's path is unreadable, ensure returns nil. The
// function take logs a warning about the file.
func (s *store) ensure(r *resource, k key, o map[string]any) error {
	_, _, err := s.edit(r, k, false, func(current map[string]any) (map[string]any, error) {
		if current != nil {
			return current, nil
		}
		s.complete(s.collectionOf(r), k, o, nil)
		return o, nil
	})
	if apierrors.IsServiceUnavailable(err) {
		return nil
	}
	return err
}

// scan lists the paths of objects' files, relative to the root. It lists each file on the disk, and also the path of
// each object in memory, even if that file no longer exists.
func (s *store) scan() (names []string) {
	// Every error goes through the function.
	_ = fs.WalkDir(s.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				s.report(name, err.Error())
			}
			return nil
		}
		if entry.IsDir() && name != "." && s.kinds[strings.Split(name, "/")[0]] == nil {
			if !strings.HasPrefix(name, ".") {
				s.report(name, "there is no such resource")
			}
			return fs.SkipDir
		}
		if _, _, ok := s.locate(name); ok && !entry.IsDir() {
			names = append(names, name)
		}
		return nil
	})
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.kinds {
		for k := range c.objects {
			names = append(names, pathOf(c, k))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// report logs what is wrong with a directory, once.
func (s *store) report(name, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken[name] != problem {
		s.broken[name] = problem
		s.log.Warn("directory ignored", "path", s.shown(name), "error", problem)
	}
}

// readChangedFile updates one object from its file if a user has changed the file. It reports whether the file is
// missing. Some editors remove a file for a moment, so the object is deleted only if the caller has waited and sets
// settled.
func (s *store) readChangedFile(name string, settled bool) (missing bool) {
	c, k, ok := s.locate(name)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := s.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(s.broken, name)
		if _, exists := c.objects[k]; !exists {
			return false
		}
		if settled {
			s.log.Info("file removed", "path", s.shown(name))
			s.commit(c, k, nil, nil)
		}
		return true
	case err != nil:
		s.log.Warn("read object", "path", s.shown(name), "error", err)
	default:
		_ = s.take(c, k, file) // reported
	}
	return false
}

// refresh reads a user's changes of an object's file before a request changes the object. It fails if the file is being
// edited. The caller must hold the lock.
func (s *store) refresh(c *collection, k key) error {
	name := pathOf(c, k)
	file, err := s.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, exists := c.objects[k]; exists {
			// The object's file is missing. If it stays missing, readChangedFile deletes the object.
			return busy(s.shown(name), "it has been removed")
		}
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", s.shown(name), err)
	}
	if err := s.take(c, k, file); err != nil {
		return busy(s.shown(name), err.Error())
	}
	return nil
}

// take stores the content of a file as the object, unless the object already has this content. The caller must hold the
// lock.
func (s *store) take(c *collection, k key, file []byte) error {
	old, exists := c.objects[k]
	if exists && bytes.Equal(old.file, file) {
		return nil
	}
	name := pathOf(c, k)
	content, err := parse(c, k, file)
	if err != nil {
		if s.broken[name] != string(file) {
			s.broken[name] = string(file)
			s.log.Warn("file ignored until it is corrected", "path", s.shown(name), "error", err)
		}
		return err
	}
	delete(s.broken, name)
	read := runtime.DeepCopyJSON(content)
	var before map[string]any
	if exists {
		before = old.content
		if uid, _ := meta(content)["uid"].(string); uid != "" && uid != meta(before)["uid"] {
			s.commit(c, k, nil, nil) // the file contains another object of the same name
			before = nil
		}
	}
	s.complete(c, k, content, before)
	if finished(content) {
		if err := s.remove(c, k); err != nil {
			return err
		}
		s.commit(c, k, nil, nil)
		return nil
	}
	// The file stays as the user wrote it, unless the server adds fields.
	if !same(read, content) {
		if file, err = s.write(c, k, content, file); err != nil {
			s.log.Warn("complete object", "path", s.shown(name), "error", err)
			return err
		}
	}
	if before != nil && same(before, content) {
		old.file = file // the same object with other white space
		return nil
	}
	s.commit(c, k, content, file)
	return nil
}

// parse parses a file. The path determines the object's type and name.
func parse(c *collection, k key, file []byte) (map[string]any, error) {
	content, err := decode(file)
	if err != nil {
		return nil, err
	}
	if err := checkType(c.resource.gvk(), k, content); err != nil {
		return nil, err
	}
	delete(meta(content), "resourceVersion")
	return content, nil
}

// complete sets the fields that the server owns: type, name, UID, creation time and generation. `before` is the
// previous state, or nil for a new object.
func (s *store) complete(c *collection, k key, o, before map[string]any) {
	o["apiVersion"], o["kind"] = c.resource.apiVersion(), c.resource.kind
	m := meta(o)
	m["name"] = k.name
	if k.namespace != "" {
		m["namespace"] = k.namespace
	}
	if before != nil {
		old := meta(before)
		for _, field := range []string{"uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"} {
			if v, ok := old[field]; ok {
				m[field] = v
			} else {
				delete(m, field)
			}
		}
	}
	if uid, _ := m["uid"].(string); uid == "" {
		m["uid"] = uuid.NewString()
	}
	if at, _ := m["creationTimestamp"].(string); at == "" {
		m["creationTimestamp"] = s.timestamp()
	}
	normalise(c.resource, o)
	if !c.resource.generation {
		delete(m, "generation")
		return
	}
	generation, _ := m["generation"].(int64)
	if before != nil {
		generation, _ = meta(before)["generation"].(int64)
		if !sameSpec(o, before) {
			generation++
		}
	}
	m["generation"] = max(generation, 1)
}

// timestamp returns the current time in Kubernetes' format, in seconds.
func (s *store) timestamp() string { return s.now().UTC().Format(time.RFC3339) }

// sameSpec reports whether two states differ only in metadata and status.
func sameSpec(a, b map[string]any) bool {
	return same(without(a, "metadata", "status"), without(b, "metadata", "status"))
}

// same reports whether two objects are equal except for their resource versions.
func same(a, b map[string]any) bool {
	x, errA := encode(a)
	y, errB := encode(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// without returns a shallow copy without some fields.
func without(o map[string]any, fields ...string) map[string]any {
	c := make(map[string]any, len(o))
	for name, v := range o {
		if !slices.Contains(fields, name) {
			c[name] = v
		}
	}
	return c
}

// encode returns the file content of an object, without the resource version. That version changes with every edit, so
// the server would have to rewrite the file after each edit of a user.
func encode(o map[string]any) ([]byte, error) {
	c := without(o)
	if m, ok := c["metadata"].(map[string]any); ok {
		c["metadata"] = without(m, "resourceVersion")
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(c)
	return b.Bytes(), err
}

func (s *store) read(name string) ([]byte, error) {
	info, err := s.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			err = fs.ErrNotExist
		}
		return nil, err
	}
	return s.root.ReadFile(name)
}

// write replaces an object's file with a rename and returns the new content. `before` is the content when the file was
// last read, or nil if there was no file. If the file has changed since, write fails. The caller must hold the lock.
func (s *store) write(c *collection, k key, o map[string]any, before []byte) ([]byte, error) {
	file, err := encode(o)
	if err != nil {
		return nil, err
	}
	name := pathOf(c, k)
	if err := s.writeTemp(file); err != nil {
		return nil, fmt.Errorf("write %s: %w", s.shown(name), err)
	}
	if err := s.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return nil, fmt.Errorf("write %s: %w", s.shown(name), err)
	}
	// Writing the temporary file takes time, in which a person may have saved the object's file.
	switch now, err := s.read(name); {
	case errors.Is(err, fs.ErrNotExist) && before == nil, err == nil && before != nil && bytes.Equal(now, before):
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil, busy(s.shown(name), "it is being changed")
	default:
		return nil, fmt.Errorf("read %s: %w", s.shown(name), err)
	}
	if err := s.root.Rename(tempPath, name); err != nil {
		return nil, fmt.Errorf("write %s: %w", s.shown(name), err)
	}
	return file, nil
}

// writeTemp writes and syncs the temporary file.
func (s *store) writeTemp(file []byte) error {
	f, err := s.root.OpenFile(tempPath, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(file)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// remove deletes an object's file if it exists. The caller must hold the lock.
func (s *store) remove(c *collection, k key) error {
	if err := s.root.Remove(pathOf(c, k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", s.shown(pathOf(c, k)), err)
	}
	return nil
}

// shown returns a path as it is shown to users.
func (s *store) shown(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

const (
	// lookTime is the time between two looks at the files.
	lookTime = 50 * time.Millisecond
	// settledLooks is for how many looks a file must stay as it is before it is read. A program may write a file in
	// several parts.
	settledLooks = 2
	// absentLooks is for how many looks a file must be missing before its object is deleted. Editors and `git checkout`
	// replace files in two steps.
	absentLooks = 6
)

// look is what the store has seen of a file. If the file is missing, modified is zero.
type look struct {
	size, modified int64
	times          int // in how many looks it was so
}

// follow finds users' changes of files, until ctx ends.
func (s *store) follow(ctx context.Context) {
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	seen := map[string]look{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		before := seen
		seen = map[string]look{}
		for _, name := range s.scan() {
			var now look
			if info, err := s.root.Stat(name); err == nil {
				now.size, now.modified = info.Size(), info.ModTime().UnixNano()
			}
			was := before[name]
			if now.times = was.times; was != now {
				now.times = 0
			}
			now.times++
			seen[name] = now
			if now.times == settledLooks || now.times == absentLooks {
				s.readChangedFile(name, now.times == absentLooks)
			}
		}
	}
}
