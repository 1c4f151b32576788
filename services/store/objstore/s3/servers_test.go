package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
)

const bucket = "test-bucket"

var testKeys = credentials.NewStaticCredentialsProvider("access", "secret-of-the-test", "")

// hermetic hides the machine's profiles and variables from the test.
func hermetic(t *testing.T) {
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none"))
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
		"AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CA_BUNDLE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func open(t *testing.T, endpoint string) *s3.Store {
	t.Helper()
	s, err := s3.New(t.Context(), objstore.Location{Bucket: bucket, Endpoint: endpoint, PathStyle: true}, testKeys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh gives each test its own prefix, because all tests use the same bucket.
func fresh(endpoint string) func(t *testing.T) objstore.Store {
	began := time.Now().UnixNano()
	var n atomic.Int64
	return func(t *testing.T) objstore.Store {
		return objstore.WithPrefix(open(t, endpoint), fmt.Sprintf("test-%d-%d", began, n.Add(1)))
	}
}

func TestConformanceGofakes3(t *testing.T) {
	hermetic(t)
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	objstoretest.Run(t, fresh(server.URL))
}

func TestConformanceVersitygw(t *testing.T) {
	if testing.Short() {
		t.Log("the real S3 server is left out of a short run")
		return
	}
	hermetic(t)
	line := versitygw(t)
	objstoretest.Run(t, fresh(line.url()))
	t.Run("LostResponses", func(t *testing.T) { testLostResponses(t, line) })
}

// TestConformanceEndpoint runs the suite on the S3 server whose URL is in NSTANCE_TEST_S3. The server must accept the
// access keys that this test uses.
func TestConformanceEndpoint(t *testing.T) {
	endpoint := os.Getenv("NSTANCE_TEST_S3")
	if endpoint == "" {
		t.Log("run by hand, to test another server")
		return
	}
	hermetic(t)
	createBucket(t, endpoint)
	objstoretest.Run(t, fresh(endpoint))
}

// testLostResponses lets the real server execute a request and cuts the connection before the answer.
func testLostResponses(t *testing.T, line *line) {
	ctx, s := t.Context(), open(t, line.url())
	put := func(body string, cond objstore.Condition) (objstore.Token, error) {
		return s.Put(ctx, "lost/lock", []byte(body), cond)
	}
	line.deaf.Store(true)
	_, err := put("term 1", objstore.IfAbsent())
	line.deaf.Store(false)
	wantErr(t, "put with a lost response", err, objstore.ErrIndeterminate)
	obj, err := s.Get(ctx, "lost/lock")
	if err != nil || string(obj.Body) != "term 1" {
		t.Fatalf("the write did not happen: %q, %v", obj.Body, err)
	}

	line.deaf.Store(true)
	_, err = objstore.Settle(ctx, s, "lost/lock", []byte("term 2"), objstore.IfToken(obj.Token),
		func(context.Context, time.Duration) error {
			line.deaf.Store(false) // after the first put and the first read
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	obj, err = s.Get(ctx, "lost/lock")
	if err != nil || string(obj.Body) != "term 2" {
		t.Fatalf("settled, and holds %q, %v", obj.Body, err)
	}
	_, err = put("term 3", objstore.IfAbsent())
	wantErr(t, "put after all that", err, objstore.ErrConflict)
}

// versitygw starts the real S3 server on a directory. It returns a [line] that forwards connections to the server.
func versitygw(t *testing.T) *line {
	t.Helper()
	binary := os.Getenv("NSTANCE_VERSITYGW")
	if binary == "" {
		build := exec.CommandContext(t.Context(), "../../../../scripts/tool.sh", "versitygw")
		build.Stderr = os.Stderr
		out, err := build.Output()
		if err != nil {
			t.Fatalf("build versitygw: %v", err)
		}
		binary = strings.TrimSpace(string(out))
	}
	dir := t.TempDir()
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "socket")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	// --disableotmp is needed. Without it, version 1.8.0 lists its own temporary files (".doc.sgwtmp.…") while objects
	// are replaced.
	server := exec.Command(binary, "--quiet", "--keep-alive", "--port", socket, "--access", "access", "--secret",
		"secret-of-the-test", "posix", "--disableotmp", data)
	var output bytes.Buffer
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Logf("output of versitygw:\n%s", output.String())
		}
	})
	line := startLine(t, socket)
	createBucket(t, line.url())
	return line
}

// createBucket creates the bucket of the tests, if there is none. Until the server listens, the SDK retries.
func createBucket(t *testing.T, endpoint string) {
	t.Helper()
	client := sdk.New(sdk.Options{
		Region: "us-east-1", Credentials: testKeys, BaseEndpoint: aws.String(endpoint), UsePathStyle: true,
		RetryMaxAttempts: 20,
	})
	_, err := client.CreateBucket(t.Context(), &sdk.CreateBucketInput{Bucket: aws.String(bucket)})
	if _, exists := errors.AsType[*types.BucketAlreadyOwnedByYou](err); err != nil && !exists {
		t.Fatalf("create bucket: %v", err)
	}
}

// line forwards TCP connections to a socket. While deaf is true, it drops the server's answers: when one arrives, it
// closes the connection.
type line struct {
	listener net.Listener
	deaf     atomic.Bool
}

func (l *line) url() string { return "http://" + l.listener.Addr().String() }

func startLine(t *testing.T, socket string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{listener: listener}
	var running sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	track := func(c net.Conn) { mu.Lock(); open[c] = true; mu.Unlock() }
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			track(client)
			running.Go(func() {
				defer client.Close()
				server, err := net.Dial("unix", socket)
				if err != nil {
					return
				}
				track(server)
				running.Go(func() {
					_, _ = io.Copy(server, client)
					_ = server.Close()
				})
				l.answer(client, server)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l
}

// answer forwards the server's answers until one side closes the connection, or an answer arrives while deaf is true.
func (l *line) answer(client, server net.Conn) {
	defer server.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil || l.deaf.Load() {
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}
