package proxmox

import (
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/infra"
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
