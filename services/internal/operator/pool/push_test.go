package pool

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// jsonOf returns the settings in the field "config" of a spec.
func jsonOf(text string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(text)} }

// fromWorker returns the config of a pool whose instances are made from the template "worker".
func fromWorker() *apiextensionsv1.JSON { return jsonOf(`{"template":"worker"}`) }

func TestPush(t *testing.T) {
	const (
		all    = `{"template":"t","instance_type":"i","subnet_pool":"p","vars":{"a":"1"}}`
		static = `{"template":"t","size":2,"instance_type":"i","vars":{"a":"1","b":"2"},"max_unhealthy":"40%",` +
			`"drain_timeout":"1m","rollout":{"paused":true,"revision":"r","canary":0}}`
	)
	for name, test := range map[string]struct {
		config string
		owned  string
		group  *statusT
		push   string // the patch, or "" for no request
	}{
		"no group": {all, "", nil,
			`{"instance_type":"i","size":2,"subnet_pool":"p","template":"t","vars":{"a":"1"}}`},
		"no group, no settings": {``, "", nil, `{"size":2}`},
		"deleting": {`{"template":"t"}`, `{"vars":null}`,
			&statusT{Deleting: true, Size: 2, SpecJson: `{"template":"t","size":2,"vars":{"a":"1"}}`},
			`{"size":2,"template":"t"}`},
		"equal": {all, "", &statusT{Size: 2, SpecJson: `{"size":2,"args":{"x":1},` + all[1:]}, ""},
		"equal, other settings from the template": {`{"template":"t"}`, "",
			&statusT{Size: 2, MergedJson: `{"instance_type":"i","subnet_pool":"p","vars":{"a":"1"}}`,
				SpecJson: `{"template":"t","size":2}`}, ""},
		"own setting equal to the template's": {`{"template":"t","instance_type":"i"}`, "",
			&statusT{Size: 2, MergedJson: `{"instance_type":"i"}`, SpecJson: `{"template":"t"}`},
			`{"instance_type":"i"}`},
		"size":     {`{"template":"t"}`, "", &statusT{Size: 3, SpecJson: `{"template":"t"}`}, `{"size":2}`},
		"template": {`{"template":"u"}`, "", &statusT{Size: 2, SpecJson: `{"template":"t"}`}, `{"template":"u"}`},
		"removed": {`{"template":"t"}`, `{"instance_type":null,"subnet_pool":null,"vars":{"a":null}}`,
			&statusT{Size: 2, SpecJson: all}, `{"instance_type":null,"subnet_pool":null,"vars":null}`},
		"removed already": {`{"template":"t"}`, `{"vars":{"a":null}}`,
			&statusT{Size: 2, SpecJson: `{"template":"t"}`}, ""},
		"set by another client": {`{"template":"t"}`, "", &statusT{Size: 2, SpecJson: all}, ""},
		"changed by another client": {all, "",
			&statusT{Size: 2, SpecJson: `{"template":"t","instance_type":"j","vars":{"a":"2","b":"3"}}`},
			`{"instance_type":"i","subnet_pool":"p","vars":{"a":"1"}}`},
		"one variable removed": {`{"vars":{"b":"2"}}`, `{"vars":{"a":null}}`,
			&statusT{Size: 2, SpecJson: `{"vars":{"a":"1","b":"2"}}`}, `{"vars":{"a":null}}`},
		"paused by another client, canary removed": {`{}`, `{"rollout":{"canary":null}}`,
			&statusT{Size: 2, SpecJson: `{"rollout":{"canary":1,"paused":true}}`}, `{"rollout":{"canary":null}}`},
		"last field of an object removed": {`{}`, `{"rollout":{"canary":null}}`,
			&statusT{Size: 2, SpecJson: `{"rollout":{"canary":1}}`}, `{"rollout":null}`},
		"paused by another client, spec.config resumes": {`{"rollout":{"paused":false}}`, "",
			&statusT{Size: 2, SpecJson: `{"rollout":{"paused":true}}`}, `{"rollout":{"paused":null}}`},
		"zero value":     {`{"rollout":{"paused":false}}`, "", &statusT{Size: 2, SpecJson: `{"rollout":{}}`}, ""},
		"other spelling": {`{"drain_timeout":"60s"}`, "", &statusT{Size: 2, SpecJson: `{"drain_timeout":"1m"}`}, ""},
		"null":           {`{"vars":null}`, "", &statusT{Size: 2, SpecJson: `{"vars":{"a":"1"}}`}, ""},
		"removed and added": {`{"args":{"x":{"y":1}}}`, `{"args":{"x":null}}`,
			&statusT{Size: 2, SpecJson: `{"args":{"x":7}}`}, `{"args":{"x":{"y":1}}}`},
		"empty object removed": {`{}`, `{"args":{"x":null}}`, &statusT{Size: 2, SpecJson: `{"args":{"x":{}}}`},
			`{"args":null}`},
		"misspelt": {`{"max_unhealth":"3","drain_timeout":"60s"}`, "",
			&statusT{Size: 2, SpecJson: `{"drain_timeout":"1m"}`}, `{"max_unhealth":"3"}`},
		"own settings not sent":      {`{"template":"t"}`, "", &statusT{Size: 2}, `{"template":"t"}`},
		"own settings not decodable": {``, "", &statusT{Size: 2, SpecJson: `{"size":"many","new":1}`}, ""},

		"static, no settings": {``, "", &statusT{IsStatic: true, Size: 2, MergedJson: static}, ""},
		"static, equal": {`{"template":"t","instance_type":"i","vars":{"a":"1"},"drain_timeout":"60s",` +
			`"rollout":{"paused":true,"canary":0}}`, "", &statusT{IsStatic: true, Size: 2, MergedJson: static}, ""},
		"static, size": {``, "", &statusT{IsStatic: true, Size: 1, MergedJson: static}, `{"size":2}`},
		"static, other template": {`{"template":"other"}`, "",
			&statusT{IsStatic: true, Size: 2, MergedJson: static}, `{"template":"other"}`},
		"static, override differs": {`{"instance_type":"j","vars":{"a":"2"}}`, "",
			&statusT{IsStatic: true, Size: 2, MergedJson: static}, `{"instance_type":"j","vars":{"a":"2"}}`},
		"static, revision in force": {`{"rollout":{"revision":"s"}}`, "", &statusT{IsStatic: true, Size: 2,
			SpecJson: `{"rollout":{"revision":"s"}}`, MergedJson: `{"rollout":{"revision":"r+s"}}`}, ""},
		"static, resumed": {`{"rollout":{"paused":false}}`, "",
			&statusT{IsStatic: true, Size: 2, MergedJson: static}, `{"rollout":{}}`},
		"static, resumed already": {`{"rollout":{"paused":false}}`, `{"rollout":{"paused":null}}`,
			&statusT{IsStatic: true, Size: 2, SpecJson: `{"rollout":{}}`, MergedJson: `{"rollout":{"paused":false}}`},
			""},
		"static, no longer resumed": {``, `{"rollout":{"paused":null}}`,
			&statusT{IsStatic: true, Size: 2, SpecJson: `{"rollout":{}}`, MergedJson: `{"rollout":{"paused":false}}`},
			`{"rollout":null}`},
		"static, overridden by another client": {``, "", &statusT{IsStatic: true, Size: 2, MergedJson: static,
			SpecJson: `{"instance_type":"j","vars":{"a":"2"}}`}, ""},
		"static, overrides removed": {``, `{"instance_type":null,"vars":{"a":null}}`,
			&statusT{IsStatic: true, Size: 2, MergedJson: static,
				SpecJson: `{"instance_type":"j","vars":{"a":"2"}}`}, `{"instance_type":null,"vars":null}`},
		"static, one variable removed": {`{"vars":{"b":"2"}}`, `{"vars":{"a":null}}`,
			&statusT{IsStatic: true, Size: 2, MergedJson: static, SpecJson: `{"vars":{"a":"1","b":"2"}}`},
			`{"vars":{"a":null}}`},
		"static, overrides removed already": {``, `{"instance_type":null,"vars":{"a":null}}`,
			&statusT{IsStatic: true, Size: 2, MergedJson: static, SpecJson: `{"size":2}`}, ""},
		"static, dynamic before": {`{"template":"t"}`, `{"template":null,"subnet_pool":null}`,
			&statusT{IsStatic: true, Size: 2, MergedJson: static, SpecJson: `{"template":"u","subnet_pool":"p"}`}, ""},
	} {
		want := specT{Group: "g", Size: ptr.To(int32(2)), Config: jsonOf(test.config)}
		got := upsertRequest(want, parseTree(test.owned), test.group)
		if got.GetPatch() != test.push || got != nil && got.GetGroup() != "g" {
			t.Errorf("%s: %v, want the patch %s", name, got, test.push)
		}
	}
}

