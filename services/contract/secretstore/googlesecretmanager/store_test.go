package googlesecretmanager

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/api/secretmanager/v1"

	"github.com/nstance-kit/nstance/services/contract/secretstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore/secretstoretest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	fake "github.com/nstance-kit/nstance/tests/cloud/fakegcp/secretmanager"
)

// serve serves a fake Secret Manager and returns a client of it.
func serve(t *testing.T, cloud *fake.SecretManager) (*rest.Server, *secretmanager.Service) {
	t.Helper()
	server, err := rest.New("secretmanager", "v1", cloud.Handlers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	service, err := secretmanager.NewService(t.Context(), option.WithEndpoint(listener.URL+"/"),
		option.WithHTTPClient(http.DefaultClient))
	if err != nil {
		t.Fatal(err)
	}
	return server, service
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

// TestIDs checks that the ID of a name decodes to the same name. It also checks that decodeID refuses a text that is
// not the ID of any name.
func TestIDs(t *testing.T) {
	for name, id := range map[string]string{"ca.key": "ca_2ekey", "a_b": "a_5fb",
		"nstance/c/x-1": "nstance_2fc_2fx-1"} {
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
