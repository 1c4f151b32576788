package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"testing"
)

// tarEntry is one entry of an archive.
type tarEntry struct {
	name string
	body []byte
}

func readTar(t *testing.T, path string) (entries []tarEntry) {
	t.Helper()
	source, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	zip, err := gzip.NewReader(source)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, tarEntry{head.Name, body})
	}
}

func writeTar(t *testing.T, path string, entries []tarEntry) {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, e := range entries {
		head := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.body))}
		if err := archive.WriteHeader(head); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, out.Bytes())
}
