package storage_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/api/option"
	api "google.golang.org/api/storage/v1"

	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/gcs"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/storage"
)

// serve starts an HTTP server for the fake. It returns the options with which a client of Cloud Storage uses this
// server.
func serve(t *testing.T, fake *storage.Storage) []option.ClientOption {
	t.Helper()
	server, err := rest.New("storage", "v1", fake.Handlers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	return []option.ClientOption{option.WithEndpoint(listener.URL + "/storage/v1/"),
		option.WithHTTPClient(&http.Client{Transport: googlecloud.Record(http.DefaultTransport)})}
}

func open(t *testing.T, options []option.ClientOption) objstore.Store {
	t.Helper()
	store, err := gcs.New(t.Context(), "bucket", options...)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestConformance(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, serve(t, storage.New("bucket"))) })
}

// TestOneWriteASecond checks that a second write to an object within a second fails with ErrIndeterminate. A caller
// repeats the write after this error.
func TestOneWriteASecond(t *testing.T) {
	fake := storage.New("bucket")
	fake.OneWriteASecond = true
	store := open(t, serve(t, fake))
	token, err := store.Put(t.Context(), "lock", []byte("1"), objstore.IfAbsent())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), "lock", []byte("2"), objstore.IfToken(token)); !errors.Is(err,
		objstore.ErrIndeterminate) {
		t.Errorf("second write: %v", err)
	}
	if _, err := store.Put(t.Context(), "lock", []byte("2"), objstore.IfAbsent()); !errors.Is(err,
		objstore.ErrConflict) {
		t.Errorf("write under a condition that does not hold: %v", err)
	}
	if _, err := objstore.Settle(t.Context(), store, "lock", []byte("2"), objstore.IfToken(token), nil); err != nil {
		t.Errorf("settle: %v", err)
	}
}

// TestEveryVerbChecksGenerations checks that a read or delete with a wrong generation is refused. The other tests use a
// client that sends no generation with reads and deletes.
func TestEveryVerbChecksGenerations(t *testing.T) {
	options := serve(t, storage.New("bucket"))
	store := open(t, options)
	if _, err := store.Put(t.Context(), "k", nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	service, err := api.NewService(t.Context(), options...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := service.Objects.Get("bucket", "k").IfGenerationMatch(1).Do(); googlecloud.StatusOf(err) != 412 {
		t.Errorf("get: %v", err)
	}
	if err := service.Objects.Delete("bucket", "k").IfGenerationMatch(1).Do(); googlecloud.StatusOf(err) != 412 {
		t.Errorf("delete: %v", err)
	}
}

// TestMissingBucket checks that a missing bucket is not reported as a missing object.
func TestMissingBucket(t *testing.T) {
	store := open(t, serve(t, storage.New("another")))
	if _, err := store.Get(t.Context(), "k"); err == nil || errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := store.Put(t.Context(), "k", nil, objstore.IfAbsent()); err == nil ||
		errors.Is(err, objstore.ErrIndeterminate) {
		t.Errorf("put: %v", err)
	}
}
