// Package bill makes bills of materials of programs. Equal arguments give equal bytes.
package bill

import (
	"bytes"
	"debug/buildinfo"
	"maps"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// MediaType is that of CycloneDX in JSON.
const MediaType = "application/vnd.cyclonedx+json"

// Program is a program of this repository.
type Program struct {
	Name, Version, Revision string
	Created                 time.Time
	Binaries                []string // paths
}

// CycloneDX returns a bill of materials (CycloneDX 1.6) in JSON. It lists the Go modules of all binaries of the
// program. subject identifies what the bill describes, as a URL.
func CycloneDX(p Program, subject string) ([]byte, error) {
	components := map[string]cdx.Component{}
	for _, binary := range p.Binaries {
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			return nil, err
		}
		add := func(name, version string) {
			purl := "pkg:golang/" + name + "@" + version
			components[purl] = cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: name,
				Version: version, PackageURL: purl}
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"))
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			add(module.Path, module.Version)
		}
	}
	references := slices.Sorted(maps.Keys(components))
	list := make([]cdx.Component, len(references))
	for i, reference := range references {
		list[i] = components[reference]
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuid.NewSHA1(uuid.NameSpaceURL, []byte(subject)).String()
	bom.Metadata = &cdx.Metadata{Timestamp: p.Created.Format(time.RFC3339), Component: &cdx.Component{
		BOMRef: p.Name, Type: cdx.ComponentTypeApplication, Name: p.Name, Version: p.Version,
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: &[]cdx.Property{{Name: "nstance:commit", Value: p.Revision}}}}
	bom.Components = &list
	bom.Dependencies = &[]cdx.Dependency{{Ref: p.Name, Dependencies: &references}}
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}
