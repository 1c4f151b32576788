package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	nstance "github.com/nstance-kit/nstance/services/api/v1beta1"
)

// patience bounds each wait of the tests.
const patience = 20 * time.Second

// start serves the objects in dir. It returns the server's host and port, and a function that stops the server.
func start(t *testing.T, dir string) (addr string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Serve(ctx, Options{Addr: "127.0.0.1:0", Dir: dir}, slog.New(slog.DiscardHandler), write)
		_ = write.CloseWithError(fmt.Errorf("serve ended: %w", err))
		ended <- err
	}()
	if _, err := fmt.Fscanf(read, "dev-k8s: "+dir+" at http://%s\n", &addr); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return addr, stop
}

func config(addr string) *rest.Config {
	return &rest.Config{Host: "http://" + addr, QPS: -1, ContentConfig: rest.ContentConfig{
		ContentType: "application/json"}}
}

func typed(t *testing.T, addr string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config(addr))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func untyped(t *testing.T, addr string) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(config(addr))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (r *resource) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.group, Version: r.version, Resource: r.name}
}

var (
	pools    = owned(capi, "MachinePool")
	machines = owned(capi, "Machine")
)

// made returns an object of resource r with the given content. If r is namespaced, the object is in the namespace
// "default".
func made(r *resource, name string, content ...map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for _, c := range content {
		for field, v := range c {
			u.Object[field] = v
		}
	}
	u.SetGroupVersionKind(r.gvk())
	u.SetName(name)
	if !r.cluster {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	return u
}

func in(c dynamic.Interface, r *resource) dynamic.ResourceInterface {
	if r.cluster {
		return c.Resource(r.gvr())
	}
	return c.Resource(r.gvr()).Namespace(metav1.NamespaceDefault)
}

// must returns the value of a call that has to succeed.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("this does not come about: %s", what)
		}
	}
}

// put writes a file in place, without a rename, as a careless program would.
func put(t *testing.T, content string, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestResources creates, reads, lists, changes and deletes one object of each type.
func TestResources(t *testing.T) {
	dir := t.TempDir()
	addr, _ := start(t, dir)
	c := untyped(t, addr)
	for _, r := range resources {
		t.Run(r.name+"."+r.group, func(t *testing.T) {
			ctx := t.Context()
			a := must(in(c, r).Create(ctx, made(r, "a"), metav1.CreateOptions{}))(t)
			if at := a.GetCreationTimestamp(); a.GetUID() == "" || at.IsZero() || a.GetResourceVersion() == "" ||
				a.GroupVersionKind() != r.gvk() {
				t.Errorf("it was made as %v", a)
			}
			if want := map[bool]int64{true: 1}[r.generation]; a.GetGeneration() != want {
				t.Errorf("generation is %d, want %d", a.GetGeneration(), want)
			}
			if _, err := in(c, r).Create(ctx, made(r, "a"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
				t.Errorf("a second time: %v", err)
			}
			a.SetLabels(map[string]string{"x": "y"})
			must(in(c, r).Update(ctx, a, metav1.UpdateOptions{}))(t)
			list := must(in(c, r).List(ctx, metav1.ListOptions{LabelSelector: "x=y",
				FieldSelector: "metadata.name=a"}))(t)
			if len(list.Items) != 1 || list.Items[0].GetUID() != a.GetUID() || list.GetKind() != r.kind+"List" {
				t.Errorf("listed: %v", list)
			}
			stored, namespace := r.name, metav1.NamespaceDefault
			if r.cluster {
				namespace = ""
			}
			file := filepath.Join(dir, stored, namespace, "a.json")
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
			if err := in(c, r).Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := in(c, r).Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("after its deletion: %v", err)
			}
			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("its file: %v", err)
			}
		})
	}
}

// TestNstanceTypesAreServed checks that every type of Nstance's API group is served under the name that a RESTMapper
// finds.
func TestNstanceTypesAreServed(t *testing.T) {
	addr, _ := start(t, t.TempDir())
	lists := must(typed(t, addr).Discovery().ServerPreferredResources())(t)
	kinds := map[string]bool{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			kinds[list.GroupVersion+" "+r.Kind] = true
		}
	}
	scheme := runtime.NewScheme()
	if err := nstance.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for kind, goType := range scheme.KnownTypes(nstance.GroupVersion) {
		if !strings.HasPrefix(kind, "Nstance") || strings.HasSuffix(kind, "List") {
			continue
		}
		seen++
		if !kinds[nstance.GroupVersion.String()+" "+kind] {
			t.Errorf("%s (%s) is not served", kind, goType)
		}
	}
	if seen < 5 {
		t.Errorf("only %d types were found", seen)
	}
}

