package k8s

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// next waits for an event of the watch. It returns the event as text ("TYPE name") and as a value.
func next(t *testing.T, w watch.Interface) (string, watch.Event) {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "closed", e
		}
		if u, ok := e.Object.(*unstructured.Unstructured); ok && e.Type != watch.Error {
			return fmt.Sprintf("%s %s", e.Type, u.GetName()), e
		}
		return string(e.Type), e
	case <-time.After(patience):
		t.Fatal("no event comes")
		return "", watch.Event{}
	}
}

func expect(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	for _, text := range want {
		if got, e := next(t, w); got != text {
			t.Fatalf("the watch tells %q (%v), want %q", got, e.Object, text)
		}
	}
}

func label(t *testing.T, c dynamic.ResourceInterface, name, value string) *unstructured.Unstructured {
	t.Helper()
	u := must(c.Get(t.Context(), name, metav1.GetOptions{}))(t)
	u.SetLabels(map[string]string{"x": value})
	return must(c.Update(t.Context(), u, metav1.UpdateOptions{}))(t)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	addr, _ := start(t, t.TempDir())
	c, ctx := in(untyped(t, addr), machines), t.Context()
	begin := func(o metav1.ListOptions) watch.Interface {
		t.Helper()
		w := must(c.Watch(ctx, o))(t)
		t.Cleanup(w.Stop)
		return w
	}
	empty := must(c.List(ctx, metav1.ListOptions{}))(t)
	a := must(c.Create(ctx, made(machines, "a"), metav1.CreateOptions{}))(t)
	must(c.Create(ctx, made(machines, "b"), metav1.CreateOptions{}))(t)

	whole, selected := begin(metav1.ListOptions{ResourceVersion: empty.GetResourceVersion()}),
		begin(metav1.ListOptions{LabelSelector: "x=1"})
	one, now := begin(metav1.ListOptions{FieldSelector: "metadata.name=b"}), begin(metav1.ListOptions{})
	expect(t, whole, "ADDED a", "ADDED b")
	expect(t, one, "ADDED b")
	expect(t, now, "ADDED a", "ADDED b")
	label(t, c, "a", "1")
	label(t, c, "a", "2")
	last := label(t, c, "b", "2")
	expect(t, whole, "MODIFIED a", "MODIFIED a", "MODIFIED b")
	expect(t, selected, "ADDED a", "DELETED a") // The change removed a from the selection.
	expect(t, one, "MODIFIED b")
	if err := c.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, one, "DELETED b")
	_, e := next(t, whole)
	if v := e.Object.(*unstructured.Unstructured).GetResourceVersion(); number(t, v) <= number(t,
		last.GetResourceVersion()) {
		t.Errorf("the deletion has version %s, the object had %s", v, last.GetResourceVersion())
	}
	// A watch from an older version sends all later events.
	expect(t, begin(metav1.ListOptions{ResourceVersion: a.GetResourceVersion()}), "ADDED b", "MODIFIED a", "MODIFIED a",
		"MODIFIED b", "DELETED b")

	// A watch can start with the existing objects. A bookmark marks their end.
	list := begin(metav1.ListOptions{SendInitialEvents: ptr(true), AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	expect(t, list, "ADDED a")
	text, e := next(t, list)
	if u := e.Object.(*unstructured.Unstructured); text != "BOOKMARK " ||
		u.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" || u.GroupVersionKind() != machines.gvk() {
		t.Errorf("%s: %v", text, e.Object)
	}
	// The client's timeout ends the watch with a bookmark.
	short := begin(metav1.ListOptions{ResourceVersion: last.GetResourceVersion(), TimeoutSeconds: ptr(int64(1)),
		AllowWatchBookmarks: true})
	expect(t, short, "DELETED b", "BOOKMARK ", "closed")
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	return must(strconv.ParseUint(text, 10, 64))(t)
}

