package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/objstoretest"
	"github.com/nstance-kit/nstance/services/store/objstore/s3"
)

var anyKeys = credentials.NewStaticCredentialsProvider("dev", "dev", "")

// start serves dir. It returns the URL and a function that stops the server.
func start(t *testing.T, dir string) (url string, stop func()) {
	t.Helper()
	return startWith(t, Options{Dir: dir})
}

func startWith(t *testing.T, o Options) (url string, stop func()) {
	t.Helper()
	o.Addr, o.Bucket = "127.0.0.1:0", "dev"
	ctx, cancel := context.WithCancel(context.Background())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Serve(ctx, o, slog.New(slog.DiscardHandler), write)
		_ = write.CloseWithError(fmt.Errorf("serve ended: %w", err))
		ended <- err
	}()
	var at string
	if _, err := fmt.Fscanf(read, "dev-s3: bucket dev in "+o.Dir+" at %s\n", &at); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return at, stop
}

func open(t *testing.T, url string) objstore.Store {
	t.Helper()
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	s, err := s3.New(t.Context(), objstore.Location{Bucket: "dev", Region: "us-east-1", Endpoint: url, PathStyle: true},
		anyKeys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// client returns a client of the AWS SDK with the SDK's default checksums. Tests use it for calls that package objstore
// does not make.
func client(url string, options ...func(*sdk.Options)) *sdk.Client {
	return sdk.New(sdk.Options{Region: "us-east-1", Credentials: anyKeys, BaseEndpoint: &url, UsePathStyle: true},
		options...)
}

func TestConformance(t *testing.T) {
	url, _ := start(t, t.TempDir())
	var n atomic.Int64
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		return objstore.WithPrefix(open(t, url), fmt.Sprintf("test-%d", n.Add(1)))
	})
}

// TestConformanceOfTwo runs the conformance suite on two servers that share one directory. Requests go to the two
// servers in turn, so each server must check conditions on objects that the other server wrote.
func TestConformanceOfTwo(t *testing.T) {
	dir := t.TempDir()
	one, _ := start(t, dir)
	two, _ := start(t, dir)
	var n atomic.Int64
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		prefix := fmt.Sprintf("test-%d", n.Add(1))
		return &spread{stores: [2]objstore.Store{objstore.WithPrefix(open(t, one), prefix),
			objstore.WithPrefix(open(t, two), prefix)}}
	})
}

// spread sends requests to two stores in turn.
type spread struct {
	stores [2]objstore.Store
	n      atomic.Uint64
}

func (s *spread) next() objstore.Store { return s.stores[s.n.Add(1)%2] }

func (s *spread) Get(ctx context.Context, key string) (objstore.Object, error) {
	return s.next().Get(ctx, key)
}

func (s *spread) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token, error) {
	return s.next().Put(ctx, key, body, cond)
}

func (s *spread) Delete(ctx context.Context, key string) error { return s.next().Delete(ctx, key) }

func (s *spread) List(ctx context.Context, prefix string) ([]objstore.Entry, error) {
	return s.next().List(ctx, prefix)
}

func TestRestart(t *testing.T) {
	dir := t.TempDir()
	url, stop := start(t, dir)
	token, err := open(t, url).Put(t.Context(), "cluster/ca.crt", []byte("PEM"), objstore.IfAbsent())
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if body, err := os.ReadFile(filepath.Join(dir, "cluster", "ca.crt")); err != nil || string(body) != "PEM" {
		t.Errorf("file holds %q, %v", body, err)
	}
	url, _ = start(t, dir)
	if _, err := open(t, url).Put(t.Context(), "cluster/ca.crt", []byte("new"), objstore.IfToken(token)); err != nil {
		t.Errorf("the ETag did not survive the restart: %v", err)
	}
}