// TestRefusals checks the errors for invalid requests.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	addr, _ := start(t, dir)
	for name, c := range map[string]struct {
		method, path, kind, accept, body string
		want                             int
	}{
		"no such group":       {method: "GET", path: "/apis/apps/v2/daemonsets", want: 404},
		"no such resource":    {method: "GET", path: "/api/v1/services", want: 404},
		"no such subresource": {method: "GET", path: "/api/v1/namespaces/default/configmaps/a/status", want: 404},
		"no namespace":        {method: "GET", path: "/api/v1/configmaps/a", want: 404},
		"cluster scope":       {method: "GET", path: "/api/v1/namespaces/default/nodes", want: 404},
		"protobuf only": {method: "GET", path: "/api/v1/nodes", accept: "application/vnd.kubernetes.protobuf",
			want: 406},
		"yaml": {method: "POST", path: "/api/v1/nodes", kind: "application/yaml",
			body: "metadata: {name: a}", want: 415},
		"server-side apply": {method: "PATCH", path: "/api/v1/nodes/a", kind: "application/apply-patch+yaml",
			body: "{}", want: 415},
		"not JSON":  {method: "POST", path: "/api/v1/nodes", body: "{", want: 400},
		"no object": {method: "POST", path: "/api/v1/nodes", body: "[]", want: 400},
		"no name":   {method: "POST", path: "/api/v1/nodes", body: "{}", want: 422},
		"another kind": {method: "POST", path: "/api/v1/nodes", body: `{"kind":"Pod","metadata":{"name":"a"}}`,
			want: 400},
		"another namespace": {method: "POST", path: "/api/v1/namespaces/default/pods",
			body: `{"metadata":{"name":"a","namespace":"b"}}`, want: 400},
		"odd metadata": {method: "POST", path: "/api/v1/nodes",
			body: `{"metadata":{"name":"a","labels":{"b":1}}}`, want: 400},
		"with a version": {method: "POST", path: "/api/v1/nodes",
			body: `{"metadata":{"name":"a","resourceVersion":"1"}}`, want: 400},
		"name with a slash": {method: "POST", path: "/api/v1/nodes", body: `{"metadata":{"name":"../a"}}`,
			want: 422},
		"name with dots":      {method: "GET", path: "/api/v1/nodes/%2e%2e", want: 422},
		"namespace with dots": {method: "GET", path: "/api/v1/namespaces/%2e%2e/pods/a", want: 422},
		"hidden slash":        {method: "GET", path: "/api/v1/nodes/..%2fa", want: 422},
		"long name": {method: "POST", path: "/api/v1/nodes", body: `{"metadata":{"name":"` +
			strings.Repeat("a", 251) + `"}}`, want: 422},
		"odd selector": {method: "GET", path: "/api/v1/nodes?labelSelector=a(", want: 400},
		"odd field":    {method: "GET", path: "/api/v1/nodes?fieldSelector=spec.taints=a", want: 400},
		"odd version":  {method: "GET", path: "/api/v1/nodes?watch=1&resourceVersion=x", want: 422},
		"odd dry run": {method: "POST", path: "/api/v1/nodes?dryRun=Some", body: `{"metadata":{"name":"a"}}`,
			want: 400},
		"version of tomorrow": {method: "GET", path: "/api/v1/nodes?resourceVersion=9000000000000000000", want: 504},
		"next page":           {method: "GET", path: "/api/v1/nodes?continue=abc", want: 410},
		"orphans":             {method: "DELETE", path: "/api/v1/nodes/a?propagationPolicy=Orphan", want: 422},
		"another method":      {method: "POST", path: "/api/v1/nodes/a", want: 405},
		"too large": {method: "POST", path: "/api/v1/nodes", body: `{"a":"` + strings.Repeat("a", maxBody) +
			`"}`, want: 413},
		"deletion, not there": {method: "DELETE", path: "/api/v1/nodes/nobody", want: 404},
		"patch, not there": {method: "PATCH", path: "/api/v1/nodes/nobody", kind: mergePatch, body: "{}",
			want: 404},
		"update, not there":    {method: "PUT", path: "/api/v1/nodes/nobody", body: "{}", want: 404},
		"status, not there":    {method: "GET", path: "/api/v1/nodes/nobody/status", want: 404},
		"openapi of version 2": {method: "GET", path: "/openapi/v2", want: 404},
	} {
		t.Run(name, func(t *testing.T) {
			req := must(http.NewRequestWithContext(t.Context(), c.method, "http://"+addr+c.path,
				strings.NewReader(c.body)))(t)
			if c.kind != "" {
				req.Header.Set("Content-Type", c.kind)
			}
			if c.accept != "" {
				req.Header.Set("Accept", c.accept)
			}
			resp := must(http.DefaultClient.Do(req))(t)
			defer resp.Body.Close()
			var status metav1.Status
			if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.want || int(status.Code) != c.want || status.Kind != "Status" ||
				status.Message == "" {
				t.Errorf("%s %s: %d, %+v", c.method, c.path, resp.StatusCode, status)
			}
		})
	}
	if entries := must(os.ReadDir(filepath.Dir(dir)))(t); len(entries) != 1 {
		t.Errorf("beside the directory there is something: %v", entries)
	}
}

// line is a TCP proxy. A test can cut its connections and change the server that it forwards to.
type line struct {
	addr string
	mu   sync.Mutex
	to   string
	open map[net.Conn]bool
}

func connect(t *testing.T, to string) *line {
	t.Helper()
	l := must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	c := &line{addr: l.Addr().String(), to: to, open: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close(); c.cut("") })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			server, err := net.Dial("tcp", c.to)
			if err != nil {
				_ = client.Close()
			} else {
				c.open[client], c.open[server] = true, true
				go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
				go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			}
			c.mu.Unlock()
		}
	}()
	return c
}

// cut closes all connections and forwards new connections to another server.
func (c *line) cut(to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close()
	}
	c.to, c.open = to, map[net.Conn]bool{}
}
