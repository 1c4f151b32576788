package storage_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/api/option"
	api "google.golang.org/api/storage/v1"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/gcs"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
)

// TestConformanceFakeGCSServer runs the conformance suite against fake-gcs-server, which is not part of this
// repository.
func TestConformanceFakeGCSServer(t *testing.T) {
	if testing.Short() {
		t.Log("fake-gcs-server is left out of a short run")
		return
	}
	url := startFakeGCSServer(t)
	var n atomic.Int64
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		client := &http.Client{Transport: googlecloud.Record(missingObjects{http.DefaultTransport})}
		store := open(t, []option.ClientOption{option.WithEndpoint(url + "/storage/v1/"),
			option.WithHTTPClient(client)})
		return objstore.WithPrefix(store, fmt.Sprintf("test-%d", n.Add(1)))
	})
}

// TestConformanceRealService runs the conformance suite in the bucket NSTANCE_TEST_GCS_BUCKET, with the default
// credentials.
func TestConformanceRealService(t *testing.T) {
	name := os.Getenv("NSTANCE_TEST_GCS_BUCKET")
	if name == "" {
		t.Log("NSTANCE_TEST_GCS_BUCKET names no bucket")
		return
	}
	access, err := googlecloud.Open(t.Context(), cloud.Federation{})
	if err != nil {
		t.Fatal(err)
	}
	access.Client.Transport = patient{access.Client.Transport}
	store, err := gcs.New(t.Context(), name, access.Options("storage")...)
	if err != nil {
		t.Fatal(err)
	}
	run := time.Now().UnixNano()
	var n atomic.Int64
	objstoretest.Run(t, func(*testing.T) objstore.Store {
		return objstore.WithPrefix(store, fmt.Sprintf("test-%d-%d", run, n.Add(1)))
	})
}

// patient is a transport that repeats a request when the service refuses it because of its rate limit. The service
// allows about one write a second to an object, but the conformance suite writes more often. A refused write had no
// effect.
type patient struct{ base http.RoundTripper }

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		resp, err := p.base.RoundTrip(r)
		if err != nil || resp.StatusCode != http.StatusTooManyRequests || r.GetBody == nil {
			return resp, err
		}
		_ = resp.Body.Close()
		time.Sleep(time.Second)
		if r.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
}

// missingObjects is a transport that changes the text of all answers with status 404. Afterwards they have the text
// that the real service sends for a missing object. fake-gcs-server sends the same text for missing objects and missing
// buckets.
type missingObjects struct{ base http.RoundTripper }

func (m missingObjects) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := m.base.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusNotFound {
		_ = resp.Body.Close()
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader("No such object: x")), -1
	}
	return resp, err
}

// startFakeGCSServer starts fake-gcs-server with an empty bucket in memory, and returns the URL of that server.
func startFakeGCSServer(t *testing.T) string {
	t.Helper()
	build := exec.CommandContext(t.Context(), "../../../../scripts/tool.sh", "fake-gcs-server")
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		t.Fatalf("build fake-gcs-server: %v", err)
	}
	port := freePort(t)
	server := exec.Command(strings.TrimSpace(string(out)), "-scheme", "http", "-host", "127.0.0.1", "-port", port,
		"-backend", "memory", "-public-host", "127.0.0.1:"+port, "-log-level", "error")
	var output bytes.Buffer
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Logf("output of fake-gcs-server:\n%s", output.String())
		}
	})
	url := "http://127.0.0.1:" + port
	service, err := api.NewService(t.Context(), option.WithHTTPClient(http.DefaultClient),
		option.WithEndpoint(url+"/storage/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := service.Buckets.Insert("test", &api.Bucket{Name: "bucket"}).Context(t.Context()).Do()
		if err == nil {
			return url
		}
		if time.Now().After(deadline) {
			t.Fatalf("create bucket: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
