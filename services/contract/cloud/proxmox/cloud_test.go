package proxmox

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// messages returns the problems as texts: path, message.
func messages(problems []cloud.Problem) []string {
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.Path[0].(string)+" "+p.Message)
	}
	return texts
}

// TestParseOptions reads options with and without mistakes.
func TestParseOptions(t *testing.T) {
	const endpoint = "https://pve1:8006"
	hash := strings.Repeat("AB:", 31) + "ab"
	for name, test := range map[string]struct {
		raw  map[string]string
		want []string
	}{
		"shortest": {raw: map[string]string{"endpoints": endpoint}},
		"longest": {raw: map[string]string{"endpoints": endpoint + ", https://pve2:8006/", "token_file": "/run/token",
			"fingerprints": hash + "," + strings.Repeat("0", 64), "pool": "nstance", "seed_storage": "seeds"}},
		"CA":   {raw: map[string]string{"endpoints": endpoint, "ca_file": "/etc/pve.pem"}},
		"none": {want: []string{"endpoints is missing"}},
		"plain HTTP": {raw: map[string]string{"endpoints": "http://pve1:8006"},
			want: []string{`endpoints "http://pve1:8006" does not begin with https://`}},
		"insecure": {raw: map[string]string{"endpoints": endpoint, "insecure": "true"},
			want: []string{"insecure the identity of the nodes is always checked"}},
		"token": {raw: map[string]string{"endpoints": endpoint, "token": "a@pve!b=c"},
			want: []string{"token a secret does not belong here"}},
		"no URL": {raw: map[string]string{"endpoints": "https://[::1"},
			want: []string{`endpoints "https://[::1" is not a URL`}},
		"path": {raw: map[string]string{"endpoints": endpoint + "/api2"},
			want: []string{`endpoints "https://pve1:8006/api2" has more than a host and a port`}},
		"query": {raw: map[string]string{"endpoints": endpoint + "?x"},
			want: []string{`endpoints "https://pve1:8006?x" has more than a host and a port`}},
		"no hash": {raw: map[string]string{"endpoints": endpoint, "fingerprints": strings.Repeat("0", 63) + "x"},
			want: []string{`fingerprints "` + strings.Repeat("0", 63) + `x" is not the SHA-256 fingerprint of a certificate`}},
		"password": {raw: map[string]string{"endpoints": "https://root:secret@pve1:8006"},
			want: []string{`endpoints "https://root:xxxxx@pve1:8006" has more than a host and a port`}},
		"all wrong": {raw: map[string]string{"endpoints": "pve1", "token_file": "token", "fingerprints": "AB:CD",
			"ca_file": "ca.pem", "pool": "a b", "seed_storage": "", "host": "x"},
			want: []string{`ca_file "ca.pem" is not an absolute path`, `endpoints "pve1" is not a URL`,
				`fingerprints "AB:CD" is not the SHA-256 fingerprint of a certificate`,
				"host provider proxmox has no such option", `pool "a b" is not a name`,
				`seed_storage "" is not a name`, `token_file "token" is not an absolute path`}},
		"two checks": {raw: map[string]string{"endpoints": endpoint, "ca_file": "/ca.pem", "fingerprints": hash},
			want: []string{"ca_file is given together with fingerprints"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := ParseOptions(test.raw)
			if got := messages(problems); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestValues checks that what is given is what the provider gets.
func TestValues(t *testing.T) {
	o, problems := ParseOptions(map[string]string{"endpoints": "https://pve1:8006, https://pve2:8006/",
		"token_file": "/run/token", "fingerprints": " " + strings.Repeat("0", 64) + ", " + strings.Repeat("AB:", 31) +
			"ab ", "pool": "nstance", "seed_storage": "seeds"})
	if len(problems) > 0 || len(o.Endpoints) != 2 || o.Endpoints[1].String() != "https://pve2:8006" ||
		o.TokenFile != "/run/token" || len(o.Fingerprints) != 2 || o.Fingerprints[1][31] != 0xab ||
		o.Pool != "nstance" || o.SeedStorage != "seeds" {
		t.Errorf("options %+v, %v", o, problems)
	}
	for _, vlan := range []any{1, 4094.0} {
		if a, problems := ParseArgs(map[string]any{"vlan": vlan}); len(problems) > 0 || a.VLAN < 1 {
			t.Errorf("VLAN %v: %+v, %v", vlan, a, problems)
		}
	}
	for _, vlan := range []any{0, -1, 1.5, "x", 4095} {
		if a, problems := ParseArgs(map[string]any{"vlan": vlan}); len(problems) == 0 {
			t.Errorf("VLAN %v: %+v", vlan, a)
		}
	}
}

// TestParseArgs reads args with and without mistakes.
func TestParseArgs(t *testing.T) {
	good := map[string]any{"template": "debian-13-7f3a", "storage": "ceph", "vlan": 20.0}
	if got, problems := ParseArgs(good); len(problems) > 0 || got != (Args{"debian-13-7f3a", "ceph", 20}) {
		t.Errorf("got %+v, %v", got, problems)
	}
	if _, problems := ParseArgs(map[string]any{"template": "{{.Image}}"}); len(problems) > 0 {
		t.Errorf("a template in an argument: %v", problems)
	}
	_, problems := ParseArgs(map[string]any{"template": 9000.0, "storage": "a b", "vlan": 4095.0, "image": "x"})
	want := []string{"image provider proxmox has no such argument", `storage "a b" is not a name`,
		"template is not a string", "vlan 4095 is not a VLAN tag from 1 to 4094"}
	if got := messages(problems); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestParseSubnet splits subnets.
func TestParseSubnet(t *testing.T) {
	if node, bridge, err := ParseSubnet("pve1/vmbr0"); err != nil || node != "pve1" || bridge != "vmbr0" {
		t.Errorf("got %q, %q, %v", node, bridge, err)
	}
	for _, text := range []string{"", "vmbr0", "/vmbr0", "pve1/", "pve1/a/b", "pve 1/vmbr0"} {
		if _, _, err := ParseSubnet(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// FuzzParseOptions checks that no text makes the parser panic. An accepted endpoint must be HTTPS with only a host and
// a port. An accepted fingerprint must have the length of a SHA-256 hash.
func FuzzParseOptions(f *testing.F) {
	f.Add("https://pve1:8006, https://pve2:8006/", strings.Repeat("AB:", 31)+"ab")
	f.Add("https://root:secret@pve1:8006?x#y", "AB:CD")
	f.Fuzz(func(t *testing.T, endpoints, fingerprints string) {
		o, problems := ParseOptions(map[string]string{"endpoints": endpoints, "fingerprints": fingerprints})
		if len(problems) > 0 {
			return
		}
		for _, u := range o.Endpoints {
			if u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
				t.Errorf("accepted the endpoint %s", u)
			}
		}
		for _, sum := range o.Fingerprints {
			if len(sum) != sha256.Size {
				t.Errorf("accepted a fingerprint of %d bytes", len(sum))
			}
		}
	})
}

// FuzzParseSubnet checks that no text makes the parser panic, and that a parsed node and bridge, joined by a slash,
// give the text again.
func FuzzParseSubnet(f *testing.F) {
	f.Add("pve1/vmbr0")
	f.Fuzz(func(t *testing.T, text string) {
		node, bridge, err := ParseSubnet(text)
		if err == nil && (node+"/"+bridge != text || node == "" || bridge == "") {
			t.Errorf("%q: node %q, bridge %q", text, node, bridge)
		}
	})
}
