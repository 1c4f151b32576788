package googlesecretmanager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/api/secretmanager/v1"

	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/services/store/secretstore/secretstoretest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakegcp/secretmanager"
)

// serve serves a fake Secret Manager and returns a client of it.
func serve(t *testing.T, cloud *fake.SecretManager) (*rest.Server, *secretmanager.Service) {
	t.Helper()
	return serveHandlers(t, cloud.Handlers())
}

func serveHandlers(t *testing.T, handlers map[string]rest.Handler) (*rest.Server, *secretmanager.Service) {
	t.Helper()
	server, err := rest.New("secretmanager", "v1", handlers, nil)
	if err != nil {
		t.Fatal(err)
	}
	return server, listen(t, server)
}

// listen serves a handler and returns a client of it.
func listen(t *testing.T, handler http.Handler) *secretmanager.Service {
	t.Helper()
	listener := httptest.NewServer(handler)
	t.Cleanup(listener.Close)
	service, err := secretmanager.NewService(t.Context(), option.WithEndpoint(listener.URL+"/"),
		option.WithHTTPClient(http.DefaultClient))
	if err != nil {
		t.Fatal(err)
	}
	return service
}

func TestConformance(t *testing.T) {
	for name, lag := range map[string]int{"current": 0, "latest lags behind": 2} {
		t.Run(name, func(t *testing.T) {
			secretstoretest.Run(t, func(t *testing.T) (a, b secretstore.Store) {
				cloud := fake.New()
				cloud.Lag = lag
				_, service := serve(t, cloud)
				return New(service, "p", "nstance/example/"), New(service, "p", "nstance/example/")
			})
		})
	}
}

func TestPrefixes(t *testing.T) {
	_, service := serve(t, fake.New())
	secretstoretest.Prefixes(t, func(prefix string) secretstore.Store { return New(service, "p", prefix) })
}

// TestDamagedAnswers checks that only a complete payload counts as the secret.
func TestDamagedAnswers(t *testing.T) {
	const content = "123456789"
	for name, test := range map[string]struct {
		version, payload string
		valid            bool
	}{
		"checksum":       {"1", `, "payload": {"data": "MTIzNDU2Nzg5", "dataCrc32c": "3808858755"}`, true},
		"no checksum":    {"1", `, "payload": {"data": "MTIzNDU2Nzg5"}`, true},
		"wrong checksum": {"1", `, "payload": {"data": "MTIzNDU2Nzg4", "dataCrc32c": "3808858755"}`, false},
		"cut off":        {"1", `, "payload": {"data": "MTIzNDU2Nzg"}`, false},
		"no payload":     {"1", "", false},
		"no version":     {"latest", `, "payload": {"data": "MTIzNDU2Nzg5"}`, false},
	} {
		service := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, "/latest") {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			fmt.Fprintf(w, `{"name": "projects/p/secrets/x/versions/%s"%s}`, test.version, test.payload)
		}))
		secret, err := New(service, "p", "").Get(t.Context(), "x")
		if (err == nil) != test.valid || test.valid && string(secret.Value.Reveal()) != content {
			t.Errorf("%s: %q, %v, want valid %v", name, secret.Value.Reveal(), err, test.valid)
		}
	}
}

// TestOtherCreator checks that a put replaces a secret that another writer creates at the same time.
func TestOtherCreator(t *testing.T) {
	server, service := serve(t, fake.New())
	server.Refuse("secretmanager.projects.secrets.create", &rest.Error{Code: http.StatusConflict})
	if err := New(service, "p", "").Put(t.Context(), "x", secretstore.NewValue([]byte("x")),
		secretstore.Any); err != nil {
		t.Error(err)
	}
}

// TestDisabledVersion checks that a secret that a person has disabled does not count as missing.
func TestDisabledVersion(t *testing.T) {
	_, service := serve(t, fake.New())
	store := New(service, "p", "")
	value := secretstore.NewValue([]byte("x"))
	if err := store.Put(t.Context(), "ca.key", value, secretstore.IfAbsent); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Projects.Secrets.Versions.Disable("projects/p/secrets/ca_2ekey/versions/1",
		&secretmanager.DisableSecretVersionRequest{}).Do(); err != nil {
		t.Fatal(err)
	}
	_, err := store.Get(t.Context(), "ca.key")
	if err == nil || errors.Is(err, secretstore.ErrNotFound) || !strings.Contains(err.Error(), "enable it") {
		t.Errorf("get: %v", err)
	}
	if err := store.Put(t.Context(), "ca.key", value, secretstore.IfAbsent); err == nil {
		t.Error("a second one was created")
	}
}