// TestStopFinishesRequests checks that a stopping server completes a running upload, and that the uploaded object is in
// the directory.
func TestStopFinishesRequests(t *testing.T) {
	dir := t.TempDir()
	url, stop := start(t, dir)
	body, feed := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/dev/slow", body)
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = 8
	// With this header, the transport sends the body only when the handler reads it. So the handler is running when the
	// first half is sent.
	request.Header.Set("Expect", "100-continue")
	patient := &http.Transport{ExpectContinueTimeout: time.Hour}
	defer patient.CloseIdleConnections()
	status := make(chan string, 1)
	go func() {
		response, err := patient.RoundTrip(request)
		if err != nil {
			status <- err.Error()
			return
		}
		_ = response.Body.Close()
		status <- response.Status
	}()
	if _, err := io.WriteString(feed, "half"); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	// A closed listener shows that the server is stopping.
	for {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	if _, err := io.WriteString(feed, "half"); err != nil {
		t.Fatal(err)
	}
	_ = feed.Close()
	if got := <-status; got != "200 OK" {
		t.Errorf("running upload: %s", got)
	}
	<-stopped
	if body, err := os.ReadFile(filepath.Join(dir, "slow")); err != nil || string(body) != "halfhalf" {
		t.Errorf("file holds %q, %v", body, err)
	}
}

// TestStopDropsUnusedConnections checks that a connection without a request does not delay the stop.
func TestStopDropsUnusedConnections(t *testing.T) {
	url, stop := start(t, t.TempDir())
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server accepts connections in the order in which they were opened. So when it answers this request, it has
	// also accepted the unused connection.
	if _, err := open(t, url).List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	stop() // fails if it has to close connections by force
}

func put(t *testing.T, c *sdk.Client, key, body string) {
	t.Helper()
	if _, err := c.PutObject(t.Context(), &sdk.PutObjectInput{Bucket: aws.String("dev"), Key: &key,
		Body: strings.NewReader(body)}); err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
}

func TestVirtualHost(t *testing.T) {
	dir := t.TempDir()
	url, _ := start(t, dir)
	address := strings.TrimPrefix(url, "http://")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	c := client("http://localhost:"+port, func(o *sdk.Options) {
		o.UsePathStyle = false
		o.HTTPClient = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network,
			host string) (net.Conn, error) {
			hosts = append(hosts, host) // names below localhost do not resolve everywhere
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}}}
	})
	put(t, c, "a/b", "x")
	if body, err := os.ReadFile(filepath.Join(dir, "a", "b")); err != nil || string(body) != "x" {
		t.Errorf("file holds %q, %v", body, err)
	}
	if len(hosts) == 0 || hosts[0] != "dev.localhost:"+port {
		t.Errorf("the SDK sent requests to %q", hosts)
	}
}

func TestListWithDelimiter(t *testing.T) {
	url, _ := start(t, t.TempDir())
	c := client(url)
	for _, key := range []string{"a/1", "a/2", "b", "c/d/1", "c/d/2", "c/e", "c/f/1", "d"} {
		put(t, c, key, key)
	}
	list := func(prefix string, size int32) (got []string) {
		pages := sdk.NewListObjectsV2Paginator(c, &sdk.ListObjectsV2Input{
			Bucket: aws.String("dev"), Prefix: &prefix, Delimiter: aws.String("/"), MaxKeys: &size,
		})
		for pages.HasMorePages() {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n := len(page.Contents) + len(page.CommonPrefixes); n > int(size) || n == 0 {
				t.Errorf("page of %d entries, want at most %d", n, size)
			}
			for _, p := range page.CommonPrefixes {
				got = append(got, *p.Prefix)
			}
			for _, o := range page.Contents {
				got = append(got, *o.Key)
			}
		}
		return got
	}
	for _, size := range []int32{1, 1000} {
		for prefix, want := range map[string][]string{
			"":   {"a/", "b", "c/", "d"},
			"c/": {"c/d/", "c/e", "c/f/"},
		} {
			got := list(prefix, size)
			if size > 1 { // prefixes come first within a page
				want = append([]string(nil), want...)
				stable(want)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q by %d (-want +got):\n%s", prefix, size, diff)
			}
		}
	}
}

// stable sorts prefixes before keys.
func stable(names []string) {
	var prefixes, keys []string
	for _, n := range names {
		if strings.HasSuffix(n, "/") {
			prefixes = append(prefixes, n)
		} else {
			keys = append(keys, n)
		}
	}
	copy(names, append(prefixes, keys...))
}

