package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"aead.dev/minisign"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/nstance-kit/nstance/images/container/bill"
	"github.com/nstance-kit/nstance/images/container/build"
)

// sums is the name of the list of checksums.
const sums = "SHA256SUMS"

// bills writes a bill of materials (CycloneDX 1.6) for each program, and one for the archive nstance-dev. A bill lists
// the Go modules of the binaries for all platforms.
func (r *release) bills(context.Context) error {
	for _, program := range append(slices.Clone(programs), "nstance-dev", providerName) {
		p := bill.Program{Name: program, Version: r.Number, Revision: r.Revision, Created: r.Created}
		for _, platform := range r.Platforms {
			if program != "nstance-dev" {
				p.Binaries = append(p.Binaries, r.binary(program, platform))
				continue
			}
			for _, part := range trialPrograms {
				p.Binaries = append(p.Binaries, r.binary(trialPrefix+part, platform))
			}
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

// keys are the keys that sign a release. Each may be nil.
type keys struct {
	minisign *minisign.PrivateKey
	gpg      *openpgp.Entity
}

// readKeys reads the keys from the environment. No error contains a key or a password.
func readKeys() (k keys, err error) {
	if text := os.Getenv("NSTANCE_MINISIGN_KEY"); text != "" {
		var key minisign.PrivateKey
		if minisign.IsEncrypted([]byte(text)) {
			key, err = minisign.DecryptKey(os.Getenv("NSTANCE_MINISIGN_PASSWORD"), []byte(text))
		} else {
			err = key.UnmarshalText([]byte(text))
		}
		if err != nil {
			return k, errors.New("NSTANCE_MINISIGN_KEY is no minisign key, or NSTANCE_MINISIGN_PASSWORD does not " +
				"open it")
		}
		k.minisign = &key
	}
	if text := os.Getenv("NSTANCE_GPG_KEY"); text != "" {
		ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(text))
		if err != nil || len(ring) != 1 || ring[0].PrivateKey == nil {
			return k, errors.New("NSTANCE_GPG_KEY is not one armored private key (gpg --armor --export-secret-keys ID)")
		}
		if ring[0].PrivateKey.Encrypted {
			if err := ring[0].DecryptPrivateKeys([]byte(os.Getenv("NSTANCE_GPG_PASSWORD"))); err != nil {
				return k, errors.New("NSTANCE_GPG_PASSWORD does not open NSTANCE_GPG_KEY")
			}
		}
		k.gpg = ring[0]
	}
	return k, nil
}

// minisigned returns the minisign signature of a text.
func (k keys) minisigned(text []byte, comment string) ([]byte, error) {
	reader := minisign.NewReader(bytes.NewReader(text))
	if _, err := io.Copy(io.Discard, reader); err != nil {
		return nil, err
	}
	public, ok := k.minisign.Public().(minisign.PublicKey)
	if !ok {
		return nil, errors.New("the minisign key has no public key")
	}
	return reader.SignWithComments(*k.minisign, comment, fmt.Sprintf("signature from key %X", public.ID())), nil
}

// detached returns the OpenPGP signature of a text. The signature's time is the time of the release, or the creation
// time of the signing key if the key is newer. Equal texts therefore have equal signatures.
func (k keys) detached(text []byte, created time.Time) ([]byte, error) {
	if made := k.gpg.PrimaryKey.CreationTime; made.After(created) {
		created = made
	}
	for _, subkey := range k.gpg.Subkeys {
		if made := subkey.PublicKey.CreationTime; made.After(created) {
			created = made
		}
	}
	salted := false
	config := &packet.Config{DefaultHash: crypto.SHA512, NonDeterministicSignaturesViaNotation: &salted,
		Time: func() time.Time { return created }}
	var out bytes.Buffer
	if err := openpgp.DetachSign(&out, k.gpg, bytes.NewReader(text), config); err != nil {
		return nil, fmt.Errorf("sign with NSTANCE_GPG_KEY: %w", err)
	}
	return out.Bytes(), nil
}