// TestAbandonedCreation checks that a secret without a version is created again, but only after its creator can no
// longer add one.
func TestAbandonedCreation(t *testing.T) {
	cloud := fake.New()
	server, service := serve(t, cloud)
	store := New(service, "p", "")
	now := time.Now()
	store.now = func() time.Time { return now }
	store.sleep = func(context.Context, time.Duration) error { now = now.Add(5 * time.Second); return nil }
	cloud.Now = store.now
	value := secretstore.NewValue([]byte("x"))
	server.Refuse("secretmanager.projects.secrets.addVersion", &rest.Error{Code: http.StatusInternalServerError})
	if err := store.Put(t.Context(), "x", value, secretstore.IfAbsent); err == nil {
		t.Fatal("the creation succeeded")
	}
	if err := store.Put(t.Context(), "x", value, secretstore.IfAbsent); err == nil ||
		errors.Is(err, secretstore.ErrExists) || !strings.Contains(err.Error(), "its creator") {
		t.Errorf("put while the creator may work: %v", err)
	}
	if _, err := store.Get(t.Context(), "x"); !errors.Is(err, secretstore.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	now = now.Add(abandonedAfter)
	if err := store.Put(t.Context(), "x", value, secretstore.IfAbsent); err != nil {
		t.Errorf("put after a minute: %v", err)
	}
}

// TestRemovalOfAbandonedCreation has answers to the removal of an abandoned secret, and to the question for its age.
func TestRemovalOfAbandonedCreation(t *testing.T) {
	for name, test := range map[string]struct {
		refused int    // status of the first removal
		created string // replaces the time of the creation
		want    string // "" means success
	}{
		"removed":                       {0, "", ""},
		"another caller has removed it": {http.StatusNotFound, "", ""},
		"it has changed":                {http.StatusBadRequest, "", ""},
		"not allowed":                   {http.StatusForbidden, "", "403"},
		"no time":                       {0, "yesterday", "its creator"},
	} {
		cloud := fake.New()
		handlers := cloud.Handlers()
		get := handlers["secretmanager.projects.secrets.get"]
		handlers["secretmanager.projects.secrets.get"] = func(c *rest.Call) (any, error) {
			answer, err := get(c)
			if test.created != "" {
				answer.(map[string]any)["createTime"] = test.created
			}
			return answer, err
		}
		server, service := serveHandlers(t, handlers)
		store := New(service, "p", "")
		now := time.Now().Add(abandonedAfter)
		store.now = func() time.Time { return now }
		store.sleep = func(context.Context, time.Duration) error { now = now.Add(time.Second); return nil }
		if _, err := store.createEmpty(t.Context(), store.resource("x")); err != nil {
			t.Fatal(err)
		}
		if test.refused != 0 {
			server.Refuse("secretmanager.projects.secrets.delete", &rest.Error{Code: test.refused})
		}
		err := store.Put(t.Context(), "x", secretstore.NewValue([]byte("x")), secretstore.IfAbsent)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: put: %v, want %q", name, err, test.want)
		}
	}
}

// TestIDs checks that the ID of a name decodes to the same name. It also checks that decodeID refuses a text that is
// not the ID of any name.
func TestIDs(t *testing.T) {
	for name, id := range map[string]string{"ca.key": "ca_2ekey", "a_b": "a_5fb",
		"nstance/c/x-1": "nstance_2fc_2fx-1", "azAZ09-": "azAZ09-", "`{@[/:._": "_60_7b_40_5b_2f_3a_2e_5f"} {
		if got := EncodeID(name); got != id {
			t.Errorf("%q has ID %q, want %q", name, got, id)
		}
		if got := decodeID(id); got != name {
			t.Errorf("ID %q is %q, want %q", id, got, name)
		}
	}
	for _, id := range []string{"a_", "a_2", "a_zz", "a_61", "a_2E"} {
		if got := decodeID(id); got != "" {
			t.Errorf("ID %q is %q", id, got)
		}
	}
}

// TestTooLong checks that a name whose ID would be too long is refused before anything is sent.
func TestTooLong(t *testing.T) {
	server, service := serve(t, fake.New())
	err := New(service, "p", strings.Repeat("/", 60)).Put(t.Context(), strings.Repeat("n", 128),
		secretstore.NewValue([]byte("x")), secretstore.Any)
	if !errors.Is(err, secretstore.ErrInvalid) || len(server.Calls()) > 0 {
		t.Errorf("put: %v after %d calls", err, len(server.Calls()))
	}
}
