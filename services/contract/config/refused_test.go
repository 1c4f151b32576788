package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// images are args with an image, for each cloud that needs one.
var images = map[string]string{onAWS: `{"ImageId": "ami-1"}`, onLibvirt: `{"image": "i"}`,
	onGCP: `{"disks": [{"initializeParams": {"sourceImage": "i"}}]}`, onProxmox: `{"template": "t"}`}

// onCloud returns a document with one static group. The parts are JSON: the cloud's name, the group's user data, args
// and further fields. On AWS and Google Cloud, the defaults have an image.
func onCloud(t *testing.T, provider, userdata, args, group string) string {
	t.Helper()
	text, err := json.Marshal(userdata)
	if err != nil {
		t.Fatal(err)
	}
	image := `{}`
	if provider == onAWS || provider == onGCP {
		image = images[provider]
	}
	return fmt.Sprintf(`{
  "cluster": {"id": "c", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "s", "provider": %s, "subnet_pools": {"p": ["subnet-1"]}},
  "defaults": {"args": %s, "userdata": {"content": %s}},
  "templates": {"worker": {"kind": "wrk", "arch": "amd64", "subnet_pool": "p", "instance_type": "m",
    "vars": {"long": %q}, "args": %s}},
  "groups": {"default": {"g": {"template": "worker"%s}}}
}`, provider, image, text, strings.Repeat("x", 300), args, group)
}

const (
	onAWS = `{"kind": "aws", "region": "eu-west-1", "zone": "eu-west-1a"}`
	onGCP = `{"kind": "gcp", "region": "europe-west1", "zone": "europe-west1-b"}`
	// A host without named instance types, and one that also has a minimum of memory.
	onLibvirt = `{"kind": "libvirt", "options": {"hosts": "a=qemu:///system"}}`
	onProxmox = `{"kind": "proxmox", "options": {"endpoints": "https://pve1:8006"}}`
	boots     = "#!/bin/sh\necho {{ .Nonce }}\n"
)

// numbered returns n elements of a JSON list or object.
func numbered(n int, format string) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(out, ",")
}

// tagged returns args with n tags for one type of resource.
func tagged(resource string, n int) string {
	return fmt.Sprintf(`{"TagSpecifications": [{"ResourceType": %q, "Tags": [%s]}]}`, resource,
		numbered(n, `{"Key": "k%d", "Value": ""}`))
}

