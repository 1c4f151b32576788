package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v3"

	"github.com/nstance-kit/nstance/images/container/oci"
)

// images writes an OCI archive of each image, with all architectures, and pushes the images if -push is set.
func (r *release) images(ctx context.Context) error {
	if len(r.architectures()) == 0 {
		return nil
	}
	for _, program := range imagePrograms {
		spec := oci.Spec{Program: program, Version: r.Number, Revision: r.Revision, Created: r.Created,
			License: r.License}
		for _, architecture := range r.architectures() {
			spec.Binaries = append(spec.Binaries, oci.Binary{Architecture: architecture,
				Path: r.binary(program, "linux/"+architecture)})
		}
		index, err := oci.Index(spec)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		reference := r.Registry + "/" + program + ":" + r.Number
		if r.Push {
			if err := oci.Push(ctx, reference, r.Insecure, index); err != nil {
				return err
			}
		}
		digest, err := index.Digest()
		if err != nil {
			return err
		}
		r.digests = append(r.digests, subject{Name: reference, Digest: map[string]string{"sha256": digest.Hex}})
		if err := r.writeLayout(program+"_"+r.Number+"_oci.tar", index); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}
	return nil
}

// writeLayout writes an archive of an image layout with one image or index. Container tools can import the archive.
func (r *release) writeLayout(name string, content mutate.Appendable) error {
	dir := filepath.Join(r.Work, name+".layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.Number})
	switch content := content.(type) {
	case v1.ImageIndex:
		err = path.AppendIndex(content, named)
	case v1.Image:
		err = path.AppendImage(content, named)
	}
	if err != nil {
		return err
	}
	entries, err := tree(dir, "")
	if err != nil {
		return err
	}
	for i := range entries {
		entries[i].mode = 0o644 // the library makes the files executable
	}
	var out bytes.Buffer
	if err := writeTar(tar.NewWriter(&out), r.Created, entries); err != nil {
		return err
	}
	return r.write(name, out.Bytes())
}

// kubernetes writes the operator's Helm chart, components for clusterctl, CRDs, dashboards and alert rules.
func (r *release) kubernetes(ctx context.Context) error {
	if err := r.chart(ctx); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	for from, to := range map[string]string{
		"clusterctl/infrastructure-components.yaml": "infrastructure-components.yaml",
		"clusterctl/metadata.yaml":                  "metadata.yaml",
		"chart/files/crds.yaml":                     "nstance-crds.yaml",
	} {
		content, err := os.ReadFile(filepath.Join(r.Root, "services/operator", from))
		if err != nil {
			return err
		}
		if to == "infrastructure-components.yaml" {
			if content, err = replaceOnce(content, `image: \S+/nstance-operator:\S+`,
				"image: "+r.Registry+"/nstance-operator:"+r.Number); err != nil {
				return fmt.Errorf("%s: %w", to, err)
			}
		}
		if err := r.write(to, content); err != nil {
			return err
		}
	}
	return r.monitoring()
}

// monitoring writes an archive of dashboards and alert rules.
func (r *release) monitoring() error {
	folder := "nstance-monitoring_" + r.Number + "/"
	var all []entry
	for _, dir := range []string{"config/grafana", "config/prometheus", "services/operator/chart/dashboards",
		"services/operator/kustomize/components/monitoring"} {
		if _, err := os.Stat(filepath.Join(r.Root, dir)); os.IsNotExist(err) {
			continue
		}
		entries, err := tree(filepath.Join(r.Root, dir), folder+filepath.Base(dir))
		if err != nil {
			return err
		}
		all = append(all, entries...)
	}
	return r.writeTarball("nstance-monitoring_"+r.Number+".tar.gz", all)
}

// checkSeries checks that metadata.yaml lists the release's major and minor version. clusterctl refuses a release whose
// version is not listed.
func checkSeries(metadata []byte, number string) error {
	var list struct {
		Series []struct{ Major, Minor int } `yaml:"releaseSeries"`
	}
	if err := yaml.Unmarshal(metadata, &list); err != nil {
		return fmt.Errorf("metadata.yaml of clusterctl: %w", err)
	}
	for _, s := range list.Series {
		if strings.HasPrefix(number, fmt.Sprintf("%d.%d.", s.Major, s.Minor)) {
			return nil
		}
	}
	return fmt.Errorf("services/operator/clusterctl/metadata.yaml lists no series of %s: add it with its contract of "+
		"Cluster API", number)
}

// replaceOnce replaces the only match of an expression. It returns an error unless there is exactly one match.
func replaceOnce(content []byte, expression, replacement string) ([]byte, error) {
	pattern := regexp.MustCompile("(?m)" + expression)
	if found := len(pattern.FindAll(content, -1)); found != 1 {
		return nil, fmt.Errorf("%d lines match %s, want 1", found, expression)
	}
	return pattern.ReplaceAllLiteral(content, []byte(replacement)), nil
}

// chart writes the Helm chart as a package and as an OCI artifact, and pushes the artifact if images are pushed.
func (r *release) chart(ctx context.Context) error {
	const name = "nstance-operator"
	entries, err := tree(filepath.Join(r.Root, "services/operator/chart"), name)
	if err != nil {
		return err
	}
	registry, namespace, ok := strings.Cut(r.Registry, "/")
	if !ok {
		return fmt.Errorf("registry %q has no namespace: want REGISTRY/NAMESPACE", r.Registry)
	}
	var about map[string]any
	for i, e := range entries {
		var replacements [][2]string
		switch e.name {
		case name + "/Chart.yaml":
			replacements = [][2]string{{`^version: .*$`, "version: " + r.Number},
				{`^appVersion: .*$`, "appVersion: " + r.Number}}
		case name + "/values.yaml":
			replacements = [][2]string{{`^  registry: ""$`, fmt.Sprintf("  registry: %q", registry)},
				{`^  repository: nstance-kit/nstance-operator$`, "  repository: " + namespace + "/" + name}}
		}
		for _, replacement := range replacements {
			if e.content, err = replaceOnce(e.content, replacement[0], replacement[1]); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
		entries[i] = e
		if e.name == name+"/Chart.yaml" {
			if err := yaml.Unmarshal(e.content, &about); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
		}
	}
	content, err := tarball(r.Created, entries)
	if err != nil {
		return err
	}
	if err := r.write(name+"-"+r.Number+".tgz", content); err != nil {
		return err
	}
	image, err := chartArtifact(about, content, r.Created)
	if err != nil {
		return err
	}
	if r.Push {
		reference, err := oci.Reference(r.Registry+"/charts/"+name+":"+r.Number, r.Insecure)
		if err != nil {
			return err
		}
		if err := remote.Write(reference, image, oci.Credentials(ctx)...); err != nil {
			return fmt.Errorf("push: %w", err)
		}
	}
	return r.writeLayout(name+"-chart_"+r.Number+"_oci.tar", image)
}

// artifact is an OCI artifact with one layer.
type artifact struct {
	config, manifest []byte
	layer            v1.Layer
}

// chartArtifact returns a chart as an OCI artifact, as `helm push` would upload it
// (https://helm.sh/docs/topics/registries/).
func chartArtifact(about map[string]any, content []byte, created time.Time) (v1.Image, error) {
	config, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	layer := static.NewLayer(content, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
	configured, err := partial.Descriptor(static.NewLayer(config, "application/vnd.cncf.helm.config.v1+json"))
	if err != nil {
		return nil, err
	}
	packed, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: *configured, Layers: []v1.Descriptor{*packed},
		Annotations: map[string]string{
			"org.opencontainers.image.title":   fmt.Sprint(about["name"]),
			"org.opencontainers.image.version": fmt.Sprint(about["version"]),
			"org.opencontainers.image.source":  source,
			"org.opencontainers.image.created": created.Format(time.RFC3339),
		}})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(artifact{config, manifest, layer})
}

func (a artifact) RawConfigFile() ([]byte, error)      { return a.config, nil }
func (a artifact) RawManifest() ([]byte, error)        { return a.manifest, nil }
func (a artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	digest, err := a.layer.Digest()
	if err != nil {
		return nil, err
	}
	if digest != h {
		return nil, fmt.Errorf("the artifact has no layer %s", h)
	}
	return a.layer, nil
}
