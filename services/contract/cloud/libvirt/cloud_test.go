package libvirt

import (
	"slices"
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
	for name, test := range map[string]struct {
		raw  map[string]string
		want []string
	}{
		"local":  {raw: map[string]string{"hosts": "local=qemu:///system"}},
		"socket": {raw: map[string]string{"hosts": "local=qemu+unix:///system?socket=/run/x"}},
		"two": {raw: map[string]string{"hosts": "a=qemu+tls://a.example.com/system, b=qemu+ssh://root@b/system",
			"pool": "fast", "domain_type": "qemu", "reserved_mib": "0"}},
		"none": {want: []string{"hosts is missing"}},
		"no name": {raw: map[string]string{"hosts": "qemu:///system"},
			want: []string{`hosts "qemu:///system" does not begin with the name of a host`}},
		"twice": {raw: map[string]string{"hosts": "a=qemu:///system,a=qemu:///system"},
			want: []string{"hosts host a is given twice"}},
		"tcp": {raw: map[string]string{"hosts": "a=qemu+tcp://a/system"}, want: []string{
			`hosts host a: "qemu+tcp://a/system" is neither a local connection nor one over TLS or SSH`}},
		"far socket": {raw: map[string]string{"hosts": "a=qemu+unix://a/system"}, want: []string{
			`hosts host a: "qemu+unix://a/system" is neither a local connection nor one over TLS or SSH`}},
		"nowhere": {raw: map[string]string{"hosts": "a=qemu+ssh:///system"}, want: []string{
			`hosts host a: "qemu+ssh:///system" is neither a local connection nor one over TLS or SSH`}},
		"session": {raw: map[string]string{"hosts": "a=qemu:///session"}, want: []string{
			`hosts host a: "qemu:///session" is not a connection to QEMU such as qemu:///system`}},
		"host name": {raw: map[string]string{"hosts": "A=qemu:///system"},
			want: []string{`hosts "A=qemu:///system" does not begin with the name of a host`}},
		"no number": {raw: map[string]string{"hosts": "a=qemu:///system", "reserved_mib": "1G"},
			want: []string{`reserved_mib "1G" is not a number of MiB`}},
		"xen": {raw: map[string]string{"hosts": "a=xen:///system"}, want: []string{
			`hosts host a: "xen:///system" is not a connection to QEMU such as qemu:///system`}},
		"password": {raw: map[string]string{"hosts": "a=qemu+ssh://root:x@a/system"},
			want: []string{"hosts host a: the URI of a holds a password"}},
		"insecure TLS": {raw: map[string]string{"hosts": "a=qemu+tls://a/system?no_verify=1"},
			want: []string{"hosts host a: no_verify=1 switches off the check of the host's identity"}},
		"insecure SSH": {raw: map[string]string{"hosts": "a=qemu+ssh://a/system?known_hosts_verify=ignore"},
			want: []string{"hosts host a: known_hosts_verify=ignore switches off the check of the host's identity"}},
		"all wrong": {raw: map[string]string{"hosts": "a=qemu:///system", "pool": "a b", "domain_type": "vmx",
			"reserved_mib": "-1", "uri": "x"},
			want: []string{`domain_type "vmx" is not a type of domain`, `pool "a b" is not the name of a storage pool`,
				`reserved_mib "-1" is not a number of MiB`, "uri provider libvirt has no such option"}},
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
	o, problems := ParseOptions(map[string]string{"hosts": "a=qemu://a.example.com/system", "pool": "fast",
		"domain_type": "qemu", "reserved_mib": "0"})
	if len(problems) > 0 || len(o.Hosts) != 1 || o.Hosts["a"].Host != "a.example.com" || o.Pool != "fast" ||
		o.DomainType != "qemu" || o.ReservedMiB != 0 {
		t.Errorf("options %+v, %v", o, problems)
	}
	o, problems = ParseOptions(map[string]string{"hosts": "a=qemu:///system", "domain_type": "kvm"})
	if len(problems) > 0 || o.Pool != "default" || o.DomainType != "kvm" || o.ReservedMiB != 1024 {
		t.Errorf("defaults %+v, %v", o, problems)
	}
	for _, size := range []any{1, int64(1), 32767.0} {
		if a, problems := ParseArgs(map[string]any{"disk_gib": size}); len(problems) > 0 || a.DiskGiB < 1 {
			t.Errorf("%v GiB: %+v, %v", size, a, problems)
		}
	}
	for _, size := range []any{0, -1, int64(1) << 40, 32768.0, 1e300, "1"} {
		if a, problems := ParseArgs(map[string]any{"disk_gib": size}); len(problems) == 0 {
			t.Errorf("%v GiB: %+v", size, a)
		}
	}
}

// TestParseArgs reads args with and without mistakes.
func TestParseArgs(t *testing.T) {
	for name, test := range map[string]struct {
		raw  map[string]any
		want []string
	}{
		"image":    {raw: map[string]any{"image": "debian-12-0f3a.qcow2", "disk_gib": 20.0}},
		"template": {raw: map[string]any{"image": "{{ .Vars.image }}"}},
		"kernel": {raw: map[string]any{"kernel": "vmlinuz", "initrd": "initrd",
			"cmdline": "console=ttyS0 {{ .Group.Name }}"}},
		"path": {raw: map[string]any{"image": "../etc/shadow"},
			want: []string{`image "../etc/shadow" is not the name of a volume`}},
		"size": {raw: map[string]any{"disk_gib": 1.5}, want: []string{"disk_gib 1.5 is not a size in GiB"}},
		"type": {raw: map[string]any{"image": 3.0}, want: []string{"image is not a string"}},
		"unknown": {raw: map[string]any{"ImageId": "ami-1"},
			want: []string{"ImageId provider libvirt has no such argument"}},
		"initrd": {raw: map[string]any{"initrd": "initrd"},
			want: []string{"kernel is missing, but initrd or cmdline is given"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := ParseArgs(test.raw)
			if got := messages(problems); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestParseSubnet reads subnets.
func TestParseSubnet(t *testing.T) {
	host, network, err := ParseSubnet("a.example.com/vms")
	if err != nil || host != "a.example.com" || network != "vms" {
		t.Errorf("got %q, %q, %v", host, network, err)
	}
	for _, text := range []string{"", "a", "/a", "a/", "a/b/c", "A/b", "a/b c"} {
		if host, network, err := ParseSubnet(text); err == nil {
			t.Errorf("%q: %q, %q, want an error", text, host, network)
		}
	}
}

// FuzzParseOptions checks that no text for the hosts makes the parser panic or accept a connection whose host is
// not checked.
func FuzzParseOptions(f *testing.F) {
	f.Add("a=qemu+tls://a/system?no_verify=1")
	f.Add("a=qemu:///system,b=qemu+ssh://u:p@b/system")
	f.Fuzz(func(t *testing.T, hosts string) {
		o, problems := ParseOptions(map[string]string{"hosts": hosts})
		for name, uri := range o.Hosts {
			if len(problems) == 0 && (uri.Query().Get("no_verify") == "1" || uri.Scheme == "qemu+tcp") {
				t.Errorf("host %s: accepted %s", name, uri)
			}
		}
	})
}
