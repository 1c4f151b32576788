package kube

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

func TestNodeChanges(t *testing.T) {
	registered := timestamppb.Now()
	vm := func(id, state, providerState string) *nstancev1.InstanceStatus {
		return &nstancev1.InstanceStatus{InstanceId: id, State: state, ProviderState: providerState,
			ProviderId: "tmux://" + id, RegisteredAt: registered}
	}
	booting := vm("booting", "created", "running")
	booting.RegisteredAt = nil
	promoted := vm("a", "registered", "running")
	promoted.PromotedAt = registered
	for name, c := range map[string]struct {
		known               map[string]bool
		there               []*nstancev1.InstanceStatus
		joined, left, woken []string
	}{
		"nothing": {},
		"a registered one joins": {there: []*nstancev1.InstanceStatus{vm("a", "registered", "running")},
			joined: []string{"a"}},
		"the last state": {there: []*nstancev1.InstanceStatus{vm("a", "registered", "pending")},
			joined: []string{"a"}},
		"not before it has": {there: []*nstancev1.InstanceStatus{booting}},
		"once only": {known: map[string]bool{"a": true},
			there: []*nstancev1.InstanceStatus{vm("a", "registered", "running")}},
		"not again": {known: map[string]bool{"a": false},
			there: []*nstancev1.InstanceStatus{vm("a", "registered", "running")}},
		"stays while it is deleted": {known: map[string]bool{"a": true},
			there: []*nstancev1.InstanceStatus{vm("a", "deleting", "running")}},
		"leaves when its VM stops": {known: map[string]bool{"a": true},
			there: []*nstancev1.InstanceStatus{vm("a", "registered", "stopped")}, left: []string{"a"}},
		"leaves when it is not there": {known: map[string]bool{"a": true, "b": true}, left: []string{"a", "b"}},
		"leaves when it is deleted": {known: map[string]bool{"a": true},
			there: []*nstancev1.InstanceStatus{vm("a", "deleted", "running")}, left: []string{"a"}},
		"has left": {known: map[string]bool{"a": false}},
		"a former spare wakes": {known: map[string]bool{"a": false}, there: []*nstancev1.InstanceStatus{promoted},
			woken: []string{"a"}},
	} {
		before := maps.Clone(c.known)
		joined, left, woken := changes(c.known, c.there)
		var names []string
		for _, instance := range joined {
			names = append(names, instance.GetInstanceId())
		}
		if !slices.Equal(names, c.joined) || !slices.Equal(left, c.left) || !slices.Equal(woken, c.woken) {
			t.Errorf("%s: joined %v, left %v, woken %v", name, names, left, woken)
		}
		if !maps.Equal(before, c.known) {
			t.Errorf("%s: known became %v", name, c.known)
		}
	}
}

func TestNode(t *testing.T) {
	got := node(&nstancev1.InstanceStatus{InstanceId: "knc1", ProviderId: "tmux://knc1", Zone: "z1",
		InstanceType: "t3.small"})
	if got.Name != "knc1" || got.Spec.ProviderID != "tmux://knc1" || !strings.HasPrefix(
		got.Status.NodeInfo.KubeletVersion, "v1.") {
		t.Errorf("got %s with provider ID %s, %s", got.Name, got.Spec.ProviderID, got.Status.NodeInfo.KubeletVersion)
	}
	want := map[string]string{AliveLabel: "true", corev1.LabelHostname: "knc1", corev1.LabelOSStable: "linux",
		corev1.LabelArchStable:         "amd64",
		corev1.LabelInstanceTypeStable: "t3.small", corev1.LabelTopologyZone: "z1"}
	if diff := cmp.Diff(want, got.Labels); diff != "" {
		t.Error(diff)
	}
}
