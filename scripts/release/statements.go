package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/images/container/bill"
	"github.com/nstance-kit/nstance/images/container/build"
)

// sums is the name of the list of checksums.
const sums = "SHA256SUMS"

// bills writes a bill of materials (CycloneDX 1.6) for each program. A bill lists the Go modules of the program's
// binaries for all platforms.
func (r *release) bills(context.Context) error {
	for _, program := range append(slices.Clone(programs), providerName) {
		p := bill.Program{Name: program, Version: r.Number, Revision: r.Revision, Created: r.Created}
		for _, platform := range r.Platforms {
			p.Binaries = append(p.Binaries, r.binary(program, platform))
		}
		text, err := bill.CycloneDX(p, source+"/"+program+"/"+r.Version+"/"+r.Revision)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		if err := r.write(program+"_"+r.Number+"_sbom.cdx.json", text); err != nil {
			return err
		}
	}
	return nil
}

// subject is a file that the provenance describes
// (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md).
type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// provenance writes a statement that says from which commit the files were built, and how
// (https://slsa.dev/spec/v1.0/provenance). The signed list of checksums covers the statement.
func (r *release) provenance(ctx context.Context) error {
	version, err := build.Output(ctx, r.Root, "go", "env", "GOVERSION")
	if err != nil {
		return err
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	subjects := slices.Clone(r.digests)
	for _, name := range files {
		sum, err := sum(filepath.Join(r.Dir, name))
		if err != nil {
			return err
		}
		subjects = append(subjects, subject{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	builder := os.Getenv("NSTANCE_BUILDER_ID")
	if builder == "" {
		builder = source + "/blob/main/docs/contributing/releases.md#by-hand"
	}
	text, err := json.MarshalIndent(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType": source + "/blob/main/docs/contributing/releases.md#make-release",
				"externalParameters": map[string]any{"version": r.Version, "platforms": r.Platforms,
					"url": r.URL, "registry": r.Registry},
				"internalParameters": map[string]any{"go": version, "created": r.Created.Format(time.RFC3339)},
				"resolvedDependencies": []any{map[string]any{"uri": "git+" + source + "@refs/tags/" + r.Version,
					"digest": map[string]string{"gitCommit": r.Revision}}},
			},
			"runDetails": map[string]any{"builder": map[string]string{"id": builder}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return r.write("nstance_"+r.Number+"_provenance.json", append(text, '\n'))
}

// checksums writes the checksums of all files, and their signature.
func (r *release) checksums(context.Context) error {
	files, err := r.files()
	if err != nil {
		return err
	}
	list, err := r.sumsOf(files)
	if err != nil {
		return err
	}
	if err := r.write(sums, list); err != nil || r.Keys.minisign == nil {
		return err
	}
	signature, err := r.Keys.minisigned(list, fmt.Sprintf("timestamp:%d\tnstance %s", r.Created.Unix(), r.Version))
	if err != nil {
		return err
	}
	return r.write(sums+".minisig", signature)
}

// files returns the names of the files that the release has so far, sorted.
func (r *release) files() (names []string, err error) {
	entries, err := os.ReadDir(r.Dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// sumsOf returns the checksums of files in the format of sha256sum.
func (r *release) sumsOf(names []string) ([]byte, error) {
	var out bytes.Buffer
	for _, name := range slices.Sorted(slices.Values(names)) {
		sum, err := sum(filepath.Join(r.Dir, name))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%s  %s\n", sum, name)
	}
	return out.Bytes(), nil
}

func sum(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
