package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// ownHeaders are request headers that are not forwarded to the real S3 server behind the fake, because they concern the
// connection or the fake itself. The server does not support encryption at rest, so the fake handles the headers for
// encryption.
var ownHeaders = []string{
	"Authorization", "Connection", "Content-Length", "Transfer-Encoding", "Expect", "Host", "Accept-Encoding", "Te",
	"Trailer", "Upgrade", "X-Amz-Date",
	"X-Amz-Security-Token", "X-Amz-Content-Sha256", "X-Amz-Decoded-Content-Length", "X-Amz-Trailer",
	"X-Amz-Sdk-Checksum-Algorithm", "Amz-Sdk-Invocation-Id",
	"Amz-Sdk-Request", "X-Amz-Expected-Bucket-Owner", "X-Amz-Source-Expected-Bucket-Owner", "X-Amz-Request-Payer",
	"X-Amz-Acl", "X-Amz-Server-Side-Encryption",
	"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "X-Amz-Server-Side-Encryption-Bucket-Key-Enabled",
	"X-Amz-Server-Side-Encryption-Context",
}

// send sends a request to the real S3 server behind the fake, signed with the server's root key. path is escaped and
// begins with the bucket. If the fake's client hangs up, send completes the request, as S3 does. A request that was cut
// off could leave objects at the server that differ from the versions in the fake's memory.
func (q *request) send(method, path string, query url.Values, header http.Header, body []byte) (*http.Response, error) {
	u := *q.s.base
	u.RawPath = "/" + path
	var err error
	if u.Path, err = url.PathUnescape(u.RawPath); err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "InvalidURI", "Couldn't parse the specified URI")
	}
	u.RawQuery = query.Encode()
	ctx := context.WithoutCancel(q.Context)
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.URL = &u
	r.Header = header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	sum := sha256.Sum256(body)
	payload := hex.EncodeToString(sum[:])
	r.Header.Set("X-Amz-Content-Sha256", payload)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	// The S3 server behind the fake checks the signature against its own clock. So the signature does not use the
	// call's time, which a test may have set.
	if err := signer.SignHTTP(ctx, q.s.credentials(), r, payload, "s3", "us-east-1",
		wallClock()); err != nil {
		return nil, err
	}
	return q.s.client.Do(r)
}

// headers returns the headers with which the request is forwarded to the real S3 server behind the fake.
func (q *request) headers() http.Header {
	h := maps.Clone(q.Request.Header)
	for _, name := range ownHeaders {
		delete(h, name)
	}
	if encoding := h.Get("Content-Encoding"); encoding != "" {
		// "aws-chunked" describes the transfer and is not stored with the object.
		rest := slices.DeleteFunc(strings.Split(encoding, ","), func(e string) bool {
			return strings.TrimSpace(e) == "aws-chunked"
		})
		delete(h, "Content-Encoding")
		if len(rest) > 0 {
			h["Content-Encoding"] = []string{strings.TrimSpace(strings.Join(rest, ","))}
		}
	}
	if h.Get("User-Agent") == "" {
		h["User-Agent"] = []string{""}
	}
	return h
}

// forward sends the request to the S3 server behind the fake, with the headers from [request.headers]. The caller
// closes the answer's body.
func (q *request) forward(body []byte) (*http.Response, error) {
	path := q.bucket
	if q.key != "" {
		path += "/" + q.path
	}
	return q.send(q.Request.Method, path, q.query, q.headers(), body)
}

// answerHeaders are headers of the S3 server's answer that the fake does not pass to the client. The fake sends its own
// headers instead.
var answerHeaders = []string{"Connection", "Date", "Server", "X-Amz-Request-Id", "X-Amz-Id-2", "Transfer-Encoding",
	"Keep-Alive"}

// reply passes the S3 server's answer to the client and closes the answer's body. If the answer is an error, reply
// passes on only its headers and returns the error. So the fake's record of the call contains the error.
func (q *request) reply(answer *http.Response) error {
	defer answer.Body.Close()
	h := q.w.Header()
	failed := answer.StatusCode >= http.StatusBadRequest
	for name, values := range answer.Header {
		if !slices.Contains(answerHeaders, name) && !(failed && strings.HasPrefix(name, "Content-")) {
			h[name] = values
		}
	}
	if failed {
		err := serverError(answer)
		drop(answer)
		return err
	}
	q.w.WriteHeader(answer.StatusCode)
	if _, err := io.Copy(q.w, answer.Body); err != nil {
		panic(http.ErrAbortHandler) // the answer is partly sent: the client must not take it as complete
	}
	return nil
}

// headErrors maps HTTP statuses to the codes of errors without a body.
var headErrors = map[int]string{
	http.StatusNotFound: "NotFound", http.StatusForbidden: "Forbidden",
	http.StatusPreconditionFailed:           "PreconditionFailed",
	http.StatusRequestedRangeNotSatisfiable: "InvalidRange", http.StatusMethodNotAllowed: "MethodNotAllowed",
}

// serverError reads the error in the server's answer.
func serverError(answer *http.Response) error {
	var failure struct{ Code, Message string }
	err := xml.NewDecoder(answer.Body).Decode(&failure)
	if err == nil && failure.Code != "" {
		return wire.Errorf(answer.StatusCode, failure.Code, "%s", failure.Message)
	}
	if code, ok := headErrors[answer.StatusCode]; ok {
		return wire.Errorf(answer.StatusCode, code, "%s", http.StatusText(answer.StatusCode))
	}
	return wire.Errorf(answer.StatusCode, "InternalError", "fakeaws: the server answers with status %d",
		answer.StatusCode)
}

// pass forwards an operation to the S3 server behind the fake, and passes the server's answer to the client.
func pass(q *request) error {
	body, err := q.body()
	if err != nil {
		return err
	}
	answer, err := q.forward(body)
	if err != nil {
		return err
	}
	return q.reply(answer)
}

// drop reads an answer to its end and closes it, so that the connection can be reused.
func drop(answer *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<20))
	_ = answer.Body.Close()
}
