package gcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	compute "google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

func tree(t testing.TB, text string) map[string]any {
	t.Helper()
	var args map[string]any
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		t.Fatal(err)
	}
	return args
}

// describe writes a problem as a line: path, message and hint.
func describe(p cloud.Problem) string {
	path := ""
	for _, element := range p.Path {
		switch element := element.(type) {
		case int:
			path += fmt.Sprintf("[%d]", element)
		case string:
			path += "." + element
		}
	}
	line := strings.TrimPrefix(path, ".") + ": " + p.Message
	if p.Hint != "" {
		line += " (" + p.Hint + ")"
	}
	return line
}

// TestWrongArgs checks that each mistake in args is reported once and with its path, both before and after rendering.
func TestWrongArgs(t *testing.T) {
	long := strings.Repeat("x", 64)
	for _, test := range [][2]string{
		{`{"serviceaccounts": []}`,
			`serviceaccounts: instances.insert has no such field (did you mean "serviceAccounts"?)`},
		{`{"disks": [{"initializeParams": {"image": "x"}}]}`,
			`disks[0].initializeParams.image: instances.insert has no such field`},
		{`{"cpuPlatform": "x"}`,
			`cpuPlatform: instances.insert has no such field (did you mean "minCpuPlatform"?)`},
		{`{"metadata": {"fingerprint": "eA=="}}`,
			`metadata.fingerprint: instances.insert has no such field (there are items)`},
		{`{"disks": {}}`,
			`disks: want a list, have an object`},
		{`{"labels": ["a"]}`,
			`labels: want an object, have a list`},
		{`{"labels": {"a": 1}}`,
			`labels.a: want a text, have 1`},
		{`{"canIpForward": "yes"}`,
			`canIpForward: want true or false, have "yes"`},
		{`{"disks": [{"diskSizeGb": 1.5}]}`,
			`disks[0].diskSizeGb: want a whole number, have 1.5`},
		{`{"advancedMachineFeatures": {"threadsPerCore": "many"}}`,
			`advancedMachineFeatures.threadsPerCore: want a whole number, have "many"`},
		{`{"shieldedInstanceConfig": {"enableVtpm": []}}`,
			`shieldedInstanceConfig.enableVtpm: want true or false, have a list`},
		{`{"name": "x"}`,
			`name: cannot be set in args (it is the instance's ID)`},
		{`{"zone": "x"}`,
			`zone: cannot be set in args`},
		{`{"machineType": "x"}`,
			`machineType: cannot be set in args`},
		{`{"deletionProtection": true}`,
			`deletionProtection: cannot be set in args`},
		{`{"scheduling": {"automaticRestart": true}}`,
			`scheduling.automaticRestart: is always false`},
		{`{"scheduling": {"instanceTerminationAction": "STOP"}}`,
			`scheduling.instanceTerminationAction: is always "DELETE"`},
		{`{"labels": {"nstance-shard": "x"}}`,
			`labels.nstance-shard: labels that begin with nstance-`},
		{`{"labels": {"Team": "x"}}`,
			`labels.Team: label "Team": a key has at most 63`},
		{`{"labels": {"team": "` + long + `"}}`,
			`labels.team: label "team": the value "xxx`},
		{`{"labels": {"` + long + `": "x"}}`,
			`labels.` + long + `: label "xxx`},
		{`{"metadata": {"items": [{"key": "startup-script", "value": "x"}]}}`,
			`metadata.items[0].key: cannot be set in args (it is the template's userdata)`},
		{`{"metadata": {"items": [{"key": "nstance-x", "value": "x"}]}}`,
			`metadata.items[0].key: keys that begin with nstance-`},
		{`{"metadata": {"items": [{"value": "x"}]}}`,
			`metadata.items[0].key: is missing`},
		{`{"networkInterfaces": [{"subnetwork": "x"}]}`,
			`networkInterfaces[0].subnetwork: cannot be set in args`},
		{`{"networkInterfaces": [{"networkIP": "10.0.0.1"}]}`,
			`networkInterfaces[0].networkIP: only one instance`},
		{`{"networkInterfaces": [{"accessConfigs": [{"natIP": "192.0.2.1"}]}]}`,
			`networkInterfaces[0].accessConfigs[0].natIP: only one instance`},
		{`{"networkInterfaces": [{"ipv6AccessConfigs": [{"externalIpv6": "2001:db8::"}]}]}`,
			`networkInterfaces[0].ipv6AccessConfigs[0].externalIpv6: only one instance`},
		{`{"sourceMachineImage": "global/machineImages/m"}`,
			`sourceMachineImage: the server names the disks`},
		{`{"disks": [{"source": "zones/z/disks/d"}]}`,
			`disks[0].source: only one instance`},
		{`{"disks": [{"initializeParams": {"diskName": "d"}}]}`,
			`disks[0].initializeParams.diskName: only one instance`},
		{`{"disks": [{"autoDelete": false}]}`,
			`disks[0].autoDelete: is always true`},
		{`{"disks": [{"source": "zones/z/disks/d", "mode": "READ_WRITE"}]}`,
			`disks[0].source: only one instance`},
		{`{"metadata": {"items": [{"key": "user-data", "value": "x"}]}}`,
			`metadata.items[0].key: cannot be set in args (it is the template's userdata)`},
		{`{"metadata": {"items": [{"key": "a b", "value": "x"}]}}`,
			`metadata.items[0].key: "a b" is not a key of metadata`},
		{`{"metadata": {"items": [{"key": "a", "value": "x"}, {"key": "a", "value": "y"}]}}`,
			`metadata.items[1].key: "a" is there twice`},
		{`{"metadata": {"items": [{"key": "a", "value": "` + strings.Repeat("x", maxMetadata-1) + `"}]}}`,
			`metadata.items: are 524288 bytes`},
		{`{"labels": {` + numbered(`"k%d": ""`, maxLabels-ServerLabels+1) + `}}`,
			`labels: 53 labels, more than 52`},
		{`{"tags": {"items": ["Web"]}}`,
			`tags.items[0]: "Web" is not a network tag`},
		{`{"tags": {"items": [` + numbered(`"t%d"`, maxNetworkTags+1) + `]}}`,
			`tags.items: has 65 network tags`},
	} {
		text, want := test[0], test[1]
		for _, templates := range []bool{true, false} {
			_, problems := DecodeArgs(tree(t, text), templates)
			if len(problems) != 1 || !strings.HasPrefix(describe(problems[0]), want) {
				t.Errorf("%s, templates allowed: %t:\ngot  %+v\nwant %s", text, templates, problems, want)
			}
		}
	}
}

