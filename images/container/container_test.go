package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/nstance-kit/nstance/images/container/bill"
	"github.com/nstance-kit/nstance/images/container/oci"
)

// program is the name of the program under services/cmd that the tests build. A smaller program than the default links
// faster.
var program = flag.String("program", "nstance-operator", "program under services/cmd to make an image of")

func TestImage(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	pushed := strings.TrimPrefix(server.URL, "http://") + "/kit/" + *program + ":1.2.3"

	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir := filepath.Join(t.TempDir(), "image")
	var first, second bytes.Buffer
	args := []string{"-program", *program, "-version", "1.2.3", "-revision", "0123456789abcdef0123456789abcdef01234567",
		"-out", dir}
	if err := run(t.Context(), append(slices.Clone(args), "-push", pushed, "-insecure"), &first); err != nil {
		t.Fatal(err)
	}
	// The second build has the same output directory as the first. It must replace the image there.
	if err := run(t.Context(), args, &second); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() || !strings.HasPrefix(first.String(), "sha256:") {
		t.Errorf("digests %q and %q differ", first.String(), second.String())
	}

	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(root); err != nil {
		t.Errorf("layout: %v", err)
	}
	manifest, err := root.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("layout has %+v, %v", manifest, err)
	}
	if got := manifest.Manifests[0].Digest.String(); got != strings.TrimSpace(first.String()) {
		t.Errorf("layout has %s, printed was %s", got, first.String())
	}
	reference, err := name.ParseReference(pushed, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if there, err := remote.Head(reference); err != nil || there.Digest != manifest.Manifests[0].Digest {
		t.Errorf("pushed was %+v, %v", there, err)
	}
	index, err := root.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	seen := []string{}
	for _, descriptor := range manifest.Manifests {
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, descriptor.Platform.String())
		if descriptor.Platform.OS == "linux" {
			checkImage(t, image, descriptor.Platform.Architecture)
		} else {
			checkBill(t, image, manifest.Manifests)
		}
	}
	if want := []string{"linux/amd64", "unknown/unknown", "linux/arm64", "unknown/unknown"}; !slices.Equal(seen, want) {
		t.Errorf("platforms %v, want %v", seen, want)
	}
}

func checkImage(t *testing.T, image v1.Image, architecture string) {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	entrypoint := "/usr/local/bin/" + *program
	if file.OS != "linux" || file.Architecture != architecture || file.Config.User != "65532:65532" ||
		!slices.Equal(file.Config.Entrypoint, []string{entrypoint}) ||
		file.Created.Unix() != 1700000000 || file.Config.Labels["org.opencontainers.image.version"] != "1.2.3" {
		t.Errorf("%s: configuration %+v", architecture, file)
	}
	files := map[string][]byte{}
	reader := mutate.Extract(image)
	defer reader.Close()
	archive := tar.NewReader(reader)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.FileInfo().Mode()&(fs.ModeSetuid|fs.ModeSetgid|0o022) != 0 {
			t.Errorf("%s: %s is of %d:%d, mode %s", architecture, header.Name, header.Uid, header.Gid,
				header.FileInfo().Mode())
		}
		if header.Typeflag == tar.TypeReg {
			if files["/"+header.Name], err = io.ReadAll(archive); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{"/etc/group", "/etc/passwd", oci.Certificates, entrypoint, "/usr/share/licenses/nstance/LICENSE"}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
		t.Errorf("%s: files %v, want %v", architecture, got, want)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(files[oci.Certificates]) ||
		bytes.Count(files[oci.Certificates], []byte("BEGIN")) < 50 {
		t.Errorf("%s: %d bytes of certificates", architecture, len(files[oci.Certificates]))
	}
	if architecture != runtime.GOARCH || runtime.GOOS != "linux" {
		return
	}
	binary := filepath.Join(t.TempDir(), *program)
	if err := os.WriteFile(binary, files[entrypoint], 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), binary, "--help").CombinedOutput(); err != nil || len(out) < 200 {
		t.Errorf("%s: --help: %v\n%s", architecture, err, out)
	}
}

func checkBill(t *testing.T, artifact v1.Image, manifests []v1.Descriptor) {
	t.Helper()
	manifest, err := artifact.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Layers[0].MediaType != bill.MediaType || manifest.Subject == nil ||
		!slices.ContainsFunc(manifests, func(d v1.Descriptor) bool {
			return d.Digest == manifest.Subject.Digest
		}) {
		t.Errorf("bill of materials: manifest %+v", manifest)
	}
	layers, err := artifact.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("bill of materials: %d layers, %v", len(layers), err)
	}
	text, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	type listed struct{ Name, Version string }
	var list struct {
		BOMFormat    string
		Components   []listed
		Dependencies []struct{ DependsOn []string }
	}
	if err := json.NewDecoder(text).Decode(&list); err != nil {
		t.Fatal(err)
	}
	if list.BOMFormat != "CycloneDX" || !slices.ContainsFunc(list.Components, func(c listed) bool {
		return c.Name == "google.golang.org/grpc" && strings.HasPrefix(c.Version, "v1.")
	}) || len(list.Dependencies) != 1 || len(list.Dependencies[0].DependsOn) != len(list.Components) {
		t.Errorf("bill of materials lists %+v", list)
	}
}
