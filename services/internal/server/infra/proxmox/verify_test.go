package proxmox_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/proxmox"
	"github.com/nstance-kit/nstance/tests/cloud/fakepve"
)

// TestToken removes privileges of the token. VMs that the token may not see must not count as gone.
func TestToken(t *testing.T) {
	t.Parallel()
	for privilege, ask := range map[string]func(*proxmox.Provider) error{
		"VM.Audit": func(p *proxmox.Provider) error { _, err := p.List(t.Context(), owner); return err },
		"VM.Clone": func(p *proxmox.Provider) error { _, err := p.Create(t.Context(), request(t)); return err },
		"Datastore.AllocateTemplate": func(p *proxmox.Provider) error {
			_, err := p.Create(t.Context(), request(t))
			return err
		},
		"VM.Config.CDROM": func(p *proxmox.Provider) error { _, err := p.Create(t.Context(), request(t)); return err },
		"SDN.Use":         func(p *proxmox.Provider) error { _, err := p.Create(t.Context(), request(t)); return err },
	} {
		pve := fakepve.Start(t)
		p := open(t, pve)
		create(t, p, request(t))
		pve.Revoke(privilege)
		wantClass(t, ask(p), infra.Denied, privilege)
		if privilege != "SDN.Use" {
			wantClass(t, p.Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0"]}`)), infra.Denied, privilege)
		}
	}
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	if err := os.WriteFile(raw["token_file"], []byte(fakepve.TokenID+"=wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner)
	wantClass(t, err, infra.Denied, "401 invalid token value!")
}

// TestRole makes a VM in each form, checks the configuration, and deletes the VMs. The calls must need exactly the
// privileges that docs/reference/proxmox.md grants, on the same paths.
func TestRole(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	p := open(t, pve)
	if err := p.Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0","pve2/vmbr1"]}`)); err != nil {
		t.Error(err)
	}
	for _, args := range []map[string]any{
		{"template": "debian"}, // a linked clone
		{"template": "debian", "storage": "local-lvm"},
		{"template": "shared", "vlan": 20.0},
	} {
		req := request(t)
		req.Args = args
		vm := create(t, p, req)
		if err := p.RemoveUserdata(t.Context(), owner, req.Tags.Instance); err != nil {
			t.Error(err)
		}
		list(t, p)
		find(t, p, req)
		if err := p.Delete(t.Context(), vm); err != nil {
			t.Error(err)
		}
	}
	page, err := os.ReadFile("../../../../../docs/reference/proxmox.md")
	if err != nil {
		t.Fatal(err)
	}
	roles, documented := map[string][]string{}, map[string][]string{}
	for _, add := range regexp.MustCompile(`(?m)^pveum role add (\w+) --privs "(.*)"$`).FindAllStringSubmatch(
		string(page), -1) {
		roles[add[1]] = strings.Fields(add[2])
	}
	for _, modify := range regexp.MustCompile(`(?m)^pveum acl modify (\S+) .*--roles (\w+)$`).FindAllStringSubmatch(
		string(page), -1) {
		documented[modify[1]] = roles[modify[2]]
	}
	if diff := cmp.Diff(documented, fakepve.Role); diff != "" {
		t.Errorf("docs/reference/proxmox.md (-), and the role of the fake cluster (+):\n%s", diff)
	}
	if diff := cmp.Diff(documented, pve.Used()); diff != "" {
		t.Errorf("docs/reference/proxmox.md (-), and the privileges that the calls needed (+):\n%s", diff)
	}
}

// TestTokenFile opens providers with bad token files.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	for text, test := range map[string]struct {
		mode os.FileMode
		want string
	}{
		fakepve.TokenID + "=x": {0o644, "chmod 600"},
		"root@pam=x":           {0o600, "USER@REALM!TOKENID=SECRET"},
		"root!t=x":             {0o600, "USER@REALM!TOKENID=SECRET"},
		"root@pam!t":           {0o600, "USER@REALM!TOKENID=SECRET"},
		"root@pam!t=x y":       {0o600, "USER@REALM!TOKENID=SECRET"},
		"":                     {0o600, "USER@REALM!TOKENID=SECRET"},
	} {
		raw := rawOptions(t, pve)
		if err := os.WriteFile(raw["token_file"], []byte(text), test.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(raw["token_file"], test.mode); err != nil {
			t.Fatal(err)
		}
		wantClass(t, openError(t, raw), infra.Invalid, test.want)
	}
	raw := rawOptions(t, pve)
	delete(raw, "fingerprints")
	raw["ca_file"] = raw["token_file"]
	wantClass(t, openError(t, raw), infra.Invalid, "holds no certificate")
	raw["ca_file"] += "-missing"
	wantClass(t, openError(t, raw), infra.Invalid, "no such file")
	raw = rawOptions(t, pve)
	raw["token_file"] += "-missing"
	wantClass(t, openError(t, raw), infra.Invalid, "no such file")
}

// TestCertificate connects to nodes with the wrong certificate: one does not have the configured fingerprint, and one
// is not signed by a known CA.
func TestCertificate(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	raw["fingerprints"] = strings.Repeat("00", 32)
	_, err := openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner)
	wantClass(t, err, infra.Denied, strings.ToUpper(pve.Fingerprint()))
	delete(raw, "fingerprints")
	_, err = openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner)
	wantClass(t, err, infra.Denied, "give the option ca_file or fingerprints")
	if calls := pve.Calls(); len(calls) > 0 {
		t.Errorf("the token was sent: %v", calls)
	}
	raw["ca_file"] = pve.CAFile(t)
	if _, err := openWith(t, raw, new(atomic.Int64)).List(t.Context(), owner); err != nil {
		t.Error(err)
	}
}