// TestTemplatesMatchAnyType checks that args may contain a template in place of a value of any type. Only the text that
// the template yields must have the right type.
func numbered(format string, n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(out, ",")
}

// TestAllowedArgs checks args that are near to wrong ones.
func TestAllowedArgs(t *testing.T) {
	for _, text := range []string{
		`{"scheduling": {"instanceTerminationAction": "DELETE", "automaticRestart": false}}`,
		`{"networkInterfaces": [{"nicType": "GVNIC"}, {"subnetwork": "x"}]}`,
		`{"disks": [{"source": "zones/z/disks/d", "mode": "READ_ONLY", "autoDelete": false}, {"autoDelete": true}]}`,
		`{"metadata": {"items": [{"key": "a", "value": "` + strings.Repeat("x", maxMetadata-2) + `"}]}}`,
		`{"metadata": {"items": [{"key": "A_b-1", "value": "x"}, {"key": "b", "value": "x"}]}}`,
		`{"labels": {` + numbered(`"k%d": ""`, maxLabels-ServerLabels) + `}}`,
		`{"tags": {"items": [` + numbered(`"t%d"`, maxNetworkTags) + `]}}`,
	} {
		if _, problems := DecodeArgs(tree(t, text), false); len(problems) > 0 {
			t.Errorf("%.80s: %v", text, problems)
		}
	}
}

// TestCheckLabel checks the limits of labels: 63 characters, and 128 bytes.
func TestCheckLabel(t *testing.T) {
	for _, label := range [][2]string{{"a", ""}, {"é", "9-_"}, {strings.Repeat("é", 63), strings.Repeat("é", 63)},
		{strings.Repeat("字", 42) + "é", strings.Repeat("字", 42) + "é"}} {
		if err := CheckLabel(label[0], label[1]); err != nil {
			t.Errorf("%q: %v", label, err)
		}
	}
	for _, label := range [][2]string{{"", ""}, {"A", ""}, {"1", ""}, {"a", "A"}, {"a", "b.c"},
		{strings.Repeat("a", 64), ""}, {"a", strings.Repeat("a", 64)}, {strings.Repeat("字", 43), ""},
		{"a", strings.Repeat("字", 43)}} {
		if CheckLabel(label[0], label[1]) == nil {
			t.Errorf("%q is accepted", label)
		}
	}
}

