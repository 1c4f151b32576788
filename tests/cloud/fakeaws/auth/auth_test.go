package auth_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/auth"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

const access, secret, token = "ASIAEXAMPLE", "wJalrXUtnFEMI/K7MDENG", "session/token+=="

// captured is a request as a server received it.
type captured struct {
	request *http.Request
	body    string
}

// capture starts a server. It returns a client configuration for the server and the last request that the server
// received.
func capture(t *testing.T, token string) (aws.Config, *captured) {
	t.Helper()
	got := &captured{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got.request, got.body = r.Clone(t.Context()), string(body)
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(server.Close)
	return aws.Config{
		Region: "us-west-2", BaseEndpoint: aws.String(server.URL), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, token),
	}, got
}

// verify checks the captured request as the fake AWS does.
func (c *captured) verify(t *testing.T, key auth.Key, now time.Time) error {
	t.Helper()
	r := c.request.Clone(t.Context())
	s, err := auth.Read(r)
	if err != nil || s == nil {
		t.Fatalf("read: %v %v", s, err)
	}
	body := []byte(c.body)
	if s.Service == "s3" {
		body = nil
		r.Body = io.NopCloser(strings.NewReader(c.body))
	}
	if err := s.Verify(r, body, func(id string) (auth.Key, bool) { return key, id == access }, now); err != nil {
		return err
	}
	if s.Service == "s3" {
		_, err = io.Copy(io.Discard, r.Body)
	}
	return err
}

// calls has a function for each service, which sends one signed request. The test server answers with an error, because
// only the request matters.
var calls = map[string]func(t *testing.T, c aws.Config){
	"ec2": func(t *testing.T, c aws.Config) {
		if _, err := ec2.NewFromConfig(c).DescribeVpcs(t.Context(), &ec2.DescribeVpcsInput{
			VpcIds: []string{"vpc-1"}}); err == nil {
			t.Fatal("answered")
		}
	},
	"iam": func(t *testing.T, c aws.Config) {
		if _, err := iam.NewFromConfig(c).GetRole(t.Context(), &iam.GetRoleInput{
			RoleName: aws.String("a")}); err == nil {
			t.Fatal("answered")
		}
	},
	"ssm": func(t *testing.T, c aws.Config) {
		if _, err := ssm.NewFromConfig(c).GetParameter(t.Context(), &ssm.GetParameterInput{
			Name: aws.String("a")}); err == nil {
			t.Fatal("answered")
		}
	},
	"s3": func(t *testing.T, c aws.Config) {
		client := s3.NewFromConfig(c, func(o *s3.Options) { o.UsePathStyle = true })
		_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String("b"), Key: aws.String("a b/c+d/ü.json"), Body: strings.NewReader("{}"),
			IfNoneMatch: aws.String("*"),
			Metadata:    map[string]string{"x": "  two  words "},
		})
		if err == nil {
			t.Fatal("answered")
		}
	},
}

