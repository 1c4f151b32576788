package oci

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// SPDX is the media type of SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3/).
const SPDX = "application/spdx+json"

type bill struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      billCreation   `json:"creationInfo"`
	Packages      []billPackage  `json:"packages"`
	Relationships []billRelation `json:"relationships"`
}

type billCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type billPackage struct {
	ID            string    `json:"SPDXID"`
	Name          string    `json:"name"`
	Version       string    `json:"versionInfo"`
	Download      string    `json:"downloadLocation"`
	FilesAnalyzed bool      `json:"filesAnalyzed"`
	Concluded     string    `json:"licenseConcluded"`
	Declared      string    `json:"licenseDeclared"`
	References    []billRef `json:"externalRefs,omitempty"`
}

type billRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type billRelation struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// billOf returns an artifact that refers to the image. The artifact lists the modules in the binary's build
// information.
func billOf(spec Spec, binary Binary, image v1.Image) (v1.Image, error) {
	info, err := buildinfo.ReadFile(binary.Path)
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	list := bill{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: spec.Program + "-" + binary.Architecture,
		Namespace: source + "/spdx/" + strings.ReplaceAll(digest.String(), ":", "-"),
		Creation: billCreation{Created: spec.Created.Format(time.RFC3339),
			Creators: []string{"Tool: nstance-images-container"}},
	}
	add := func(id, name, version, license string) {
		list.Packages = append(list.Packages, billPackage{ID: id, Name: name, Version: version, Download: "NOASSERTION",
			Concluded: "NOASSERTION", Declared: license,
			References: []billRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + name + "@" + version}}})
	}
	add("SPDXRef-main", info.Main.Path, spec.Version, licenses)
	list.Relationships = append(list.Relationships, billRelation{list.ID, "DESCRIBES", "SPDXRef-main"})
	depend := func(id, name, version string) {
		add(id, name, version, "NOASSERTION")
		list.Relationships = append(list.Relationships, billRelation{"SPDXRef-main", "DEPENDS_ON", id})
	}
	depend("SPDXRef-std", "std", strings.TrimPrefix(info.GoVersion, "go"))
	for i, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		depend(fmt.Sprintf("SPDXRef-module-%d", i), module.Path, module.Version)
	}
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, err
	}
	// Registry clients can read the artifact, because it has the form of a docker buildx attestation.
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(text, SPDX))
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
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}
