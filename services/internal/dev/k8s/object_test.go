package k8s

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authentication "k8s.io/api/authentication/v1"
	autoscaling "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// TestStatus checks that spec and status are separate, that generations are counted, and that an update without a
// change has no effect.
func TestStatus(t *testing.T) {
	addr, _ := start(t, t.TempDir())
	c, ctx := in(untyped(t, addr), pools), t.Context()
	a := must(c.Create(ctx, made(pools, "a", map[string]any{
		"spec": map[string]any{"replicas": int64(1)}, "status": map[string]any{"phase": "Running"},
	}), metav1.CreateOptions{}))(t)
	if a.Object["status"] != nil {
		t.Errorf("made with a status: %v", a)
	}
	a.Object["spec"] = map[string]any{"replicas": int64(7)}
	a.Object["status"] = map[string]any{"phase": "Running"}
	b := must(c.UpdateStatus(ctx, a, metav1.UpdateOptions{}))(t)
	want := map[string]any{"replicas": int64(1)}
	if diff := cmp.Diff(want, b.Object["spec"]); diff != "" || b.GetGeneration() != 1 ||
		b.GetResourceVersion() == a.GetResourceVersion() {
		t.Errorf("a status changed more: %s %v", diff, b)
	}
	if _, err := c.UpdateStatus(ctx, a, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a second time with the same version: %v", err)
	}
	b.Object["spec"] = map[string]any{"replicas": int64(3)}
	b.Object["status"] = map[string]any{"phase": "Failed"}
	d := must(c.Update(ctx, b, metav1.UpdateOptions{}))(t)
	if phase, _, _ := unstructured.NestedString(d.Object, "status", "phase"); phase != "Running" ||
		d.GetGeneration() != 2 {
		t.Errorf("an update changed the status, or was not counted: %v", d)
	}
	e := must(c.Update(ctx, d, metav1.UpdateOptions{}))(t)
	if e.GetResourceVersion() != d.GetResourceVersion() {
		t.Error("nothing was changed and the version grew")
	}
	e.SetLabels(map[string]string{"x": "y"})
	e = must(c.Update(ctx, e, metav1.UpdateOptions{}))(t)
	if e.GetGeneration() != 2 {
		t.Error("a label counts as a change of the spec")
	}
	// Clients cannot change the fields that the server sets.
	e.SetUID("")
	e.SetGeneration(99)
	e.SetCreationTimestamp(metav1.NewTime(time.Unix(0, 0)))
	e.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(0, 0)})
	f := must(c.Update(ctx, e, metav1.UpdateOptions{}))(t)
	if f.GetUID() != a.GetUID() || f.GetGeneration() != 2 || !ptr(f.GetCreationTimestamp()).Equal(
		ptr(a.GetCreationTimestamp())) || f.GetDeletionTimestamp() != nil {
		t.Errorf("it is now %v", f)
	}
	f.SetUID("another")
	if _, err := c.Update(ctx, f, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("with another UID: %v", err)
	}
	f.SetUID("")
	f.SetResourceVersion("")
	if _, err := c.Update(ctx, f, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("without a version: %v", err)
	}
	dry := must(c.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":9}}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	now := must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if n, _, _ := unstructured.NestedInt64(dry.Object, "spec", "replicas"); n != 9 || dry.GetGeneration() != 3 ||
		now.GetGeneration() != 2 {
		t.Errorf("a dry run: %v, then %v", dry, now)
	}
}

func ptr[T any](v T) *T { return &v }

