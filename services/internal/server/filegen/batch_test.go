package filegen

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/bootscript"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// TestRenderBatch renders the boot script of the Terraform provider for a batch.
func TestRenderBatch(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*testGenerator)
		ok     bool
	}{
		"boot script": {func(*testGenerator) {}, true},
		"gzip":        {func(w *testGenerator) { w.group.Userdata.Encoding = "gzip" }, true},
		"environment file": {func(w *testGenerator) {
			w.group.Userdata.Content = "#cloud-config\nNSTANCE_INSTANCE_ID={{ .Instance.ID }}\n{{ .Nonce }}\n"
		}, true},
		"ID elsewhere": {func(w *testGenerator) {
			w.group.Userdata.Content += "hostnamectl set-hostname {{ .Instance.ID }}\n"
		}, false},
		"host name": {func(w *testGenerator) { w.group.Userdata.Content += "# {{ .Instance.Hostname }}\n" }, false},
		"half of the ID": {func(w *testGenerator) {
			w.group.Userdata.Content += "# {{ slice .Instance.ID 10 }}\n"
		}, false},
		"ID in arguments": {func(w *testGenerator) { w.group.Args["Name"] = "{{ .Instance.ID }}" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestGenerator(t)
			script, err := bootscript.Agent{}.Script()
			if err != nil {
				t.Fatal(err)
			}
			w.group.Userdata.Content = script
			c.change(w)
			batch := w.rec.ID.Batch()
			m, ok, err := w.RenderBatch(t.Context(), w.group, w.rec, batch)
			if err != nil {
				t.Skip(err) // the template has no such function
			}
			if ok != c.ok {
				t.Fatalf("VMs differ: %t, want %t", !ok, !c.ok)
			}
			if !ok {
				return
			}
			text := string(m.Userdata)
			if w.group.Userdata.Encoding == "gzip" {
				reader, err := gzip.NewReader(bytes.NewReader(m.Userdata))
				if err != nil {
					t.Fatal(err)
				}
				plain, _ := io.ReadAll(reader)
				text = string(plain)
			}
			second, _ := batch.Member(1)
			for _, id := range []ident.ID{batch.First(), second} {
				if strings.Contains(strings.ReplaceAll(text, batch.String(), ""), id.String()) {
					t.Errorf("the script names %s:\n%s", id, text)
				}
			}
			if !strings.Contains(text, batch.String()) || m.Hostname != "" || m.Args["ImageId"] != "ami-1" {
				t.Errorf("%+v:\n%s", m.Args, text)
			}
			var nonce string
			for word := range strings.FieldsSeq(strings.ReplaceAll(text, "'", " ")) {
				if strings.HasPrefix(word, "ey") {
					nonce = word
				}
			}
			claims, err := authority.ParseNonce(w.options.NonceKey.Accepted(), "example", nonce, w.now, false)
			if err != nil || claims.Batch != batch || claims.Group != "workers" || claims.Tenant != "prod" {
				t.Errorf("nonce %+v, %v", claims, err)
			}
		})
	}
}
