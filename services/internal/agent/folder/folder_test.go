package folder_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/internal/agent/folder"
	"github.com/nstance-kit/nstance/services/internal/proof/foldertest"
)

func open(t *testing.T) *folder.Disk {
	t.Helper()
	disk, err := folder.Open(filepath.Join(t.TempDir(), "a", "b"), 0o750)
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

// TestFolder checks the contract of every Folder.
func TestFolder(t *testing.T) {
	for name, f := range map[string]folder.Folder{"disk": open(t), "memory": &foldertest.Memory{}} {
		t.Run(name, func(t *testing.T) {
			if _, err := f.Read("a"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Read of nothing: %v", err)
			}
			if _, err := f.Stat("a"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Stat of nothing: %v", err)
			}
			if err := f.Remove("a"); err != nil {
				t.Errorf("Remove of nothing: %v", err)
			}
			stamps := map[folder.Stamp]bool{}
			for _, content := range []string{"one", "two", ""} {
				if err := f.Write("a", []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				got, err := f.Read("a")
				if err != nil || string(got) != content {
					t.Errorf("Read = %q, %v, want %q", got, err, content)
				}
				stamp, err := f.Stat("a")
				if err != nil || stamp.Size != int64(len(content)) {
					t.Errorf("Stat = %v, %v", stamp, err)
				}
				stamps[stamp] = true
			}
			if len(stamps) != 3 {
				t.Errorf("three writes left %d stamps", len(stamps))
			}
			for _, name := range []string{"c.crt", "b", ".hidden"} {
				if err := f.Write(name, []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			names, err := f.List()
			if diff := cmp.Diff([]string{"a", "b", "c.crt"}, names); diff != "" || err != nil {
				t.Errorf("List: %v %s", err, diff)
			}
			if err := f.Remove("a"); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Read("a"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Read of the removed: %v", err)
			}
			for _, bad := range []string{"", ".", "..", "../a", "x/y", "/etc/passwd"} {
				if err := f.Write(bad, nil, 0o600); err == nil {
					t.Errorf("Write(%q) was accepted", bad)
				}
			}
		})
	}
}

func TestDiskModes(t *testing.T) {
	disk := open(t)
	defer syscall.Umask(syscall.Umask(0o077))
	if err := disk.Write("a", []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{"a": 0o640, ".": fs.ModeDir | 0o750, ".tmp": fs.ModeDir | 0o700} {
		info, err := os.Stat(filepath.Join(disk.Path(), path))
		if err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

func TestDiskRefusesIrregularFiles(t *testing.T) {
	disk := open(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, prepare := range map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink(outside, path) },
		"dangling":  func(path string) error { return os.Symlink(outside+"-not", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		if err := prepare(filepath.Join(disk.Path(), name)); err != nil {
			t.Fatal(err)
		}
		if err := disk.Write(name, []byte("x"), 0o600); !errors.Is(err, folder.ErrIrregular) {
			t.Errorf("Write to a %s: %v", name, err)
		}
		if _, err := disk.Read(name); !errors.Is(err, folder.ErrIrregular) {
			t.Errorf("Read of a %s: %v", name, err)
		}
		if err := disk.Remove(name); !errors.Is(err, folder.ErrIrregular) {
			t.Errorf("Remove of a %s: %v", name, err)
		}
	}
	if names, err := disk.List(); len(names) != 0 || err != nil {
		t.Errorf("List = %v, %v", names, err)
	}
	if got, err := os.ReadFile(outside); string(got) != "untouched" {
		t.Errorf("the link's target holds %q, %v", got, err)
	}
}

// A failed write leaves no temporary file and no change. Open removes the temporary files that a crash left.
func TestDiskClearsTemporaryFiles(t *testing.T) {
	disk := open(t)
	if err := os.WriteFile(filepath.Join(disk.Path(), ".tmp", "a123"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := disk.Write("a", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	disk, err := folder.Open(disk.Path(), 0o750)
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(disk.Path(), ".tmp"))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if got, err := disk.Read("a"); string(got) != "kept" || err != nil {
		t.Errorf("Read = %q, %v", got, err)
	}
}

func TestOpenReportsErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if _, err := folder.Open(path, 0o750); err == nil {
			t.Errorf("Open(%s) was accepted", path)
		}
	}
}

func FuzzValidateName(f *testing.F) {
	for _, name := range []string{"", ".", "..", "a.crt", "../a", `a\b`, "a/b", ".a", "-a", "a b", "ä.env", "a\x00.env",
		"kubelet.server.pub", strings.Repeat("a", 201)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if folder.ValidateName(name) != nil {
			return
		}
		if filepath.Base(name) != name || !filepath.IsLocal(name) || len(name) > 200 ||
			strings.ContainsAny(name, " \t\n\x00$`\"'*?") {
			t.Errorf("%q was accepted", name)
		}
	})
}

func TestClip(t *testing.T) {
	for _, test := range []struct {
		text, want string
	}{{"", ""}, {"abc", "abc"}, {"abcd", "abcd"}, {"abcde", "abcd"}, {"abcé", "abc"}, {"ééé", "éé"},
		{"\xff\xfea", "a"}} {
		if got := folder.Clip(test.text, 4); got != test.want {
			t.Errorf("Clip(%q, 4) = %q, want %q", test.text, got, test.want)
		}
	}
}
