package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// provider writes the Terraform provider in the layout of the registries
// (https://developer.hashicorp.com/terraform/registry/providers/publishing).
func (r *release) provider(context.Context) error {
	prefix := providerName + "_" + r.Number + "_"
	manifest, err := os.ReadFile(filepath.Join(r.Root, providerName, "terraform-registry-manifest.json"))
	if err != nil {
		return err
	}
	listed := []string{prefix + "manifest.json"}
	if err := r.write(listed[0], manifest); err != nil {
		return err
	}
	for _, platform := range r.Platforms {
		content, err := os.ReadFile(r.binary(providerName, platform))
		if err != nil {
			return err
		}
		archive, err := zipped(r.Created, []entry{{"LICENSE", 0o644, r.License},
			{providerName + "_" + r.Version, 0o755, content}})
		if err != nil {
			return err
		}
		name := prefix + strings.ReplaceAll(platform, "/", "_") + ".zip"
		if err := r.write(name, archive); err != nil {
			return err
		}
		listed = append(listed, name)
	}
	list, err := r.sumsOf(listed)
	if err != nil {
		return err
	}
	if err := r.write(prefix+sums, list); err != nil {
		return err
	}
	if r.Keys.gpg == nil {
		return nil
	}
	signature, err := r.Keys.detached(list, r.Created)
	if err != nil {
		return err
	}
	return r.write(prefix+sums+".sig", signature)
}

var (
	providerVersion = regexp.MustCompile(`(source\s*=\s*"nstance-kit/nstance",\s*version\s*=\s*)"[^"]*"`)
	moduleSource    = regexp.MustCompile(`(?m)^(\s*source\s*=\s*)"(?:\.\./)+modules/([^"]+)"`)
)

// modules writes the Terraform modules and the examples. The examples use the released modules and provider instead of
// the local ones.
func (r *release) modules(context.Context) error {
	archive := "nstance-modules_" + r.Number + ".tar.gz"
	address := r.URL + "/" + r.Version + "/" + archive
	// One configuration may use modules of several versions, but only one provider. So a module accepts the provider of
	// its own version, and every newer provider below 1.0.
	required := ">= " + r.Number + ", < 1.0"
	if semver.Prerelease(r.Version) != "" {
		required = r.Number // Only an exact version permits a prerelease.
	}
	modules, err := tree(filepath.Join(r.Root, "modules"), "modules")
	if err != nil {
		return err
	}
	examples := []entry{}
	for _, cloud := range []string{"aws", "gcp"} {
		entries, err := tree(filepath.Join(r.Root, "examples", cloud), "examples/"+cloud)
		if err != nil {
			return err
		}
		examples = append(examples, entries...)
	}
	for name, entries := range map[string][]entry{archive: modules,
		"nstance-examples_" + r.Number + ".tar.gz": examples} {
		version := required
		if name != archive {
			version = r.Number
		}
		for i, e := range entries {
			if !strings.HasSuffix(e.name, ".tf") {
				continue
			}
			e.content = providerVersion.ReplaceAll(e.content, []byte(`${1}"`+version+`"`))
			e.content = moduleSource.ReplaceAll(e.content, []byte(`${1}"`+address+`//modules/${2}"`))
			if name != archive &&
				bytes.Contains(e.content, []byte(`"../../../modules`)) {
				return fmt.Errorf("%s uses a module that is not in the release", e.name)
			}
			entries[i] = e
		}
		if err := r.writeTarball(name, entries); err != nil {
			return err
		}
	}
	return nil
}
