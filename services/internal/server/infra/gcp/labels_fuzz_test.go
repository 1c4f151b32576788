package gcp

import (
	"testing"

	"google.golang.org/api/compute/v1"
)

// FuzzDecodeTags decodes labels and metadata of VMs. Everybody who may change instances of the project can change these
// labels and metadata. The warning must contain every value that cannot be parsed.
func FuzzDecodeTags(f *testing.F) {
	f.Add("knc00000000000000000000000000", "knc", "7", "2030-01-02T03:04:05.006Z", "g")
	f.Add("", "", "-1", "x", "")
	f.Fuzz(func(t *testing.T, name, instance, term, created, group string) {
		in := &compute.Instance{Name: name, Labels: map[string]string{"nstance-instance-id": instance,
			"nstance-term": term, "nstance-created-at": created},
			Metadata: &compute.Metadata{Items: []*compute.MetadataItems{
				{Key: "nstance-group", Value: &group}, {Key: "nstance-tenant"}}}}
		tags, warning := decodeTags(in)
		if tags.Group != group {
			t.Errorf("group %q, want %q", tags.Group, group)
		}
		if tags.Term == 0 && term != "0" && warning == "" {
			t.Errorf("the term %q is ignored without a warning", term)
		}
	})
}