func TestTemplatesMatchAnyType(t *testing.T) {
	text := `{"canIpForward": "{{ .Vars.forward }}", "labels": {"team": "{{ .Vars.Team }}"},
		"disks": [{"boot": true, "initializeParams": {"sourceImage": "{{ .Image.base }}",
			"diskSizeGb": "{{ .Vars.disk }}"}}],
		"scheduling": {"provisioningModel": "SPOT", "instanceTerminationAction": "{{ .Vars.action }}"}}`
	if problems := call.CheckArgs(tree(t, text)); len(problems) > 0 {
		t.Errorf("before rendering: %v", problems)
	}
	if _, problems := DecodeArgs(tree(t, text), false); len(problems) != 4 {
		t.Errorf("after rendering: %d problems, want one for each of the four values that need another type: %v",
			len(problems), problems)
	}
}

func FuzzArgs(f *testing.F) {
	f.Add(`{"disks": [{"boot": true, "diskSizeGb": "20", "initializeParams": {"sourceImage": "x"}}, null]}`)
	f.Add(`{"labels": {"a": "b"}, "scheduling": {"provisioningModel": "SPOT", "maxRunDuration": {"seconds": 60}}}`)
	f.Add(`{"shieldedInstanceConfig": {"enableVtpm": "true"}, "metadata": {"items": [{"key": "k", "value": "v"}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var args map[string]any
		if json.Unmarshal([]byte(text), &args) != nil {
			return
		}
		decoded, problems := DecodeArgs(args, false)
		if len(problems) > 0 {
			return
		}
		if again := call.CheckArgs(args); len(again) > 0 {
			t.Errorf("accepted after rendering, refused before: %v", again)
		}
		encoded, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(encoded))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&compute.Instance{}); err != nil {
			t.Errorf("the SDK's type does not take %s: %v", encoded, err)
		}
		for name := range args {
			if _, forbidden := reserved[name]; forbidden {
				t.Errorf("%s was accepted", name)
			}
		}
	})
}

// TestPlaces checks which zones, options, leader addresses and instance groups are accepted. The checks need no API.
func TestPlaces(t *testing.T) {
	for _, test := range []struct {
		problems []cloud.Problem
		want     string
	}{
		{checkZone("us-central1", "us-central1-a"), ""},
		{checkZone("us-central1", "us-central2-a"), `zone: "us-central2-a" is not a zone of region "us-central1"`},
		{checkZone("us-central1", "us-central1"), `zone: "us-central1" is not a zone`},
		{checkZone("us-central1", "us-central1-"), `zone: "us-central1-" is not a zone`},
		{checkOptions(map[string]string{"project": "my-project-1"}), ""},
		{checkOptions(map[string]string{"project": "example.com:my-project"}), ""},
		{checkOptions(map[string]string{"project": "My Project"}), `project: "My Project" is not the ID`},
		{checkOptions(map[string]string{"profile": "x"}), `profile: provider gcp has no such option (there is project)`},
		{LeaderAddress{SecondaryRange: "leader"}.Check(LeaderAlias), ""},
		{LeaderAddress{SecondaryRange: "Leader"}.Check(LeaderAlias), `secondary_range: "Leader" is not a name`},
		{LeaderAddress{SecondaryRange: "x"}.Check(LeaderLoadBalancer),
			`secondary_range: is for kind alias only`},
		{InstanceGroup{InstanceGroupName: "workers"}.Check(""), ""},
		{InstanceGroup{InstanceGroupName: strings.Repeat("w", 64)}.Check(""), `instance_group_name: "www`},
	} {
		var got []string
		for _, p := range test.problems {
			got = append(got, describe(p))
		}
		if text := strings.Join(got, "\n"); test.want == "" && text != "" || !strings.HasPrefix(text, test.want) {
			t.Errorf("got %q, want %q", text, test.want)
		}
	}
}

// TestInstanceIDsAreNames checks that every instance ID is a valid VM name and a valid label value. The longest names
// of clusters, shards, groups and tenants must be valid label values too.
func TestInstanceIDsAreNames(t *testing.T) {
	for _, seed := range []string{"\x00\x00\x00\x00\x00\x00\x00\x00", "\xff\xff\xff\xff\xff\xff\xff\xff"} {
		id, err := ident.NewID("zzz", time.UnixMilli(1<<47), strings.NewReader(seed))
		if err != nil {
			t.Fatal(err)
		}
		if !resourceName.MatchString(id.String()) || CheckLabel(Prefix+"instance", id.String()) != nil {
			t.Errorf("%s is not a name of a VM", id)
		}
	}
	if err := CheckLabel(Prefix+"group", strings.Repeat("9", ident.MaxName)); err != nil {
		t.Error(err)
	}
}