func TestPatches(t *testing.T) {
	addr, _ := start(t, t.TempDir())
	c, ctx := untyped(t, addr), t.Context()
	pods := find("", "v1", "pods")
	container := func(name, image string) map[string]any { return map[string]any{"name": name, "image": image} }
	spec := func(containers ...any) map[string]any { return map[string]any{"containers": containers} }
	base := spec(container("a", "1"), container("b", "1"))
	for name, one := range map[string]struct {
		r     *resource
		kind  types.PatchType
		patch string
		want  map[string]any                // the spec
		fails func(error) bool              // Instead of want.
		check func(u map[string]any) string // Additional check.
	}{
		"merge": {r: pods, kind: types.MergePatchType, patch: `{"spec":{"nodeName":"n","containers":null}}`,
			want: map[string]any{"nodeName": "n"}},
		"merge a list": {r: pods, kind: types.MergePatchType, patch: `{"spec":{"containers":[{"name":"c"}]}}`,
			want: spec(map[string]any{"name": "c"})},
		"strategic": {r: pods, kind: types.StrategicMergePatchType,
			patch: `{"spec":{"containers":[{"name":"a","image":"2"}]}}`,
			want:  spec(container("a", "2"), container("b", "1"))},
		"strategic del": {r: pods, kind: types.StrategicMergePatchType,
			patch: `{"spec":{"containers":[{"name":"a","$patch":"delete"}]}}`, want: spec(container("b", "1"))},
		"JSON": {r: pods, kind: types.JSONPatchType,
			patch: `[{"op":"replace","path":"/spec/containers/1/image","value":"3"}]`,
			want:  spec(container("a", "1"), container("b", "3"))},
		"JSON test": {r: pods, kind: types.JSONPatchType,
			patch: `[{"op":"test","path":"/spec/containers/1/image","value":"3"}]`, fails: apierrors.IsInvalid},
		"odd JSON":  {r: pods, kind: types.JSONPatchType, patch: `{}`, fails: apierrors.IsBadRequest},
		"odd merge": {r: pods, kind: types.MergePatchType, patch: `[]`, fails: apierrors.IsBadRequest},
		"null":      {r: pods, kind: types.MergePatchType, patch: `null`, fails: apierrors.IsBadRequest},
		"name": {r: pods, kind: types.MergePatchType, patch: `{"metadata":{"name":"other"}}`,
			fails: apierrors.IsBadRequest},
		"old version": {r: pods, kind: types.MergePatchType, patch: `{"metadata":{"resourceVersion":"1"}}`,
			fails: apierrors.IsConflict},
		"status": {r: pods, kind: types.MergePatchType, patch: `{"status":{"phase":"Running"}}`, want: base},
		"CRD": {r: machines, kind: types.MergePatchType, patch: `{"spec":{"containers":null,"x":{"y":1}}}`,
			want: map[string]any{"x": map[string]any{"y": int64(1)}}},
		"large number": {r: machines, kind: types.MergePatchType, patch: `{"spec":{"containers":9007199254740993}}`,
			want: map[string]any{"containers": int64(9007199254740993)}},
		"CRD strategic": {r: machines, kind: types.StrategicMergePatchType, patch: `{}`,
			fails: apierrors.IsUnsupportedMediaType},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ToLower(strings.ReplaceAll(name, " ", "-"))
			must(in(c, one.r).Create(ctx, made(one.r, id, map[string]any{"spec": base}), metav1.CreateOptions{}))(t)
			got, err := in(c, one.r).Patch(ctx, id, one.kind, []byte(one.patch), metav1.PatchOptions{})
			if one.fails != nil {
				if !one.fails(err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(one.want, got.Object["spec"]); diff != "" {
				t.Error(diff)
			}
			if phase, _, _ := unstructured.NestedString(got.Object, "status", "phase"); phase == "Running" {
				t.Error("the status was changed")
			}
		})
	}
}

