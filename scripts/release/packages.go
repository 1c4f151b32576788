package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// machinePackage is a package for the machines of one role. The package has the same systemd units as the machine image
// of the role.
type machinePackage struct {
	role, description string
	units             []string
	// directories maps paths to file modes. root owns the directories.
	directories map[string]fs.FileMode
	scripts     nfpm.Scripts
}

var machinePackages = []machinePackage{
	{role: "server", description: "Nstance server: keeps the VMs of one zone shard alive",
		units:       []string{"nstance-server.service", "nstance-server-health.service"},
		directories: map[string]fs.FileMode{"/etc/nstance": 0o700},
		scripts: nfpm.Scripts{PreInstall: "server-preinstall.sh", PostInstall: "server-postinstall.sh",
			PreRemove: "server-preremove.sh"}},
	{role: "agent", description: "Nstance agent: registers its VM, receives files and reports",
		units: []string{"nstance-agent.service", "nstance-member.target"},
		directories: map[string]fs.FileMode{"/etc/nstance": 0o700, "/opt/nstance-agent": 0o755,
			"/opt/nstance-agent/identity": 0o700},
		scripts: nfpm.Scripts{PostInstall: "agent-postinstall.sh", PreRemove: "agent-preremove.sh"}},
}

// packages writes a .deb and an .rpm of each role for each architecture.
func (r *release) packages(context.Context) error {
	for _, architecture := range r.architectures() {
		for _, p := range machinePackages {
			for _, format := range []string{"deb", "rpm"} {
				if err := r.pack(p, architecture, format); err != nil {
					return fmt.Errorf("%s of nstance-%s for %s: %w", format, p.role, architecture, err)
				}
			}
		}
	}
	return nil
}

func (r *release) pack(p machinePackage, architecture, format string) error {
	name := "nstance-" + p.role
	file := func(from, to string, mode fs.FileMode) *files.Content {
		return &files.Content{Source: from, Destination: to,
			FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.Created}}
	}
	contents := files.Contents{
		file(r.binary(name, "linux/"+architecture), "/usr/bin/"+name, 0o755),
		file(filepath.Join(r.Root, "LICENSE"), "/usr/share/doc/"+name+"/copyright", 0o644),
	}
	for _, unit := range p.units {
		path, err := r.unit(unit)
		if err != nil {
			return err
		}
		contents = append(contents, file(path, "/usr/lib/systemd/system/"+unit, 0o644))
	}
	for path, mode := range p.directories {
		contents = append(contents, &files.Content{Destination: path, Type: files.TypeDir,
			FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.Created}})
	}
	scripts := p.scripts
	for _, script := range []*string{&scripts.PreInstall, &scripts.PostInstall, &scripts.PreRemove} {
		if *script != "" {
			*script = filepath.Join(r.Root, "scripts/release/scripts", *script)
		}
	}
	info := nfpm.WithDefaults(&nfpm.Info{Name: name, Arch: architecture, Platform: "linux", Version: r.Number,
		Release: "1", Section: "admin", Priority: "optional", Maintainer: "The Nstance authors <" + source + ">",
		Description: p.description, Homepage: source, License: "Apache-2.0", MTime: r.Created,
		Overridables: nfpm.Overridables{Contents: contents, Scripts: scripts,
			// The packaged program verifies TLS servers with ca-certificates. The passwd and shadow-utils packages
			// provide useradd, which creates the server's user.
			Depends: map[string][]string{"deb": {"ca-certificates", "passwd"},
				"rpm": {"ca-certificates", "shadow-utils"}}[format],
			Deb: nfpm.Deb{Compression: "gzip"},
			RPM: nfpm.RPM{BuildHost: "localhost", Compression: "gzip", Summary: p.description}},
	})
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := packager.Package(info, &out); err != nil {
		return err
	}
	return r.write(packager.ConventionalFileName(info), out.Bytes())
}

// unit copies a unit file of the machine images and returns the path of the copy. The copy of a service starts the
// program from /usr/bin, where the packages install it.
func (r *release) unit(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(r.Root, "images/packer/files", name))
	if err != nil {
		return "", err
	}
	moved := strings.ReplaceAll(string(text), "=/usr/local/bin/", "=/usr/bin/")
	if moved == string(text) && strings.HasSuffix(name, ".service") {
		return "", fmt.Errorf("the unit %s starts no program in /usr/local/bin", name)
	}
	path := filepath.Join(r.Work, name)
	return path, os.WriteFile(path, []byte(moved), 0o644)
}
