package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/images/container/build"
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

func (r *release) writeTarball(name string, entries []entry) error {
	archive, err := tarball(r.Created, entries)
	if err != nil {
		return err
	}
	return r.write(name, archive)
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

// tree returns the files below the directory "base", sorted by name, as entries below the directory "into". A link is
// stored as the file that it leads to. It leaves out directories of tests and of continuous integration, and
// Terraform's working directories and states.
func tree(base, into string) (entries []entry, err error) {
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
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if strings.HasPrefix(d.Name(), ".terraform") || strings.Contains(d.Name(), ".tfstate") ||
			!info.Mode().IsRegular() {
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

const providerName = "terraform-provider-nstance"

// programs are released as binaries for every platform.
var programs = []string{"nstance-admin", "nstance-agent", "nstance-operator", "nstance-server"}

// downloaded lists the programs that boot scripts download. A release has each of them as a separate file, in
// addition to the archives.
var downloaded = []string{"nstance-agent", "nstance-server"}

// trialPrograms run a cluster on one machine. They are released as one archive for each platform.
var trialPrograms = []string{"dev-s3", "nstance-admin", "nstance-agent", "nstance-dev", "nstance-server", providerName}

// trialPrefix is part of the names of these programs when they are compiled.
const trialPrefix = "trial-"

// imagePrograms are released as images.
var imagePrograms = []string{"dev-s3", "nstance-admin", "nstance-operator", "nstance-server"}

// binary returns the path of a compiled program.
func (r *release) binary(program, platform string) string {
	return filepath.Join(r.Work, "bin", program+"_"+strings.ReplaceAll(platform, "/", "_"))
}

// architectures returns the architectures of all Linux platforms.
func (r *release) architectures() (list []string) {
	for _, platform := range r.Platforms {
		if architecture, ok := strings.CutPrefix(platform, "linux/"); ok {
			list = append(list, architecture)
		}
	}
	return list
}

// compile builds all programs for all platforms.
func (r *release) compile(ctx context.Context) error {
	for _, platform := range r.Platforms {
		system, architecture, _ := strings.Cut(platform, "/")
		wanted := append(slices.Clone(programs), providerName)
		if system == "linux" {
			wanted = append(wanted, "dev-s3")
		}
		target := build.Target{Version: r.Version, OS: system, Architecture: architecture}
		for _, program := range wanted {
			target.Package = packageOf(program)
			if err := build.Compile(ctx, r.Root, target, r.binary(program, platform)); err != nil {
				return err
			}
		}
		target.Trial = true
		for _, program := range trialPrograms {
			target.Package = packageOf(program)
			if err := build.Compile(ctx, r.Root, target, r.binary(trialPrefix+program, platform)); err != nil {
				return err
			}
		}
	}
	return nil
}

func packageOf(program string) string {
	if program == providerName {
		return "./" + providerName
	}
	return "./services/cmd/" + program
}

//go:embed nstance-dev.md
var trialReadme []byte

// trial writes the archive nstance-dev for each platform: a cluster on one machine, with all programs that it starts
// except tmux and tofu.
func (r *release) trial(context.Context) error {
	example, err := tree(filepath.Join(r.Root, "examples/local"), "examples/local")
	if err != nil {
		return err
	}
	config, err := os.ReadFile(filepath.Join(r.Root, "examples", "config-tmux.jsonc"))
	if err != nil {
		return err
	}
	shared := append([]entry{{"LICENSE", 0o644, r.License}, {"README.md", 0o644, trialReadme},
		{"examples/config-tmux.jsonc", 0o644, config}}, example...)
	return r.archive("nstance-dev", shared, trialPrefix, trialPrograms)
}

// archives writes an archive of all programs, one for each platform. It also writes each program that boot scripts
// download as a separate file.
func (r *release) archives(context.Context) error {
	var shared []entry
	for _, name := range []string{"CHANGELOG.md", "LICENSE", "README.md"} {
		content, err := os.ReadFile(filepath.Join(r.Root, name))
		if err != nil {
			return err
		}
		shared = append(shared, entry{name, 0o644, content})
	}
	for _, architecture := range r.architectures() {
		for _, program := range downloaded {
			content, err := os.ReadFile(r.binary(program, "linux/"+architecture))
			if err != nil {
				return err
			}
			if err := r.write(program+"_"+r.Number+"_linux_"+architecture, content); err != nil {
				return err
			}
		}
	}
	return r.archive("nstance", shared, "", programs)
}

// archive writes an archive with the shared files and the programs for each platform. The name of the archive is also
// that of the folder in it. The prefix belongs to the names of the compiled programs.
func (r *release) archive(name string, shared []entry, prefix string, programs []string) error {
	for _, platform := range r.Platforms {
		folder := name + "_" + r.Number + "_" + strings.ReplaceAll(platform, "/", "_")
		var entries []entry
		for _, e := range shared {
			entries = append(entries, entry{folder + "/" + e.name, e.mode, e.content})
		}
		for _, program := range programs {
			content, err := os.ReadFile(r.binary(prefix+program, platform))
			if err != nil {
				return err
			}
			entries = append(entries, entry{folder + "/" + program, 0o755, content})
		}
		if err := r.writeTarball(folder+".tar.gz", entries); err != nil {
			return err
		}
	}
	return nil
}