func TestSigned(t *testing.T) {
	codes := map[string][4]string{ // codes for mismatch, unknown, skewed, expired
		"ec2": {"AuthFailure", "AuthFailure", "RequestExpired", "RequestExpired"},
		"iam": {"SignatureDoesNotMatch", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken"},
		"ssm": {"InvalidSignatureException", "UnrecognizedClientException", "InvalidSignatureException",
			"ExpiredTokenException"},
		"s3": {"SignatureDoesNotMatch", "InvalidAccessKeyId", "RequestTimeTooSkewed", "ExpiredToken"},
	}
	for service, call := range calls {
		t.Run(service, func(t *testing.T) {
			config, got := capture(t, token)
			call(t, config)
			now := time.Now()
			key := auth.Key{Secret: secret, Token: token, Expires: now.Add(time.Minute)}
			if err := got.verify(t, key, now); err != nil {
				t.Fatal(err)
			}
			s, _ := auth.Read(got.request)
			if s.Access != access || s.Service != service || s.Region != "us-west-2" {
				t.Errorf("signature %+v", s)
			}

			wantCode(t, got.verify(t, auth.Key{Secret: "other", Token: token}, now), codes[service][0])
			wantCode(t, got.verify(t, auth.Key{Secret: secret}, now), codes[service][1])
			wantCode(t, got.verify(t, key, now.Add(-16*time.Minute)), codes[service][2])
			wantCode(t, got.verify(t, key, now.Add(16*time.Minute)), codes[service][2])
			wantCode(t, got.verify(t, key, now.Add(2*time.Minute)), codes[service][3])

			signed := got.request
			for name, change := range map[string]func(r *http.Request){
				"method": func(r *http.Request) { r.Method = http.MethodDelete },
				"path":   func(r *http.Request) { r.URL.Path += "x"; r.URL.RawPath = "" },
				"query":  func(r *http.Request) { r.URL.RawQuery += "&acl" },
				"host":   func(r *http.Request) { r.Host = "elsewhere" },
				"header": func(r *http.Request) { r.Header.Set("X-Amz-Date", "20200101T000000Z") },
			} {
				got.request = signed.Clone(t.Context())
				change(got.request)
				if s, err := auth.Read(got.request); err == nil && s != nil {
					wantCode(t, got.verify(t, key, now), codes[service][0])
				} else if name != "header" {
					t.Errorf("%s: %v", name, err)
				}
			}
			got.request = signed
			got.body += "x"
			if err := got.verify(t, key, now); err == nil {
				t.Error("another body was taken")
			}
		})
	}
}

func TestPresigned(t *testing.T) {
	config, got := capture(t, token)
	client := s3.NewPresignClient(s3.NewFromConfig(config, func(o *s3.Options) { o.UsePathStyle = true }))
	signed, err := client.PresignGetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("b"),
		Key: aws.String("a b")}, s3.WithPresignExpires(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{"", "&x-id=PutObject", "&versionId=1"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, signed.URL+change, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		key, now := auth.Key{Secret: secret, Token: token}, time.Now()
		if change != "" {
			wantCode(t, got.verify(t, key, now), "SignatureDoesNotMatch")
			continue
		}
		if err := got.verify(t, key, now.Add(50*time.Minute)); err != nil {
			t.Fatal(err)
		}
		wantCode(t, got.verify(t, key, now.Add(61*time.Minute)), "AccessDenied")
	}
}

func TestReadRefuses(t *testing.T) {
	const good = "AWS4-HMAC-SHA256 Credential=A/20260101/us-west-2/ec2/aws4_request, SignedHeaders=host;x-amz-date, " +
		"Signature="
	signature := strings.Repeat("a", 64)
	for header, ok := range map[string]bool{
		good + signature:     true,
		good + "abc":         false,
		"Basic dXNlcjpwYXNz": false,
		strings.Replace(good, "/ec2/aws4_request", "/aws4_request", 1) + signature: false,
		strings.Replace(good, "aws4_request", "aws3_request", 1) + signature:       false,
		strings.Replace(good, "20260101", "20260102", 1) + signature:               false,
		strings.Replace(good, "host;", "", 1) + signature:                          false,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", header)
		r.Header.Set("X-Amz-Date", "20260101T000000Z")
		if s, err := auth.Read(r); (err == nil && s != nil) != ok {
			t.Errorf("%s: %v %v", header, s, err)
		}
	}
	if s, err := auth.Read(httptest.NewRequest(http.MethodGet, "/bucket/key", nil)); s != nil || err != nil {
		t.Errorf("unsigned: %v %v", s, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=A/20260101/us-west-2/s3/aws4_request, SignedHeaders=host, Signature="+
		strings.Repeat("0", 64), "20260101T000000Z")
	f.Fuzz(func(t *testing.T, header, date string) {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", header)
		r.Header.Set("X-Amz-Date", date)
		s, err := auth.Read(r)
		if err != nil || s == nil {
			return
		}
		if err := s.Verify(r, []byte("x"), func(string) (auth.Key, bool) {
			return auth.Key{Secret: "a"}, true
		}, time.Now()); err == nil {
			t.Fatalf("%q was taken", header)
		}
	})
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var api *wire.Error
	if !errors.As(err, &api) || api.Code != code {
		t.Errorf("got %v, want %s", err, code)
	}
}
