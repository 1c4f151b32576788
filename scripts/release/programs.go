package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/images/container/build"
)

const providerName = "terraform-provider-nstance"

// programs are released as binaries for every platform.
var programs = []string{"nstance-admin", "nstance-agent", "nstance-operator", "nstance-server"}

// downloaded lists the programs that boot scripts download. A release has each of them as a separate file, in
// addition to the archives.
var downloaded = []string{"nstance-agent", "nstance-server"}

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
		for _, program := range wanted {
			target := build.Target{Package: "./services/cmd/" + program, Version: r.Version, OS: system,
				Architecture: architecture}
			if program == providerName {
				target.Package = "./" + providerName
			}
			if err := build.Compile(ctx, r.Root, target, r.binary(program, platform)); err != nil {
				return err
			}
		}
	}
	return nil
}

// archives writes an archive of all programs, one for each platform. It also writes each program that boot scripts
// download as a separate file.
func (r *release) archives(context.Context) error {
	for _, platform := range r.Platforms {
		suffix := "_" + r.Number + "_" + strings.ReplaceAll(platform, "/", "_")
		folder := "nstance" + suffix + "/"
		var entries []entry
		for _, name := range []string{"CHANGELOG.md", "LICENSE", "README.md"} {
			content, err := os.ReadFile(filepath.Join(r.Root, name))
			if err != nil {
				return err
			}
			entries = append(entries, entry{folder + name, 0o644, content})
		}
		for _, program := range programs {
			content, err := os.ReadFile(r.binary(program, platform))
			if err != nil {
				return err
			}
			entries = append(entries, entry{folder + program, 0o755, content})
			if strings.HasPrefix(platform, "linux/") && slices.Contains(downloaded, program) {
				if err := r.write(program+suffix, content); err != nil {
					return err
				}
			}
		}
		archive, err := tarball(r.Created, entries)
		if err != nil {
			return err
		}
		if err := r.write("nstance"+suffix+".tar.gz", archive); err != nil {
			return err
		}
	}
	return nil
}