// TestAlwaysRefused checks that what a cloud, a shell or the server always refuses is a problem of the configuration.
// The key of the table is the problem.
func TestAlwaysRefused(t *testing.T) {
	long := strings.Repeat("y", 200000)
	for want, src := range map[string]string{
		"defaults.userdata.content: has Windows line ends": onCloud(t, onAWS,
			strings.ReplaceAll(boots, "\n", "\r\n"), `{}`, ""),
		"content: begins with a byte order mark":          onCloud(t, onGCP, "\ufeff"+boots, `{}`, ""),
		"content: warning: does not contain {{ .Nonce }}": onCloud(t, onAWS, "#!/bin/sh\n", `{}`, ""),
		"content: is 16416 bytes, more than the 16384 that aws accepts": onCloud(t, onAWS,
			boots+strings.Repeat("#", 16384), `{}`, ""),
		"content: is 17432 bytes, more": onCloud(t, onAWS, boots+strings.Repeat("{{ .Vars.long }}", 58), `{}`, ""),
		"bytes, more than the 262144 that gcp accepts": onCloud(t, onGCP, boots+strings.Repeat("{{ .Vars.long }}", 880),
			`{}`, ""),
		"SecurityGroups: cannot be set in args": onCloud(t, onAWS, boots, `{"SecurityGroups": ["web"]}`, ""),
		"IamInstanceProfile: has Arn and Name": onCloud(t, onAWS, boots,
			`{"IamInstanceProfile": {"Arn": "a", "Name": "b"}}`, ""),
		"LaunchTemplate: has LaunchTemplateId and LaunchTemplateName": onCloud(t, onAWS, boots,
			`{"LaunchTemplate": {"LaunchTemplateId": "a", "LaunchTemplateName": "b"}}`, ""),
		`the value is longer than 256 characters`: onCloud(t, onAWS, boots,
			`{"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "{{ .Vars.long }}"}]}]}`, ""),
		`tag "a" is there twice`: onCloud(t, onAWS, boots, `{"TagSpecifications": [{"ResourceType": "instance",
			"Tags": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}]}`, ""),
		`labels.a: label "a": the value`: onCloud(t, onGCP, boots, `{"labels": {"a": "{{ .Vars.long }}"}}`, ""),
		`metadata.items[1].key: "a" is there twice`: onCloud(t, onGCP, boots,
			`{"metadata": {"items": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}}`, ""),
		`metadata.items[0].key: "a b" is not a key of metadata`: onCloud(t, onGCP, boots,
			`{"metadata": {"items": [{"key": "a b", "value": "1"}]}}`, ""),
		"metadata.items: are 600002 bytes, and Compute Engine accepts less than 524288": onCloud(t, onGCP, boots,
			`{"metadata": {"items": [{"key": "a", "value": "`+long+`"}, {"key": "b", "value": "`+long+
				`"}, {"key": "c", "value": "`+long[1:]+`"}]}}`, ""),
		"TagSpecifications[0].Tags: 37 tags for each instance, more than 36": onCloud(t, onAWS, boots,
			tagged("instance", 37), ""),
		"51 tags for each fleet, more than 50": onCloud(t, onAWS, boots, tagged("fleet", 51), ""),
		"labels: 53 labels, more than 52": onCloud(t, onGCP, boots,
			`{"labels": {`+numbered(53, `"k%d": ""`)+`}}`, ""),
		"tags.items: has 65 network tags": onCloud(t, onGCP, boots,
			`{"tags": {"items": [`+numbered(65, `"k%d"`)+`]}}`, ""),
		`tags.items[0]: "Web" is not a network tag`: onCloud(t, onGCP, boots, `{"tags": {"items": ["Web"]}}`, ""),
		"size: 1000000000 is more than 100000":      onCloud(t, onAWS, boots, `{}`, `, "size": 1000000000`),
		"schedules[0].size: 1000000000 is more than": onCloud(t, onAWS, boots, `{}`,
			`, "schedules": [{"cron": "0 8 * * *", "size": 1000000000}]`),
		`server.subnet_pools.p[0]: subnet "subnet-1" is not HOST/NETWORK`:     onCloud(t, onLibvirt, boots, `{}`, ""),
		`server.subnet_pools.p[0]: subnet "subnet-1" is not NODE/BRIDGE`:      onCloud(t, onProxmox, boots, `{}`, ""),
		`templates.worker.instance_type: instance type "m" is not CPUS x MIB`: onCloud(t, onLibvirt, boots, `{}`, ""),
		`g.instance_type: instance type "2x0.5" is not CPUS x MIB`: onCloud(t, onLibvirt, boots, `{}`,
			`, "instance_type": "2x0.5"`),
		`g.instance_types[1]: instance type "t3.small" is not CPUS x MIB`: onCloud(t, onProxmox, boots, `{}`,
			`, "instance_type": "1x256", "instance_types": ["2x512", "t3.small"]`),
		"templates.worker.args: has no image or kernel": onCloud(t, onLibvirt, boots, `{"disk_gib": 5}`, ""),
		"templates.worker.args: has no template":        onCloud(t, onProxmox, boots, `{"vlan": 5}`, ""),
		`subnet_pools.p[0]: subnet "b/default": there is no host b`: strings.Replace(onCloud(t, onLibvirt, boots,
			`{"image": "i"}`, ""), "subnet-1", "b/default", 1),
		`"vmbr0123456789ab" has more than 15 characters`: strings.Replace(onCloud(t, onProxmox, boots,
			`{"template": "t"}`, ""), "subnet-1", "pve1/vmbr0123456789ab", 1),
		`g.instance_type: "1x8" has less than 16 MiB`: onCloud(t, onProxmox, boots, `{}`, `, "instance_type": "1x8"`),
		"max_surge: 1000000000 is more than 100000":   onCloud(t, onAWS, boots, `{}`, `, "max_surge": 1000000000`),
	} {
		_, problems := Parse("a", []byte(src))
		var lines []string
		for _, p := range problems {
			p.File, p.Line, p.Hint = "", 0, ""
			text := p.String()
			if p.Warning {
				text = p.Path + ": warning: " + p.Message
			}
			lines = append(lines, text)
		}
		if text := strings.Join(lines, "\n"); !strings.Contains(text, want) {
			t.Errorf("want %q, got\n%s", want, text)
		}
		// An older version may have stored the document: servers warn about it.
		s, stored := ParseStored("a", []byte(src))
		if s == nil {
			t.Errorf("%s: a stored document is refused: %v", want, stored)
		}
		if len(stored) == 0 {
			t.Errorf("%s: no warning about a stored document", want)
		}
	}
	for _, fits := range []string{
		onCloud(t, onAWS, boots, tagged("instance", 36), ""), onCloud(t, onAWS, boots, tagged("fleet", 50), ""),
		onCloud(t, onGCP, boots, `{"labels": {`+numbered(52, `"k%d": ""`)+`}}`, ""),
		onCloud(t, onGCP, boots, `{"tags": {"items": [`+numbered(64, `"k%d"`)+`]}}`, ""),
	} {
		if _, problems := Parse("a", []byte(fits)); len(problems) > 0 {
			t.Errorf("at the limit: %v", problems)
		}
	}
	for _, provider := range []string{onAWS, onGCP} {
		if _, problems := Parse("a", []byte(onCloud(t, provider, boots, `{}`, `, "size": 3`))); len(problems) > 0 {
			t.Errorf("a good document: %v", problems)
		}
	}
}

