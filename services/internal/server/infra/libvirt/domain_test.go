package libvirt

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/cloud/vmsize"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// TestDomainXML checks the XML description of a VM for each processor architecture and type of domain.
func TestDomainXML(t *testing.T) {
	m := machine{name: "x", size: vmsize.Size{CPUs: 2, MemoryMiB: 512}, domainType: "kvm", network: "a",
		disk: "/p/x.qcow2"}
	for name, test := range map[string]struct {
		change          func(*machine)
		want, forbidden []string
	}{
		"amd64": {func(*machine) {}, []string{`<domain type="kvm">`, `machine="q35"`, `mode="host-passthrough"`,
			`<vcpu>2</vcpu>`, `<memory unit="MiB">512</memory>`, `<source file="/p/x.qcow2">`,
			`<on_crash>destroy</on_crash>`},
			[]string{"tb-cache", "<kernel>"}},
		"arm64": {func(m *machine) { m.arch = "arm64" }, []string{`arch="aarch64"`,
			`machine="virt"`, `firmware="efi"`}, nil},
		"qemu": {func(m *machine) { m.domainType = "qemu" }, []string{`<tb-cache unit="MiB">48</tb-cache>`},
			[]string{"host-passthrough"}},
		"kernel": {func(m *machine) { m.disk, m.kernel, m.cmdline = "", "/p/vmlinuz", "a=<b>" },
			[]string{"<kernel>/p/vmlinuz</kernel>", "<cmdline>a=&lt;b&gt;</cmdline>"}, []string{`dev="vda"`}},
	} {
		changed := m
		test.change(&changed)
		text, err := changed.domainXML()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range test.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in\n%s", name, want, text)
			}
		}
		for _, forbidden := range test.forbidden {
			if strings.Contains(text, forbidden) {
				t.Errorf("%s: %s in\n%s", name, forbidden, text)
			}
		}
	}
}

// TestDomainUUID checks that the UUID depends on owner, ID and digest, and is a valid UUIDv8.
func TestDomainUUID(t *testing.T) {
	tags := infra.Tags{Owner: infra.Owner{Cluster: "c", Shard: "s"}}
	other := tags
	other.Shard = "s2"
	id := domainUUID(tags, "d1")
	if id == domainUUID(tags, "d2") || id == domainUUID(other, "d1") || id != domainUUID(tags, "d1") {
		t.Error("the UUID is not a function of owner, ID and digest")
	}
	if text := formatUUID(id); text[14] != '8' || !strings.Contains("89ab", text[19:20]) {
		t.Errorf("%s is not a UUIDv8", text)
	}
	if back, err := parseUUID(formatUUID(id)); err != nil || back != id {
		t.Errorf("parsed as %v, %v", back, err)
	}
}

// TestStateOf translates the states of domains.
func TestStateOf(t *testing.T) {
	for _, test := range []struct {
		state  libvirt.DomainState
		reason libvirt.DomainShutoffReason
		want   infra.State
	}{
		{libvirt.DomainRunning, 0, infra.Running},
		{libvirt.DomainPaused, 0, infra.Unknown},
		{libvirt.DomainPaused, libvirt.DomainShutoffReason(libvirt.DomainPausedSave), infra.Stopping},
		{libvirt.DomainPaused, libvirt.DomainShutoffReason(libvirt.DomainPausedStartingUp), infra.Pending},
		{libvirt.DomainShutdown, 0, infra.Stopping},
		{libvirt.DomainShutoff, libvirt.DomainShutoffShutdown, infra.Stopped},
		{libvirt.DomainShutoff, libvirt.DomainShutoffFailed, infra.Failed},
		{libvirt.DomainShutoff, libvirt.DomainShutoffCrashed, infra.Failed},
		{libvirt.DomainCrashed, 0, infra.Failed},
	} {
		if got, _ := stateOf(test.state, int32(test.reason)); got != test.want {
			t.Errorf("state %d, reason %d: %s, want %s", test.state, test.reason, got, test.want)
		}
	}
}

// TestOffWithoutReason checks a VM whose domain is off for an unknown reason. The VM is Pending while its create
// request may still start it, and otherwise Stopped. A domain that runs, or that ended for a known reason, was started.
func TestOffWithoutReason(t *testing.T) {
	now := time.Now()
	p := New(Config{Now: func() time.Time { return now }})
	for name, test := range map[string]struct {
		created, starting time.Duration // ago; starting 0: not
		running           bool
		reason            string
		want              infra.State
	}{
		"runs":                   {created: time.Minute, running: true, want: infra.Running},
		"ended early":            {created: time.Minute, reason: "shut down by its guest", want: infra.Stopped},
		"being prepared":         {created: time.Minute, want: infra.Pending},
		"prepared too long":      {created: 3 * time.Minute, want: infra.Stopped},
		"being started":          {created: time.Minute, starting: time.Second, want: infra.Pending},
		"started, then it ended": {created: time.Minute, starting: 20 * time.Second, want: infra.Stopped},
	} {
		d := domain{host: &host{name: "a"}, state: infra.Stopped, reason: test.reason,
			metadata: metadata{Created: now.Add(-test.created)}}
		if test.running {
			d.state = infra.Running
		}
		if test.starting > 0 {
			d.metadata.Starting = now.Add(-test.starting)
		}
		if vm := p.describe(d, nil); vm.State != test.want {
			t.Errorf("%s: %s, want %s", name, vm.State, test.want)
		}
	}
}

// FuzzDecodeMetadata decodes metadata of domains, which every administrator of a host can change. Metadata from encode
// must be read back unchanged.
func FuzzDecodeMetadata(f *testing.F) {
	f.Add("")
	f.Add(`<vm xmlns="https://nstance.dev/libvirt/1">{}</vm>`)
	f.Add(`<other xmlns="x">{"tags":1}</other>`)
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := decodeMetadata(text); err != nil {
			_ = err // any error will do; it must not panic
		}
		if !strings.Contains(text, "\ufffd") && strings.ToValidUTF8(text, "") == text {
			m := metadata{Tags: infra.Tags{Group: text}, Created: time.Unix(1, 0).UTC()}
			encoded, err := m.encode()
			if err != nil {
				t.Fatal(err)
			}
			back, err := decodeMetadata(element(encoded))
			if diff := cmp.Diff(m, back, cmp.AllowUnexported(ident.ID{})); err != nil || diff != "" {
				t.Errorf("%v (-encoded +decoded):\n%s", err, diff)
			}
		}
	})
}

// TestMACAddressesDiffer checks that the MAC addresses of 50,000 VMs differ.
func TestMACAddressesDiffer(t *testing.T) {
	seen := map[string]int{}
	for n := range 50_000 {
		address := macAddress(domainUUID(infra.Tags{}, fmt.Sprint(n)))
		if mac, err := net.ParseMAC(address); err != nil || mac[0]&3 != 2 || mac[0] == 0xfe {
			t.Fatalf("%s is not a locally administered unicast address that libvirt accepts, error %v", address, err)
		}
		if other, ok := seen[address]; ok {
			t.Fatalf("VMs %d and %d have the address %s", other, n, address)
		}
		seen[address] = n
	}
}