// TestVainPushIsNotRepeated checks that a request that changed nothing on the server is repeated only after the spec or
// the group has changed. A newer server has a setting here that the operator cannot read.
func TestVainPushIsNotRepeated(t *testing.T) {
	group := func(merged string) *statusT {
		return &statusT{Group: "g", Size: 2, SpecJson: `{"template":"t","size":2,"pace":"1m"}`, MergedJson: merged}
	}
	in := baseGroup(func(in *groupInput) {
		in.group.Spec.Config, in.known = jsonOf(`{"template":"t","pace":"60s"}`), group(`{"pace":"1m"}`)
	})
	push := func(answer *statusT) string {
		call := decideCall(in)
		if call.upsert != nil {
			in.last = outcomeAfter(in, in.known, callResult{call: call, group: answer})
			in.known = answer
		}
		return call.upsert.GetPatch()
	}
	const patch = `{"pace":"60s"}`
	if got := push(group(`{"pace":"1m"}`)); got != patch {
		t.Errorf("first push: %q", got)
	}
	for range 2 {
		if got := push(nil); got != "" {
			t.Errorf("repeated: %q", got)
		}
		if plan := decideGroup(in, callResult{}); len(plan.conditions) == 0 ||
			!meta.IsStatusConditionTrue(plan.conditions, v1beta1.ConfigValidCondition) {
			t.Errorf("conditions %v", plan.conditions)
		}
		in.now = in.now.Add(time.Hour)
	}
	in.known = group(`{"pace":"2m"}`)
	if got := push(group(`{"pace":"1m"}`)); got != patch {
		t.Errorf("after a change of the group: %q", got)
	}
	if got := push(group(`{"pace":"1m"}`)); got != patch {
		t.Errorf("after a push that had an effect: %q", got)
	}
	if got := push(nil); got != "" {
		t.Errorf("repeated: %q", got)
	}
	in.group.Spec.Config = jsonOf(`{"template":"t","pace":"61s"}`)
	if got := push(group(`{"pace":"61s"}`)); got != `{"pace":"61s"}` {
		t.Errorf("after a change of the spec: %q", got)
	}
}