func TestOtherRequests(t *testing.T) {
	ctx := t.Context()
	url, _ := start(t, t.TempDir())
	c := client(url)
	dev := aws.String("dev")
	put(t, c, "k", "0123456789")

	head, err := c.HeadObject(ctx, &sdk.HeadObjectInput{Bucket: dev, Key: aws.String("k")})
	if err != nil || *head.ContentLength != 10 || *head.ETag != `"781e5e245d69b566979b86e28d23f2c7"` ||
		head.LastModified == nil {
		t.Errorf("head = %+v, %v", head, err)
	}
	part, err := c.GetObject(ctx, &sdk.GetObjectInput{Bucket: dev, Key: aws.String("k"),
		Range: aws.String("bytes=2-4")})
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(part.Body); err != nil || string(body) != "234" {
		t.Errorf("range = %q, %v", body, err)
	}
	if _, err := c.CopyObject(ctx, &sdk.CopyObjectInput{Bucket: dev, Key: aws.String("copy"),
		CopySource: aws.String("dev/k")}); err != nil {
		t.Errorf("copy: %v", err)
	}
	if copied, err := c.HeadObject(ctx, &sdk.HeadObjectInput{Bucket: dev, Key: aws.String("copy")}); err != nil ||
		*copied.ETag != *head.ETag {
		t.Errorf("copy has %+v, %v", copied, err)
	}
	buckets, err := c.ListBuckets(ctx, &sdk.ListBucketsInput{})
	if err != nil || len(buckets.Buckets) != 1 || *buckets.Buckets[0].Name != "dev" {
		t.Errorf("buckets = %+v, %v", buckets, err)
	}
	removed, err := c.DeleteObjects(ctx, &sdk.DeleteObjectsInput{Bucket: dev,
		Delete: &types.Delete{Objects: []types.ObjectIdentifier{
			{Key: aws.String("k")}, {Key: aws.String("copy")}, {Key: aws.String("../x")},
		}}})
	if err != nil || len(removed.Deleted) != 2 || len(removed.Errors) != 1 {
		t.Errorf("delete = %+v, %v", removed, err)
	}
	if left, err := c.ListObjectsV2(ctx, &sdk.ListObjectsV2Input{Bucket: dev}); err != nil || len(left.Contents) != 0 {
		t.Errorf("left = %+v, %v", left, err)
	}
}

func TestErrors(t *testing.T) {
	ctx := t.Context()
	url, _ := start(t, t.TempDir())
	c := client(url, func(o *sdk.Options) { o.RetryMaxAttempts = 1 })
	put(t, c, "dir/k", "x")
	dev, other, key := aws.String("dev"), aws.String("other"), aws.String("k")
	for name, call := range map[string]struct {
		code string
		call func() error
	}{
		"get from another bucket": {"NoSuchBucket", func() error {
			_, err := c.GetObject(ctx, &sdk.GetObjectInput{Bucket: other, Key: key})
			return err
		}},
		"put to another bucket": {"NoSuchBucket", func() error {
			_, err := c.PutObject(ctx, &sdk.PutObjectInput{Bucket: other, Key: key})
			return err
		}},
		"delete in another bucket": {"NoSuchBucket", func() error {
			_, err := c.DeleteObject(ctx, &sdk.DeleteObjectInput{Bucket: other, Key: key})
			return err
		}},
		"list of another bucket": {"NoSuchBucket", func() error {
			_, err := c.ListObjectsV2(ctx, &sdk.ListObjectsV2Input{Bucket: other})
			return err
		}},
		"get of nothing": {"NoSuchKey", func() error {
			_, err := c.GetObject(ctx, &sdk.GetObjectInput{Bucket: dev, Key: key})
			return err
		}},
		"put of a directory": {"InvalidArgument", func() error {
			_, err := c.PutObject(ctx, &sdk.PutObjectInput{Bucket: dev, Key: aws.String("dir")})
			return err
		}},
		"put of the lock": {"InvalidArgument", func() error {
			_, err := c.PutObject(ctx, &sdk.PutObjectInput{Bucket: dev, Key: aws.String(".objstore/lock")})
			return err
		}},
		"bucket again": {"BucketAlreadyExists", func() error {
			_, err := c.CreateBucket(ctx, &sdk.CreateBucketInput{Bucket: dev})
			return err
		}},
		"another bucket": {"NotImplemented", func() error {
			_, err := c.CreateBucket(ctx, &sdk.CreateBucketInput{Bucket: other})
			return err
		}},
		"bucket removed": {"NotImplemented", func() error {
			_, err := c.DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: dev})
			return err
		}},
		"odd condition": {"NotImplemented", func() error {
			_, err := c.PutObject(ctx, &sdk.PutObjectInput{Bucket: dev, Key: key, IfNoneMatch: aws.String(`"etag"`)})
			return err
		}},
		"two conditions": {"NotImplemented", func() error {
			_, err := c.PutObject(ctx, &sdk.PutObjectInput{Bucket: dev, Key: key, IfNoneMatch: aws.String("*"),
				IfMatch: aws.String(`"etag"`)})
			return err
		}},
		"replace of nothing": {"PreconditionFailed", func() error {
			_, err := c.PutObject(ctx, &sdk.PutObjectInput{Bucket: dev, Key: key, IfMatch: aws.String(`"etag"`)})
			return err
		}},
	} {
		var answer smithy.APIError
		if err := call.call(); !errors.As(err, &answer) || answer.ErrorCode() != call.code {
			t.Errorf("%s: %v, want %s", name, err, call.code)
		}
	}
}

