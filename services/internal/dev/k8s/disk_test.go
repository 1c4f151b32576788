package k8s

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestFiles checks that a person's changes to files appear as events.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, `{"spec":{"replicas":1}}`, dir, "machinepools/default/before.json")
	put(t, `{"half`, dir, "namespaces/default.json") // The server must start in spite of an incomplete file.
	addr, _ := start(t, dir)
	c, ctx := in(untyped(t, addr), pools), t.Context()
	w := must(c.Watch(ctx, metav1.ListOptions{}))(t)
	defer w.Stop()
	expect(t, w, "ADDED before")

	// A minimal new file in a new directory. The server adds the other fields.
	put(t, `{"spec":{"replicas":2}}`, dir, "machinepools/default/a.json")
	expect(t, w, "ADDED a")
	a := must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if a.GetUID() == "" || a.GetGeneration() != 1 || a.GetNamespace() != "default" ||
		a.GroupVersionKind() != pools.gvk() {
		t.Errorf("it is %v", a)
	}
	file := filepath.Join(dir, "machinepools/default/a.json")
	text := string(must(os.ReadFile(file))(t))
	if !strings.Contains(text, string(a.GetUID())) || strings.Contains(text, "resourceVersion") {
		t.Errorf("its file is %s", text)
	}
	// An edit.
	put(t, strings.Replace(text, `"replicas": 2`, `"replicas": 3`, 1), file)
	expect(t, w, "MODIFIED a")
	b := must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if n, _, _ := unstructured.NestedInt64(b.Object, "spec", "replicas"); n != 3 || b.GetGeneration() != 2 ||
		b.GetUID() != a.GetUID() {
		t.Errorf("after an edit: %v", b)
	}
	// An editor saves a file by writing a temporary file and renaming it. The new content lacks the fields that the
	// server added.
	put(t, `{"spec":{"replicas":4}}`, dir, "machinepools/default/.a.swp")
	if err := os.Rename(filepath.Join(dir, "machinepools/default/.a.swp"), file); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "MODIFIED a")
	b = must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if b.GetUID() != a.GetUID() || b.GetGeneration() != 3 || !ptr(b.GetCreationTimestamp()).Equal(
		ptr(a.GetCreationTimestamp())) {
		t.Errorf("after an edit that left out everything: %v", b)
	}
	// The server ignores files that are not JSON or contain another object, and files with other names.
	for _, odd := range []string{"", "{", "[]", "null", `{"kind":"Machine"}`, `{"metadata":{"name":"b"}}`,
		`{"metadata":{"labels":7}}`, `{"metadata":[]}`} {
		put(t, odd, dir, "machinepools/default/odd.json")
		put(t, odd, file)
		put(t, `{}`, dir, "machinepools/default/sentinel.json")
		expect(t, w, "ADDED sentinel")
		if err := os.Remove(filepath.Join(dir, "machinepools/default/sentinel.json")); err != nil {
			t.Fatal(err)
		}
		expect(t, w, "DELETED sentinel")
		if got := must(c.Get(ctx, "a", metav1.GetOptions{}))(t); got.GetResourceVersion() != b.GetResourceVersion() {
			t.Fatalf("%q changed the object to %v", odd, got)
		}
		if got := string(must(os.ReadFile(file))(t)); got != odd {
			t.Fatalf("%q was overwritten with %q", odd, got)
		}
	}
	for _, other := range []string{
		"machinepools/default/README", "machinepools/default/a.json~", "machinepools/default/.b.json",
		"machinepools/default/B.json", "machinepools/top.json",
		"machinepools/default/deep/er.json", "elephants/default/a.json", "machinepools/_/a.json", "a.json",
	} {
		put(t, `{}`, dir, other)
	}
	put(t, `{}`, dir, "machinepools/other/b.json")
	must(c.Create(ctx, made(pools, "z"), metav1.CreateOptions{}))(t)
	expect(t, w, "ADDED z")
	until(t, "an object of another namespace is found", func() bool {
		list := must(untyped(t, addr).Resource(pools.gvr()).List(ctx, metav1.ListOptions{}))(t)
		return len(list.Items) == 4 && list.Items[3].GetNamespace() == "other"
	})
	// The file is valid again.
	put(t, `{"spec":{"replicas":5}}`, file)
	expect(t, w, "MODIFIED a")
	// If a user changes the UID in a file, the file describes a new object of the same name. The server deletes the old
	// object.
	put(t, `{"metadata":{"uid":"0b4a6d9e-8c1f-4f9e-9a53-0a3c1d3b2f10"}}`, file)
	expect(t, w, "DELETED a", "ADDED a")
	// Files and directories are removed.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "DELETED a")
	if err := os.RemoveAll(filepath.Join(dir, "machinepools")); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for range 2 {
		text, _ := next(t, w)
		got[text] = true
	}
	if !got["DELETED before"] || !got["DELETED z"] {
		t.Errorf("after the directory was removed: %v", got)
	}
	// The removed directory is created again, and a file in it becomes an object.
	put(t, `{}`, dir, "machinepools/default/again.json")
	expect(t, w, "ADDED again")
}