// FuzzPush checks that any status of a group on a server, and any former fields, lead to a valid request to the server
// and a valid status in Kubernetes.
func FuzzPush(f *testing.F) {
	f.Add(`{"template":"t","size":2}`, `{"A":1}`, false, `{"vars":null}`)
	f.Add(`{"vars":{"a":"1"},"drain_timeout":"1m"}`, ``, true, `{"instance_type":null,"vars":{"b":null}}`)
	f.Add(`{"drain_timeout":7,"rollout":{}}`, `{`, true, `,,`)
	f.Add(`[]`, `[]`, false, `{"rollout":{"paused":true},"vars":"x"}`)
	f.Fuzz(func(t *testing.T, spec, merged string, static bool, owned string) {
		group := &statusT{Group: "g", IsStatic: static, Size: 1, SpecJson: spec, MergedJson: merged}
		g := &v1beta1.NstanceShardGroup{Spec: specT{Group: "g", Size: ptr.To(int32(1)),
			Config: jsonOf(`{"vars":{"a":"2"},"rollout":{"paused":false}}`)}}
		g.Annotations = map[string]string{v1beta1.OwnedFieldsAnnotation: owned}
		if r := upsertRequest(g.Spec, ownedFields(g), group); r != nil {
			patch, problems := config.ParsePatch("", []byte(r.GetPatch()))
			// The patch may remove a field that only a newer server knows.
			if static && (len(problems) > 0 || len(patch.Restricted()) > 0) {
				t.Errorf("%v: %v, not allowed for a static group: %v", r, problems, patch.Restricted())
			}
			for name, value := range parseTree(r.GetPatch()) {
				if value != nil && name != "vars" && name != "rollout" && name != "size" {
					t.Errorf("%v sets %s", r, name)
				}
			}
		}
		if merged := mergedConfig(group); merged != nil && (!json.Valid(merged.Raw) || !equalJSON(merged, merged)) {
			t.Errorf("%v", merged)
		}
	})
}

