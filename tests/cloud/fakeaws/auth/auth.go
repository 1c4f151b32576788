// Package auth verifies AWS Signature Version 4. It signs each request again with the SDK's own signer and compares the
// two signatures.
//
// Invariant: a request is refused if any part that its signature covers was changed. A request with a session's key is
// refused if the session's token is missing or the session has ended.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// MaxSkew is the largest accepted difference between a signature's time and the server's time.
const MaxSkew = 15 * time.Minute

// Key is the secret part of an access key, with its session if it belongs to one.
type Key struct {
	Secret  string
	Token   string    // of a session; "" for the account's own key
	Expires time.Time // end of the session; zero means never
}

// Signature is the signature information in a request.
type Signature struct {
	Access  string // key ID
	Service string // from the credential scope
	Region  string

	time    time.Time
	headers map[string]bool // names of the signed headers, in lower case
	value   string
	expires time.Duration // of a presigned URL
}

const timeForm = "20060102T150405Z"

var (
	headerForm = regexp.MustCompile(
		`^AWS4-HMAC-SHA256 +Credential=([^,]+), *SignedHeaders=([^,]+), *Signature=([0-9a-f]{64})$`)
	hashForm   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	errUnknown = errors.New("unknown key")
)

// Read finds the signature in the Authorization header or, for a presigned URL, in the query. It returns nil without an
// error if the request has no signature.
func Read(r *http.Request) (*Signature, error) {
	query := r.URL.Query()
	var credential, signed, date string
	s := &Signature{}
	switch header := r.Header.Get("Authorization"); {
	case header != "":
		m := headerForm.FindStringSubmatch(header)
		if m == nil {
			return nil, incomplete("Authorization header has another form than AWS4-HMAC-SHA256")
		}
		credential, signed, s.value, date = m[1], m[2], m[3], r.Header.Get("X-Amz-Date")
	case query.Has("X-Amz-Signature"):
		credential, signed, s.value, date = query.Get("X-Amz-Credential"), query.Get("X-Amz-SignedHeaders"),
			query.Get("X-Amz-Signature"), query.Get("X-Amz-Date")
		seconds, err := strconv.Atoi(query.Get("X-Amz-Expires"))
		if err != nil || seconds < 1 || seconds > 7*24*3600 {
			return nil, incomplete("X-Amz-Expires must be between 1 and 604800 seconds")
		}
		s.expires = time.Duration(seconds) * time.Second
	default:
		return nil, nil
	}
	scope := strings.Split(credential, "/")
	if len(scope) != 5 || scope[4] != "aws4_request" {
		return nil, incomplete("Credential must be KEY/DATE/REGION/SERVICE/aws4_request")
	}
	var err error
	if s.time, err = time.Parse(timeForm, date); err != nil || !strings.HasPrefix(date, scope[1]) {
		return nil, incomplete("X-Amz-Date does not fit the credential's date")
	}
	s.Access, s.Region, s.Service = scope[0], scope[2], scope[3]
	s.headers = map[string]bool{}
	for _, h := range strings.Split(signed, ";") {
		s.headers[h] = true
	}
	if !s.headers["host"] {
		return nil, incomplete("the host header must be signed")
	}
	return s, nil
}

func incomplete(what string) error {
	return wire.Errorf(http.StatusForbidden, "IncompleteSignature", "%s", what)
}

// Verify checks the signature. lookup returns the key for an access key ID. body is the request's body. S3 passes nil,
// because it reads the body later. Then Verify wraps r.Body: if the body's hash is not the signed one, reading to the
// end fails. Verify does not check the chunk signatures of streamed uploads. An error is one that the called AWS
// service would return.
func (s *Signature) Verify(r *http.Request, body []byte, lookup func(access string) (Key, bool), now time.Time) error {
	key, ok := lookup(s.Access)
	if !ok {
		return s.failure(errUnknown)
	}
	token := r.Header.Get("X-Amz-Security-Token")
	if s.expires > 0 {
		token = r.URL.Query().Get("X-Amz-Security-Token")
	}
	if token != key.Token {
		return s.failure(errUnknown)
	}
	again, err := s.sign(r, key, payloadHash(r, s.Service, body))
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(again), []byte(s.value)) != 1 {
		return s.failure(errMismatch)
	}
	// The following errors are returned only to callers that know the secret.
	switch age := now.Sub(s.time); {
	case s.expires > 0 && age > s.expires:
		return wire.Errorf(http.StatusForbidden, "AccessDenied", "Request has expired")
	case age < -MaxSkew || s.expires == 0 && age > MaxSkew:
		return s.failure(errSkewed)
	}
	if !key.Expires.IsZero() && !now.Before(key.Expires) {
		return s.failure(errExpired)
	}
	return checkBody(r, body)
}

// payloadHash returns the body hash that the client signed. S3's clients send the hash in a header. For other services,
// payloadHash computes it.
func payloadHash(r *http.Request, service string, body []byte) string {
	if hash := r.Header.Get("X-Amz-Content-Sha256"); hash != "" {
		return hash
	}
	if service == "s3" {
		return "UNSIGNED-PAYLOAD"
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// sign computes the signature that a request must have. The SDK's signer covers all headers of a request. So sign
// passes it a copy of the request with only the headers that the client signed.
func (s *Signature) sign(r *http.Request, key Key, payload string) (string, error) {
	again := &http.Request{Method: r.Method, Host: r.Host, Header: http.Header{}, URL: new(url.URL)}
	*again.URL = *r.URL
	again.URL.Host = r.Host
	for name, values := range r.Header {
		if s.headers[strings.ToLower(name)] {
			again.Header[name] = values
		}
	}
	again.Header.Del("Content-Length")
	if s.headers["content-length"] {
		again.ContentLength = r.ContentLength
	}
	// S3 signs the path as it is. Other services escape the path once more before they sign it.
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = s.Service == "s3" })
	credentials := aws.Credentials{AccessKeyID: s.Access, SecretAccessKey: key.Secret, SessionToken: key.Token}
	if s.expires == 0 {
		if err := signer.SignHTTP(context.Background(), credentials, again, payload, s.Service, s.Region,
			s.time); err != nil {
			return "", err
		}
		_, value, _ := strings.Cut(again.Header.Get("Authorization"), "Signature=")
		return value, nil
	}
	query := again.URL.Query()
	query.Del("X-Amz-Signature")
	again.URL.RawQuery = query.Encode()
	signed, _, err := signer.PresignHTTP(context.Background(), credentials, again, payload, s.Service, s.Region, s.time)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(signed)
	if err != nil {
		return "", err
	}
	return u.Query().Get("X-Amz-Signature"), nil
}

// checkBody compares the body with its signed hash.
func checkBody(r *http.Request, body []byte) error {
	hash := r.Header.Get("X-Amz-Content-Sha256")
	if !hashForm.MatchString(hash) {
		return nil
	}
	if body == nil {
		r.Body = &hashedBody{ReadCloser: r.Body, sum: sha256.New(), want: hash}
		return nil
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != hash {
		return errBody
	}
	return nil
}

var errBody = wire.Errorf(http.StatusBadRequest, "XAmzContentSHA256Mismatch",
	"The provided 'x-amz-content-sha256' header does not match what was computed.")

// hashedBody returns an error at the end of a body that does not match the signed hash.
type hashedBody struct {
	io.ReadCloser
	sum  hash.Hash
	want string
}

func (b *hashedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(b.sum.Sum(nil)) != b.want {
		return n, errBody
	}
	return n, err
}
