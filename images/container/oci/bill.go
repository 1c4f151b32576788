package oci

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/nstance-kit/nstance/images/container/bill"
)

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