// TestRefusedByAPI checks that the operator API has the same limits of sizes as the configuration.
func TestRefusedByAPI(t *testing.T) {
	s := mustParse(t, onCloud(t, onAWS, boots, `{}`, ""))
	many := 1000000000
	err := CheckUpsert(s, GroupKey{"default", "other"}, GroupSpec{Template: "worker", Size: &many})
	if err == nil || !strings.Contains(err.Error(), "size: 1000000000 is more than 100000") {
		t.Error(err)
	}
}

// TestArgsNeedAnImage checks that a group without an image is refused, that each of the group, its template and the
// defaults may have the image, and that a plan accepts the group if one of the three is not known yet.
func TestArgsNeedAnImage(t *testing.T) {
	for provider, image := range images {
		document := func(defaults, template, group string) string {
			return strings.NewReplacer(`"args": `+image+`, "userdata"`, `"args": `+defaults+`, "userdata"`,
				`"args": {}, "userdata"`, `"args": `+defaults+`, "userdata"`, `"instance_type": "m"`,
				`"instance_type": "1x256"`, "subnet-1", "a/vmbr0").Replace(onCloud(t, provider, boots, template,
				`, "args": `+group))
		}
		with := []string{document(image, `{}`, `{}`), document(`{}`, image, `{}`), document(`{}`, `{}`, image)}
		without := []string{document(`{}`, `{}`, `{}`)}
		switch provider {
		case onAWS:
			with = append(with, document(`{}`, `{"LaunchTemplate": {"LaunchTemplateName": "a"}}`, `{}`))
			without = append(without, document(image, `{}`, `{"ImageId": null}`))
		case onGCP:
			without = append(without, document(image, `{"disks": []}`, `{}`))
		}
		for _, src := range with {
			if _, problems := Parse("a", []byte(src)); len(problems) > 0 {
				t.Errorf("%v\n%s", problems, src)
			}
		}
		for _, src := range without {
			_, problems := Parse("a", []byte(src))
			if len(problems) != 1 || problems[0].Path != "templates.worker.args" ||
				!strings.Contains(problems[0].Message, "so that no VM can be made") {
				t.Errorf("got %v\n%s", problems, src)
			}
			s, _ := ParseStored("a", []byte(src))
			for _, unknown := range []string{"defaults.args", "templates.worker.args", "groups.default.g.args"} {
				if _, problems := ParsePartial(Encode(s), unknown); len(problems) > 0 {
					t.Errorf("%s is unknown: %v\n%s", unknown, problems, src)
				}
			}
		}
	}
}