// TestConcurrentUpdates increments a field from several goroutines at the same time, and checks that no increment is
// lost.
func TestConcurrentUpdates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, _ := start(t, dir)
	c, ctx := in(untyped(t, addr), pools), t.Context()
	must(c.Create(ctx, made(pools, "a", map[string]any{"spec": map[string]any{"replicas": int64(0)}}),
		metav1.CreateOptions{}))(t)
	const writers, each = 8, 10
	var group sync.WaitGroup
	var conflicts sync.Map
	for w := range writers {
		group.Go(func() {
			for i := range each {
				err := retry.OnError(retry.DefaultBackoff, func(error) bool { return true }, func() error {
					for {
						u, err := c.Get(ctx, "a", metav1.GetOptions{})
						if err != nil {
							return err
						}
						n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
						_ = unstructured.SetNestedField(u.Object, n+1, "spec", "replicas")
						if _, err = c.Update(ctx, u, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
							return err
						}
						conflicts.Store([2]int{w, i}, true)
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	u := must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); n != writers*each ||
		u.GetGeneration() != writers*each+1 {
		t.Errorf("counted to %d in generation %d, want %d", n, u.GetGeneration(), writers*each)
	}
	if file := string(must(os.ReadFile(filepath.Join(dir, "machinepools/default/a.json")))(t)); !strings.Contains(file,
		`"replicas": 80`) {
		t.Errorf("the file has %s", file)
	}
	seen := 0
	conflicts.Range(func(any, any) bool { seen++; return true })
	if seen == 0 {
		t.Error("no conflict happened: the test checked nothing")
	}
}

// TestFinalizers checks that an object remains until its last finalizer is removed, and that its dependents are deleted
// with it.
func TestFinalizers(t *testing.T) {
	t.Parallel()
	addr, _ := start(t, t.TempDir())
	all, ctx := untyped(t, addr), t.Context()
	c := in(all, pools)
	a := made(pools, "a")
	a.SetFinalizers([]string{"x.example/one", "x.example/two"})
	a = must(c.Create(ctx, a, metav1.CreateOptions{}))(t)
	own := func(name string, owners ...metav1.OwnerReference) {
		m := made(machines, name)
		m.SetOwnerReferences(owners)
		must(in(all, machines).Create(ctx, m, metav1.CreateOptions{}))(t)
	}
	by := metav1.OwnerReference{APIVersion: a.GetAPIVersion(), Kind: a.GetKind(), Name: "a", UID: a.GetUID()}
	other := must(c.Create(ctx, made(pools, "other"), metav1.CreateOptions{}))(t)
	byOther := metav1.OwnerReference{APIVersion: a.GetAPIVersion(), Kind: a.GetKind(), Name: "other",
		UID: other.GetUID()}
	own("mine", by)
	own("shared", by, byOther)
	own("stranger", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "unknown", UID: "1"})
	stale := by
	stale.UID = "0"
	own("stale", stale)
	exists := func(name string) bool {
		_, err := in(all, machines).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		return err == nil
	}
	until(t, "what names an owner of the past goes", func() bool { return !exists("stale") })

	if err := c.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a = must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	at := a.GetDeletionTimestamp()
	if at == nil || a.GetGeneration() != 2 {
		t.Errorf("after a deletion with finalizers: %v", a)
	}
	if err := c.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	a.SetFinalizers([]string{"x.example/two", "x.example/three"})
	if _, err := c.Update(ctx, a, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a finalizer is added late: %v", err)
	}
	a.SetFinalizers([]string{"x.example/two"})
	a = must(c.Update(ctx, a, metav1.UpdateOptions{}))(t)
	if !exists("mine") || !a.GetDeletionTimestamp().Equal(at) {
		t.Errorf("with one finalizer left: %v", a)
	}
	a.SetFinalizers(nil)
	must(c.Update(ctx, a, metav1.UpdateOptions{}))(t)
	if _, err := c.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without a finalizer: %v", err)
	}
	until(t, "what it owned goes", func() bool { return !exists("mine") })
	if !exists("shared") || !exists("stranger") {
		t.Error("something went that has an owner, or may have one")
	}
	if err := c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		FieldSelector: "metadata.name!=other"}); err != nil {
		t.Error(err)
	}
	if len(must(c.List(ctx, metav1.ListOptions{}))(t).Items) != 1 {
		t.Error("a collection was deleted that was not selected")
	}
	err := c.Delete(ctx, "other", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr(types.UID("0"))}})
	if !apierrors.IsConflict(err) {
		t.Errorf("a deletion of another: %v", err)
	}
	if err := c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	until(t, "the last owner has gone", func() bool { return !exists("shared") })
}

func TestNames(t *testing.T) {
	addr, _ := start(t, t.TempDir())
	c, ctx := typed(t, addr), t.Context()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}, StringData: map[string]string{"x": "y"}}
	one := must(c.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}))(t)
	two := must(c.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}))(t)
	if one.Name == two.Name || !strings.HasPrefix(one.Name, "a-") || len(one.Name) != 7 {
		t.Errorf("names were made: %s, %s", one.Name, two.Name)
	}
	if string(one.Data["x"]) != "y" || one.StringData != nil || one.Type != corev1.SecretTypeOpaque {
		t.Errorf("its data: %v", one)
	}
	// A namespace is deleted with all objects in it.
	must(c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		metav1.CreateOptions{}))(t)
	must(c.CoreV1().Secrets("b").Create(ctx, secret, metav1.CreateOptions{}))(t)
	if err := c.CoreV1().Namespaces().Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if list := must(c.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}))(t); len(list.Items) != 2 {
		t.Errorf("secrets are left: %v", list.Items)
	}
}

func TestScale(t *testing.T) {
	addr, _ := start(t, t.TempDir())
	c, ctx := in(untyped(t, addr), pools), t.Context()
	must(c.Create(ctx, made(pools, "a", map[string]any{"spec": map[string]any{"replicas": int64(1), "x": "y"}}),
		metav1.CreateOptions{}))(t)
	scale := must(c.Get(ctx, "a", metav1.GetOptions{}, "scale"))(t)
	var s autoscaling.Scale
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(scale.Object, &s)
	if err != nil || s.Spec.Replicas != 1 || s.Name != "a" || s.ResourceVersion == "" {
		t.Errorf("scale: %v, %v", err, scale)
	}
	_ = unstructured.SetNestedField(scale.Object, int64(4), "spec", "replicas")
	must(c.Update(ctx, scale, metav1.UpdateOptions{}, "scale"))(t)
	if _, err := c.Update(ctx, scale, metav1.UpdateOptions{}, "scale"); !apierrors.IsConflict(err) {
		t.Errorf("with an old version: %v", err)
	}
	must(c.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{}, "scale"))(t)
	if _, err := c.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":-1}}`), metav1.PatchOptions{},
		"scale"); !apierrors.IsInvalid(err) {
		t.Errorf("below zero: %v", err)
	}
	a := must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if diff := cmp.Diff(map[string]any{"replicas": int64(5), "x": "y"}, a.Object["spec"]); diff != "" ||
		a.GetGeneration() != 3 {
		t.Errorf("%s %v", diff, a)
	}
}