// TestReplaced removes a file for a moment, as some editors do. The object and its dependents must remain.
func TestReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, _ := start(t, dir)
	c, ctx := untyped(t, addr), t.Context()
	a := must(in(c, pools).Create(ctx, made(pools, "a"), metav1.CreateOptions{}))(t)
	m := made(machines, "m")
	m.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: a.GetAPIVersion(), Kind: a.GetKind(), Name: "a",
		UID: a.GetUID()}})
	must(in(c, machines).Create(ctx, m, metav1.CreateOptions{}))(t)
	w := must(in(c, pools).Watch(ctx, metav1.ListOptions{ResourceVersion: a.GetResourceVersion()}))(t)
	defer w.Stop()
	file := filepath.Join(dir, "machinepools/default/a.json")
	for range 5 {
		if err := os.Rename(file, file+"~"); err != nil {
			t.Fatal(err)
		}
		put(t, `{"metadata":{"annotations":{"at":"`+time.Now().Format(time.RFC3339Nano)+`"}}}`, file)
		expect(t, w, "MODIFIED a")
	}
	must(in(c, machines).Get(ctx, "m", metav1.GetOptions{}))(t)
}

// TestRequestDoesNotOverwriteAnEditedFile sends requests for an object whose file a person has changed. The server has
// not read the change yet, and must never overwrite it.
func TestRequestDoesNotOverwriteAnEditedFile(t *testing.T) {
	dir := t.TempDir()
	s := must(openStore(dir, time.Now, discard))(t)
	defer func() { _ = s.close() }()
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	k := key{"default", "a"}
	set := func(field string) error {
		_, _, err := s.edit(pools, k, false, func(current map[string]any) (map[string]any, error) {
			if current == nil {
				current = map[string]any{}
				s.complete(s.collectionOf(pools), k, current, nil)
			}
			current[field] = "request"
			return current, nil
		})
		return err
	}
	if err := set("one"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "machinepools/default/a.json")
	put(t, `{"person":"edit"}`, file)
	if err := set("two"); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(must(os.ReadFile(file))(t), &got); err != nil || got["person"] != "edit" ||
		got["two"] != "request" || got["one"] != nil {
		t.Errorf("after a request on top of an edit: %v, %v", err, got)
	}
	for _, half := range []string{"", `{"person":"ha`} {
		put(t, half, file)
		if err := set("three"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("a request on top of %q: %v", half, err)
		}
		if text := string(must(os.ReadFile(file))(t)); text != half {
			t.Errorf("%q became %q", half, text)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := set("four"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a request on top of nothing: %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Error("a file that a person removed is back")
	}
	if missing := s.readChangedFile("machinepools/default/a.json", false); !missing {
		t.Error("it is not missed")
	}
	if _, ok := s.get(pools, k); !ok {
		t.Error("it was deleted at the first look")
	}
	s.readChangedFile("machinepools/default/a.json", true)
	if _, ok := s.get(pools, k); ok {
		t.Error("it was not deleted")
	}
	// The server does not know the object, but an incomplete file exists at its path.
	put(t, `{`, file)
	if err := set("five"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a creation on top of half a file: %v", err)
	}
	// The server must not follow a symbolic link out of its directory.
	if err := os.Symlink("/etc", filepath.Join(dir, "configmaps")); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.edit(find("", "v1", "configmaps"), k, false, func(map[string]any) (map[string]any, error) {
		return map[string]any{}, nil
	})
	if err == nil {
		t.Error("it wrote through a link")
	}
}

// TestRetry checks that client-go repeats a request by itself while a person edits the object's file.
func TestRetry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, _ := start(t, dir)
	c, ctx := typed(t, addr), t.Context()
	must(c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{}))(t)
	file := filepath.Join(dir, "configmaps/default/a.json")
	put(t, `{"data":{"person":`, file)
	patched := make(chan error, 1)
	go func() {
		_, err := c.CoreV1().ConfigMaps("default").Patch(ctx, "a", types.MergePatchType,
			[]byte(`{"data":{"client":"y"}}`), metav1.PatchOptions{})
		patched <- err
	}()
	until(t, "the server has refused", func() bool {
		select {
		case err := <-patched:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		_, err := c.CoreV1().RESTClient().Put().MaxRetries(0).AbsPath("/api/v1/namespaces/default/configmaps/a").Body(
			[]byte("{}")).Do(ctx).Raw()
		return apierrors.IsServiceUnavailable(err)
	})
	put(t, `{"data":{"person":"x"}}`, file)
	if err := <-patched; err != nil {
		t.Fatal(err)
	}
	if m := must(c.CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{}))(t); m.Data["person"] != "x" ||
		m.Data["client"] != "y" {
		t.Errorf("it has %v", m.Data)
	}
}

// TestRestart checks that all objects survive a restart, including objects that are being deleted.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	addr, stop := start(t, dir)
	c, ctx := in(untyped(t, addr), pools), t.Context()
	a := made(pools, "a", map[string]any{"spec": map[string]any{"large": int64(9007199254740993), "x": "<&>"}})
	a.SetFinalizers([]string{"x.example/one"})
	must(c.Create(ctx, a, metav1.CreateOptions{}))(t)
	if err := c.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a = must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	stop()
	addr, _ = start(t, dir)
	c = in(untyped(t, addr), pools)
	b := must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if !same(a.Object, b.Object) {
		t.Errorf("before %v, after %v", a, b)
	}
	b.SetFinalizers(nil)
	must(c.Update(ctx, b, metav1.UpdateOptions{}))(t)
	if _, err := c.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without finalizers: %v", err)
	}
}
