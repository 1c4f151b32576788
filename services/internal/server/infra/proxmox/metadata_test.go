package proxmox

import (
	"crypto/rand"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// FuzzDecodeMetadata decodes descriptions of VMs, which every administrator of the cluster can change. Metadata from
// encode must be read back unchanged.
func FuzzDecodeMetadata(f *testing.F) {
	f.Add("")
	f.Add(marker + `{"tags": {}}`)
	f.Add("a text\n" + marker + marker + "{")
	f.Fuzz(func(t *testing.T, text string) {
		if m, ok, err := decodeMetadata(text); (!ok || err != nil) && m.Digest != "" {
			t.Errorf("%q: metadata %+v, %t, %v", text, m, ok, err)
		}
		if !utf8.ValidString(text) {
			return
		}
		m := metadata{Tags: infra.Tags{Group: text}, Hostname: text, Created: time.Unix(1, 0).UTC()}
		encoded, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, ok, err := decodeMetadata(encoded)
		if diff := cmp.Diff(m, back, cmp.AllowUnexported(ident.ID{})); err != nil || !ok || diff != "" {
			t.Errorf("%v, %v (-encoded +decoded):\n%s", ok, err, diff)
		}
	})
}

// TestRecallOfForeignTags reads the tags of a VM whose node does not answer. The instance ID in a tag counts only if it
// belongs to the VM's VMID, because a person can copy tags to another VM.
func TestRecallOfForeignTags(t *testing.T) {
	id, other := newID(t), newID(t)
	p := &Provider{known: map[int]metadata{}}
	tags := tagPrefix + "c.s;" + other.String()
	if m, ok := p.recall(resource{VMID: vmidOf(id), Tags: tags}); ok {
		t.Errorf("VM %d counts as %+v", vmidOf(id), m.Tags)
	}
	if m, ok := p.recall(resource{VMID: vmidOf(other), Tags: tags}); !ok || m.Tags.Instance != other ||
		m.Tags.Owner != (infra.Owner{Cluster: "c", Shard: "s"}) {
		t.Errorf("the VM's own tags give %+v, %t", m.Tags, ok)
	}
}

func newID(t *testing.T) ident.ID {
	t.Helper()
	id, err := ident.NewID("knc", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