// TestPushes changes the config of a pool and the settings of another client at random, and lets the operator push.
// Every push must be accepted, and must end the difference between the config and the settings in force. Fields that
// are removed from the config must be gone, and the other client's fields must stay.
func TestPushes(t *testing.T) {
	static := []string{`{"instance_type":"m5.large"}`, `{"instance_type":""}`, `{"vars":{"a":"1"}}`,
		`{"vars":{"a":""}}`, `{"vars":{"b":"2","c":"3"}}`, `{"vars":{}}`,
		`{"rollout":{"paused":false}}`, `{"rollout":{"paused":true}}`}
	dynamic := append([]string{`{"subnet_pool":"p"}`, `{"max_unhealthy":"3"}`, `{"drain_timeout":"3600s"}`,
		`{"drain_timeout":"0s"}`, `{"rollout":{"canary":2,"bake_time":"90s"}}`, `{"rollout":{"canary":0}}`,
		`{"rollout":{}}`, `{"disruption":{"windows":[]}}`, `{"disruption":{"max_per_hour":2}}`,
		`{"purchase":{"spot_percent":50,"on_demand_base":0}}`, `{"load_balancers":["l"]}`, `{"args":{"x":{"y":[1]}}}`,
		`{"args":{"x":7}}`, `{"args":{"x":{},"z":false}}`, `{"instance_types":["m5.large"]}`, `{"vars":null}`},
		static...)
	defaults := (&config.Shard{}).WithDefaults()
	for seed := range uint64(400) {
		random := newRandom(seed)
		isStatic := seed%2 == 0
		patches := dynamic
		foreignPatches := []string{`{"max_surge":3}`, `{"vars":{"f":"1"}}`, `{"rollout":{"revision":"r"}}`}
		if isStatic {
			patches, foreignPatches = static, foreignPatches[1:]
		}
		choose := func(list []string) map[string]any { return parseTree(list[random.IntN(len(list))]) }
		definition := config.GroupSpec{Template: "t", Size: ptr.To(1), InstanceType: "c5.large", MaxSurge: ptr.To(2),
			Vars:    map[string]string{"a": "1", "b": "0"},
			Rollout: &config.Rollout{Paused: random.IntN(2) == 0, Canary: 1}}
		own, foreign := config.GroupSpec{}, map[string]any{}
		if !isStatic {
			own = config.GroupSpec{Template: "t", Size: ptr.To(1)}
		}
		status := func() *statusT {
			text, err := json.Marshal(own)
			if err != nil {
				t.Fatal(err)
			}
			g := &statusT{Group: "g", IsStatic: isStatic, Size: 1, SpecJson: string(text)}
			if g.MergedJson = defaults.Settings(own, nil).JSON(); isStatic {
				g.MergedJson = defaults.Settings(definition, &own).JSON()
			}
			return g
		}
		apply := func(text string) {
			patch, problems := config.ParsePatch("", []byte(text))
			next, err := patch.Apply(own)
			if len(problems) > 0 || err != nil || isStatic && len(patch.Restricted()) > 0 {
				t.Fatalf("seed %d: %s: %v, %v, restricted %v", seed, text, problems, err, patch.Restricted())
			}
			own = next
		}
		g := &v1beta1.NstanceShardGroup{Spec: specT{Group: "g", Size: ptr.To(int32(1))}}
		var log []string
		for range 12 {
			settings := map[string]any{}
			if !isStatic {
				settings["template"] = "t"
			}
			for range random.IntN(4) {
				settings = config.MergePatch(settings, choose(patches))
			}
			if g.Spec.Config = treeConfig(settings); random.IntN(3) == 0 {
				change := choose(foreignPatches)
				foreign = config.MergePatch(foreign, change)
				apply(treeJSON(change))
				log = append(log, "foreign "+treeJSON(change))
			}
			rememberOwnedFields(g)
			log = append(log, "config "+treeJSON(settings))
			for pushes := 0; ; pushes++ {
				r := upsertRequest(g.Spec, ownedFields(g), status())
				if r == nil {
					break
				}
				log = append(log, "push "+r.GetPatch())
				if apply(r.GetPatch()); pushes == 3 {
					t.Fatalf("seed %d: the pushes do not end: %q", seed, log)
				}
			}
			now := status()
			have, merged := canonical(ownSettings(now)), parseTree(now.GetMergedJson())
			want := canonical(configTree(g.Spec.Config))
			var wrong []string
			if missing := overrides(want, nil, merged); isStatic && len(missing) > 0 {
				wrong = append(wrong, fmt.Sprintf("not in force: %v", missing))
			}
			// The zero values count, too.
			if paused, set := rolloutOf(settings)["paused"]; set &&
				rolloutOf(merged)["paused"] != paused {
				wrong = append(wrong, fmt.Sprintf("paused is not %v", paused))
			}
			allowed := config.MergePatch(canonical(configTree(g.Spec.Config)), parseTree(treeJSON(foreign)))
			allowed["size"] = 1.0
			if lost := lostPath(foreign, have); lost != "" {
				wrong = append(wrong, "the other client's "+lost+" was removed")
			}
			if extra := lostPath(have, config.MergePatch(configTree(g.Spec.Config), allowed)); extra != "" {
				wrong = append(wrong, extra+" was not removed")
			}
			if changed := config.Difference(config.MergePatch(parseTree(treeJSON(have)), want), have); !isStatic &&
				len(changed) > 0 {
				wrong = append(wrong, fmt.Sprintf("not set: %v", changed))
			}
			if len(wrong) > 0 {
				t.Fatalf("seed %d: %q: own settings %v, after %q", seed, wrong, have, log)
			}
		}
	}
}

func rolloutOf(settings map[string]any) map[string]any {
	rollout, _ := settings["rollout"].(map[string]any)
	return rollout
}