func TestToken(t *testing.T) {
	addr, _ := start(t, t.TempDir())
	c, ctx := typed(t, addr), t.Context()
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: ptr(int64(1800))}}
	if _, err := c.CoreV1().ServiceAccounts("default").CreateToken(ctx, "a", request,
		metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("of nobody: %v", err)
	}
	must(c.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}))(t)
	one := must(c.CoreV1().ServiceAccounts("default").CreateToken(ctx, "a", request, metav1.CreateOptions{}))(t)
	two := must(c.CoreV1().ServiceAccounts("default").CreateToken(ctx, "a", request, metav1.CreateOptions{}))(t)
	if left := time.Until(one.Status.ExpirationTimestamp.Time); left < 29*time.Minute || left > 30*time.Minute ||
		one.Status.Token == two.Status.Token {
		t.Errorf("tokens: %v, %v", one.Status, two.Status)
	}
	request.Spec.ExpirationSeconds = ptr(int64(10))
	if _, err := c.CoreV1().ServiceAccounts("default").CreateToken(ctx, "a", request,
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("for 10 seconds: %v", err)
	}
}

// TestEviction evicts a pod.
func TestEviction(t *testing.T) {
	addr, _ := start(t, t.TempDir())
	c, ctx := typed(t, addr), t.Context()
	for name, node := range map[string]string{"one": "n", "two": "n", "three": "m"} {
		must(c.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{NodeName: node}}, metav1.CreateOptions{}))(t)
	}
	evict := func(name string) error {
		return c.PolicyV1().Evictions("default").Evict(ctx, &policy.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name,
			Namespace: "default"}})
	}
	if err := evict("one"); err != nil {
		t.Error(err)
	}
	list := must(c.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=n,status.phase=Pending"}))(t)
	if len(list.Items) != 1 || list.Items[0].Name != "two" {
		t.Errorf("pods are left: %v", list.Items)
	}
	if err := evict("one"); !apierrors.IsNotFound(err) {
		t.Errorf("a second time: %v", err)
	}
}

// TestEvents checks that both event API groups show the same events.
func TestEvents(t *testing.T) {
	dir := t.TempDir()
	addr, _ := start(t, dir)
	c, ctx := typed(t, addr), t.Context()
	now := metav1.NewMicroTime(time.Now().Truncate(time.Microsecond))
	must(c.EventsV1().Events("default").Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, EventTime: now, ReportingController: "nstance",
		ReportingInstance: "1", Action: "Drain",
		Reason: "Drained", Regarding: corev1.ObjectReference{Kind: "Node", Name: "n"}, Note: "words", Type: "Normal",
	}, metav1.CreateOptions{}))(t)
	old := must(c.CoreV1().Events("default").Get(ctx, "new", metav1.GetOptions{}))(t)
	if old.Message != "words" || old.InvolvedObject.Name != "n" || old.ReportingController != "nstance" ||
		!old.EventTime.Equal(&now) {
		t.Errorf("seen by the core group: %+v", old)
	}
	must(c.EventsV1().Events("default").Patch(ctx, "new", types.StrategicMergePatchType,
		[]byte(`{"note":"more","series":{"count":2}}`), metav1.PatchOptions{}))(t)
	list := must(c.CoreV1().Events("default").List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=n,reason=Drained"}))(t)
	if len(list.Items) != 1 || list.Items[0].Message != "more" || list.Items[0].Series.Count != 2 {
		t.Errorf("after a patch: %+v", list.Items)
	}
	must(c.CoreV1().Events("default").Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "old"}, Message: "m", Source: corev1.EventSource{Component: "x"}, Count: 3,
	}, metav1.CreateOptions{}))(t)
	also := must(c.EventsV1().Events("default").Get(ctx, "old", metav1.GetOptions{}))(t)
	if also.Note != "m" || also.DeprecatedSource.Component != "x" || also.DeprecatedCount != 3 {
		t.Errorf("seen by events.k8s.io: %+v", also)
	}
	var file map[string]any
	if err := json.Unmarshal(must(os.ReadFile(filepath.Join(dir, "events/default/new.json")))(t), &file); err != nil ||
		file["apiVersion"] != "v1" {
		t.Errorf("its file: %v, %v", err, file)
	}
}
