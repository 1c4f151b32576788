package oci

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestOutIsKept checks that Write never removes a directory that is not an image layout.
func TestOutIsKept(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, nil); err == nil || !strings.Contains(err.Error(), "no image layout") {
		t.Errorf("Write gave %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// TestBinaryIsStatic checks that Index makes no image if a binary was built for another architecture than the Spec
// says.
func TestBinaryIsStatic(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	architecture := "arm64"
	if runtime.GOARCH == architecture {
		architecture = "amd64"
	}
	if _, err := Index(Spec{Program: "x", Binaries: []Binary{{Architecture: architecture, Path: self}}}); err == nil ||
		!strings.Contains(err.Error(), "GOARCH="+architecture) {
		t.Errorf("a binary for another architecture gave %v", err)
	}
}