// TestUnknownFraming checks that an upload with unsupported chunk headers is not stored with these headers.
func TestUnknownFraming(t *testing.T) {
	dir := t.TempDir()
	url, _ := start(t, dir)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/dev/k",
		strings.NewReader("1\r\nx\r\n0\r\n\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusNotImplemented ||
		!bytes.Contains(text, []byte("AWS_REQUEST_CHECKSUM_CALCULATION")) {
		t.Errorf("answer %s: %s, %v", response.Status, text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "k")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the object was stored: %v", err)
	}
}

// TestAccessKey checks that the server refuses a request unless the request names the access key ID from AccessKeyFile.
func TestAccessKey(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "access-key")
	if err := os.WriteFile(keyFile, []byte("AKRANDOM\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _ := startWith(t, Options{Dir: t.TempDir(), AccessKeyFile: keyFile})
	with := func(id string) *sdk.Client {
		return client(url, func(o *sdk.Options) {
			o.Credentials = credentials.NewStaticCredentialsProvider(id, "any", "")
		})
	}
	bucket, key := "dev", "a/b"
	input := &sdk.GetObjectInput{Bucket: &bucket, Key: &key}
	put(t, with("AKRANDOM"), key, "x")
	if _, err := with("AKRANDOM").GetObject(t.Context(), input); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"dev", "AKRANDO", "AKRANDOM2"} {
		var refused smithy.APIError
		if _, err := with(id).GetObject(t.Context(), input); !errors.As(err, &refused) ||
			refused.ErrorCode() != "InvalidAccessKeyId" {
			t.Errorf("access key ID %s: %v", id, err)
		}
	}
	for id, want := range map[string]int{"AKRANDOM": 200, "dev": 403} {
		signed, err := sdk.NewPresignClient(with(id)).PresignGetObject(t.Context(), input)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get(signed.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("presigned by %s: status %d, want %d", id, resp.StatusCode, want)
		}
	}
	resp, err := http.Get(url + "/dev/a/b")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("unsigned: status %d", resp.StatusCode)
	}
	for _, o := range []Options{{Dir: t.TempDir(), AccessKeyFile: keyFile + ".missing"}, {Dir: t.TempDir(),
		AccessKeyFile: os.DevNull}} {
		o.Addr, o.Bucket = "127.0.0.1:0", "dev"
		if err := Serve(t.Context(), o, slog.New(slog.DiscardHandler), io.Discard); err == nil {
			t.Errorf("dev-s3 starts with the access key file %s", o.AccessKeyFile)
		}
	}
}

func TestServeFails(t *testing.T) {
	taken := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, o := range map[string]Options{
		"a bad bucket name": {Addr: "127.0.0.1:0", Dir: t.TempDir(), Bucket: "Not_A_Bucket"},
		"no directory":      {Addr: "127.0.0.1:0", Dir: taken, Bucket: "dev"},
		"an address in use": {Addr: listener.Addr().String(), Dir: t.TempDir(), Bucket: "dev"},
	} {
		if err := Serve(t.Context(), o, slog.New(slog.DiscardHandler), io.Discard); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