func shard(t *testing.T, subnetPools string) *config.Shard {
	t.Helper()
	var s config.Shard
	if err := json.Unmarshal([]byte(`{"server":{"subnet_pools":`+subnetPools+`}}`), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// TestVerify checks which mistakes Verify finds in configurations for a fake cluster.
func TestVerify(t *testing.T) {
	t.Parallel()
	pve := fakepve.Start(t)
	raw := rawOptions(t, pve)
	p := openWith(t, raw, new(atomic.Int64))
	pve.AddVM(500, "pve1", "web")
	pve.Broadcast()
	if err := p.Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0","pve2/vmbr1"]}`)); err != nil {
		t.Error(err)
	}
	for subnets, text := range map[string]string{
		`["pve1/vmbr9"]`: "node pve1 has no bridge vmbr9",
		`["pve3/vmbr0"]`: "no node pve3: there are pve1, pve2",
		`["vmbr0"]`:      "is not NODE/BRIDGE",
	} {
		wantClass(t, p.Verify(t.Context(), shard(t, `{"p":`+subnets+`}`)), infra.Invalid, text)
	}
	for args, text := range map[string]string{
		`{"template":"debian"}`:                    "",
		`{"template":"{{.Vars.image}}"}`:           "",
		`{"template":"debian","storage":"{{.V}}"}`: "",
		`{"template":"none"}`:                      `no VM template "none"`,
		`{"template":"web"}`:                       `no VM template "web"`,
		`{"template":"debian","storage":"none"}`:   "no storage none for disks",
		`{"template":"debian","storage":"local"}`:  "no storage local for disks",
		`{"template":"debian","storage":"ceph"}`:   "",
		`{"template":"shared","storage":"ceph"}`:   "",
	} {
		for _, place := range []string{`{"templates":{"w":{"args":%s}}}`, `{"defaults":{"args":%s}}`} {
			s := shard(t, `{"p":["pve1/vmbr0"]}`)
			if err := json.Unmarshal(fmt.Appendf(nil, place, args), s); err != nil {
				t.Fatal(err)
			}
			err := p.Verify(t.Context(), s)
			if text == "" && err != nil {
				t.Errorf(place+": %v", args, err)
			} else if text != "" {
				wantClass(t, err, infra.Invalid, text)
			}
		}
	}
	raw["seed_storage"] = "local-lvm"
	pve.GrantStorage("local-lvm")
	err := openWith(t, raw, new(atomic.Int64)).Verify(t.Context(), shard(t, `{"p":["pve1/vmbr0"]}`))
	wantClass(t, err, infra.Invalid, "no storage local-lvm for ISO images")
	pve.SetOnline("pve2", false)
	wantClass(t, p.Verify(t.Context(), shard(t, `{"p":["pve2/vmbr0"]}`)), infra.Indeterminate, "595")
}