// TestExpired checks that a watch ends with 410 if the server no longer has all events after the watch's version.
func TestExpired(t *testing.T) {
	dir := t.TempDir()
	addr, stop := start(t, dir)
	c, ctx := in(untyped(t, addr), machines), t.Context()
	a := must(c.Create(ctx, made(machines, "a"), metav1.CreateOptions{}))(t)
	expired := func(c dynamic.ResourceInterface, version string) {
		t.Helper()
		w := must(c.Watch(ctx, metav1.ListOptions{ResourceVersion: version}))(t)
		defer w.Stop()
		if _, e := next(t, w); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
			t.Errorf("the watch from %s: %s %v", version, e.Type, e.Object)
		}
		expect(t, w, "closed")
	}
	expired(c, "1")
	expired(c, "9000000000000000000")
	stop()
	addr, _ = start(t, dir)
	c = in(untyped(t, addr), machines)
	expired(c, a.GetResourceVersion())
	again := must(c.Get(ctx, "a", metav1.GetOptions{}))(t)
	if again.GetUID() != a.GetUID() || number(t, again.GetResourceVersion()) <= number(t, a.GetResourceVersion()) {
		t.Errorf("after a restart: %v, before: %v", again, a)
	}
	// Changes of one resource do not expire watches of another resource.
	from := again.GetResourceVersion()
	s := &store{version: 1, kinds: map[string]*collection{}, grown: make(chan struct{}, 1)}
	for _, r := range []*resource{machines, pools} {
		s.kinds[r.name] = &collection{resource: r, objects: map[key]*object{}, floor: 1, changed: make(chan struct{})}
	}
	for i := range historyLength + 5 {
		s.commit(s.kinds[pools.name], key{"default", "a"}, made(pools, "a", map[string]any{"spec": int64(i)}).Object,
			nil)
	}
	if _, _, _, ok := s.since(pools, 5); ok {
		t.Error("changes are missing without an error")
	}
	if changes, _, _, ok := s.since(pools, 6); !ok || len(changes) != historyLength || changes[0].version != 7 {
		t.Errorf("all that is kept: %v, %d", ok, len(changes))
	}
	if _, _, _, ok := s.since(machines, 1); !ok {
		t.Errorf("a quiet resource expired (%s)", from)
	}
}

// names maps the name of each object to the last value that an informer received.
type names struct {
	mu     sync.Mutex
	values map[string]string
}

// TestInformer checks that a shared informer sees every change although its connection is cut and the server is
// restarted.
func TestInformer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, stop := start(t, dir)
	wire := connect(t, addr)
	client := typed(t, wire.addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().ConfigMaps().Informer()
	seen := names{values: map[string]string{}}
	note := func(o any) {
		m := o.(*corev1.ConfigMap)
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.values[m.Name] = m.Data["v"]
	}
	must(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: note, UpdateFunc: func(_, o any) { note(o) },
		DeleteFunc: func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			seen.mu.Lock()
			defer seen.mu.Unlock()
			delete(seen.values, o.(*corev1.ConfigMap).Name)
		},
	}))(t)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	write := func(addr, name, value string) {
		t.Helper()
		c := typed(t, addr).CoreV1().ConfigMaps("default")
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"v": value}}
		if _, err := c.Create(ctx, m, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			must(c.Update(ctx, m, metav1.UpdateOptions{}))(t)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	agree := func(want map[string]string) {
		t.Helper()
		until(t, fmt.Sprintf("the informer knows %v", want), func() bool {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			return cmp.Equal(seen.values, want)
		})
	}
	write(addr, "a", "1")
	agree(map[string]string{"a": "1"})
	wire.cut(addr)
	write(addr, "a", "2")
	write(addr, "b", "1")
	agree(map[string]string{"a": "2", "b": "1"})

	// While the informer is disconnected, one object is deleted, the file of another one is edited, and a third one is
	// created.
	stop()
	again, stopAgain := start(t, dir)
	if err := typed(t, again).CoreV1().ConfigMaps("default").Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	stopAgain()
	put(t, `{"data":{"v":"2"}}`, dir, "configmaps/default/b.json")
	last, _ := start(t, dir)
	write(last, "c", "1")
	wire.cut(last)
	agree(map[string]string{"b": "2", "c": "1"})
	write(last, "c", "2")
	agree(map[string]string{"b": "2", "c": "2"})
	keys := informer.GetStore().ListKeys()
	slices.Sort(keys)
	if diff := cmp.Diff([]string{"default/b", "default/c"}, keys); diff != "" {
		t.Error(diff)
	}
}
