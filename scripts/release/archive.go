package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name    string
	mode    fs.FileMode
	content []byte
}

// tarball returns a compressed archive. Equal entries give equal bytes.
func tarball(created time.Time, entries []entry) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	if err := writeTar(tar.NewWriter(compressed), created, entries); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func writeTar(w *tar.Writer, created time.Time, entries []entry) error {
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: int64(e.mode),
			Size: int64(len(e.content)), ModTime: created, Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := w.Write(e.content); err != nil {
			return err
		}
	}
	return w.Close()
}

// zipped returns a zip file. Equal entries give equal bytes.
func zipped(created time.Time, entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: created}
		header.SetMode(e.mode)
		file, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := file.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// tree returns the files below the directory "dir" of the repository, sorted by name, as entries below the directory
// "into". It leaves out directories of tests and of continuous integration, and Terraform's working directories and
// states.
func (r *release) tree(dir, into string) (entries []entry, err error) {
	base := filepath.Join(r.Root, dir)
	err = filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "tests" || name == "ci" || strings.HasPrefix(name, ".terraform") {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasPrefix(d.Name(), ".terraform") || strings.Contains(d.Name(), ".tfstate") ||
			!d.Type().IsRegular() {
			return nil
		}
		relative, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		entries = append(entries, entry{filepath.ToSlash(filepath.Join(into, relative)), mode, content})
		return nil
	})
	return entries, err
}

// write writes a file of the release.
func (r *release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.Dir, name), content, 0o644)
}
