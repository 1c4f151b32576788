// Package oci makes container images of static programs. It needs no container engine, and the images have no base
// image.
package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/nstance-kit/nstance/images/container/bill"
)

const (
	source = "https://github.com/nstance-kit/nstance"
	// user is the user nonroot of distroless images. A numeric user lets Kubernetes verify that the image does not run
	// as root.
	user = "65532:65532"
	// Certificates is the path of the root certificates in an image.
	Certificates = "/etc/ssl/certs/ca-certificates.crt"
	licenses     = "Apache-2.0"
)

// Spec holds all inputs of an image.
type Spec struct {
	Program, Version, Revision string
	Created                    time.Time
	License                    []byte
	Binaries                   []Binary
}

// Binary is a static executable for Linux.
type Binary struct{ Architecture, Path string }

// Index returns an index with an image and a bill of materials for each architecture. Equal specs and binaries give the
// same digest.
func Index(spec Spec) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, binary := range spec.Binaries {
		image, err := imageOf(spec, binary)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", binary.Architecture, err)
		}
		list, err := billOf(spec, binary, image)
		if err != nil {
			return nil, fmt.Errorf("bill of materials for %s: %w", binary.Architecture, err)
		}
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{MediaType: types.OCIManifestSchema1,
				Platform: &v1.Platform{OS: "linux", Architecture: binary.Architecture}}},
			// Clients that select an image by its platform skip the bill of materials, because its platform is
			// "unknown".
			mutate.IndexAddendum{Add: list, Descriptor: v1.Descriptor{MediaType: types.OCIManifestSchema1,
				ArtifactType: bill.MediaType,
				Platform:     &v1.Platform{OS: "unknown", Architecture: "unknown"}}})
	}
	return mutate.Annotations(index, annotations(spec)).(v1.ImageIndex), nil
}

func annotations(spec Spec) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    spec.Program,
		"org.opencontainers.image.version":  spec.Version,
		"org.opencontainers.image.revision": spec.Revision,
		"org.opencontainers.image.source":   source,
		"org.opencontainers.image.licenses": licenses,
		"org.opencontainers.image.created":  spec.Created.Format(time.RFC3339),
	}
}

func imageOf(spec Spec, binary Binary) (v1.Image, error) {
	info, err := buildinfo.ReadFile(binary.Path)
	if err != nil {
		return nil, err
	}
	for _, want := range []string{"GOOS=linux", "GOARCH=" + binary.Architecture, "CGO_ENABLED=0"} {
		found := false
		for _, setting := range info.Settings {
			found = found || setting.Key+"="+setting.Value == want
		}
		if !found {
			return nil, fmt.Errorf("binary was not built with %s", want)
		}
	}
	executable, err := os.ReadFile(binary.Path)
	if err != nil {
		return nil, err
	}
	below, err := layer(spec.Created, file{Certificates, roots(), 0o644},
		file{"/etc/passwd", []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"),
			0o644},
		file{"/etc/group", []byte("root:x:0:\nnonroot:x:65532:\n"), 0o644},
		file{"/usr/share/licenses/nstance/LICENSE", spec.License, 0o644})
	if err != nil {
		return nil, err
	}
	entrypoint := "/usr/local/bin/" + spec.Program
	above, err := layer(spec.Created, file{entrypoint, executable, 0o755})
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: spec.Created}
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: below, MediaType: types.OCILayer, History: v1.History{Created: created,
			CreatedBy: "root certificates, users, licence"}},
		mutate.Addendum{Layer: above, MediaType: types.OCILayer, History: v1.History{Created: created,
			CreatedBy: "go build ./services/cmd/" + spec.Program}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", binary.Architecture, created
	config.Config = v1.Config{
		User:       user,
		Entrypoint: []string{entrypoint},
		Env:        []string{"PATH=/usr/local/bin", "SSL_CERT_FILE=" + Certificates},
		WorkingDir: "/",
		Labels:     annotations(spec),
	}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, annotations(spec)).(v1.Image), nil
}

type file struct {
	path    string
	content []byte
	mode    int64
}

// layer returns a layer with the files and their directories. All belong to root and have the same modification time.
func layer(modified time.Time, files ...file) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	made := map[string]bool{}
	for _, f := range files {
		var folders []string
		for dir := path.Dir(f.path); dir != "/"; dir = path.Dir(dir) {
			folders = append(folders, dir)
		}
		for i := len(folders) - 1; i >= 0; i-- {
			if dir := folders[i]; !made[dir] {
				made[dir] = true
				if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/",
					Mode: 0o755, ModTime: modified}); err != nil {
					return nil, err
				}
			}
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.path, "/"), Mode: f.mode,
			Size: int64(len(f.content)), ModTime: modified}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	},
		tarball.WithMediaType(types.OCILayer))
}

// roots returns the root certificates that browsers trust, from a pinned Go module. roots leaves out certificates with
// constraints, because a PEM file cannot hold the constraints.
func roots() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return text.Bytes()
}

// Write writes an image layout with one index
// (https://github.com/opencontainers/image-spec/blob/main/image-layout.md). It replaces an existing image layout and
// refuses to replace anything else.
func Write(dir string, index v1.ImageIndex) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
			return fmt.Errorf("%s is there and is no image layout", dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	if err := path.AppendIndex(index); err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	return nil
}

// Push pushes an index to a registry. reference is the name of the image, including the registry. Push uses the
// registry credentials that the container tools have stored.
func Push(ctx context.Context, reference string, insecure bool, index v1.ImageIndex) error {
	named, err := Reference(reference, insecure)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(named, index, Credentials(ctx)...); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	return nil
}

// Reference parses the name of an image. insecure permits plain HTTP.
func Reference(text string, insecure bool) (name.Reference, error) {
	options := []name.Option{}
	if insecure {
		options = append(options, name.Insecure)
	}
	reference, err := name.ParseReference(text, options...)
	if err != nil {
		return nil, fmt.Errorf("name to push: %w", err)
	}
	return reference, nil
}

// Credentials returns options for calls to a registry. With them, the calls use the credentials that the container
// tools have stored.
func Credentials(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

// billOf returns an artifact that refers to the image: its bill of materials.
func billOf(spec Spec, binary Binary, image v1.Image) (v1.Image, error) {
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	text, err := bill.CycloneDX(bill.Program{Name: spec.Program, Version: spec.Version, Revision: spec.Revision,
		Created: spec.Created, Binaries: []string{binary.Path}}, source+"/image/"+subject.Digest.String())
	if err != nil {
		return nil, err
	}
	// Registry clients can read the artifact, because it has the form of a docker buildx attestation.
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(text, bill.MediaType))
	if err != nil {
		return nil, err
	}
	config, err := artifact.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "unknown", "unknown"
	if artifact, err = mutate.ConfigFile(artifact, config); err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}
