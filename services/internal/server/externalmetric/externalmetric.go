// Package externalmetric reads the numbers that a group scales by and that its instances do not tell: results of
// queries to Prometheus, and numbers in the answers of URLs.
//
// What comes from outside is limited in time and size, and no error quotes it, except for a message of Prometheus. No
// error contains the token.
package externalmetric

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/jsonpointer"
	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

const (
	// timeout is how long a read may take. It is less than the time between two reads.
	timeout = 10 * time.Second
	// maxAnswer is the maximum size of an answer, and maxHeader that of its header, in bytes.
	maxAnswer = 1 << 20
	maxHeader = 64 << 10
	// maxMessage is the maximum size of a message of Prometheus in an error, in bytes.
	maxMessage = 200
)

// Reader reads metrics. Its methods are safe for concurrent use.
type Reader struct {
	// secret returns a secret of the cluster.
	secret    func(ctx context.Context, name string) ([]byte, error)
	transport *http.Transport
	timeout   time.Duration
}

// New returns a Reader that gets its tokens from the given function.
func New(secret func(ctx context.Context, name string) ([]byte, error)) *Reader {
	return &Reader{secret: secret, timeout: timeout, transport: &http.Transport{Proxy: http.ProxyFromEnvironment,
		DialContext:     (&net.Dialer{}).DialContext,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		MaxResponseHeaderBytes: maxHeader, IdleConnTimeout: time.Minute}}
}

// Close closes the connections that are not in use.
func (r *Reader) Close() { r.transport.CloseIdleConnections() }

// Read returns the value of a metric query or url. The error says in a sentence which metric cannot be read, from
// where, why, and what to do.
func (r *Reader) Read(ctx context.Context, m config.ScalingMetric) (float64, error) {
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var value float64
	var address string
	var err error
	switch {
	case m.Query != nil:
		address = m.Query.Prometheus
		value, err = r.with(limited, m.Query.Token, func(c *call) (float64, error) { return c.query(limited, m.Query) })
	case m.URL != nil:
		address = m.URL.URL
		value, err = r.with(limited, m.URL.Token, func(c *call) (float64, error) { return c.get(limited, m.URL) })
	default:
		return 0, fmt.Errorf("%s is not read from a URL", m.Name())
	}
	if err == nil {
		err = check(value)
	}
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("it has not answered within %s: the shard's servers must be able to connect to it",
				r.timeout)
		}
		return 0, fmt.Errorf("%s cannot be read from %s: %w", m.Name(), shown(address), err)
	}
	return value, nil
}

// shown returns a URL without its query, which may have a secret.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "its URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// check returns why a number cannot be the value of a metric.
func check(value float64) error {
	switch {
	case math.IsNaN(value):
		return errors.New("the number is NaN")
	case value < 0:
		return fmt.Errorf("the number is %g, which is negative", value)
	case value > plan.MaxScalingValue:
		return fmt.Errorf("the number is %g, which is more than %g", value, float64(plan.MaxScalingValue))
	}
	return nil
}

// query returns the result of a query to Prometheus.
func (c *call) query(ctx context.Context, q *config.ScalingQuery) (float64, error) {
	client, err := api.NewClient(api.Config{Address: q.Prometheus, Client: c.client()})
	if err != nil {
		return 0, errors.New("its URL is malformed")
	}
	result, _, _, err := prometheus.NewAPI(client).Query(ctx, q.Query, time.Time{})
	var refused *prometheus.Error
	switch {
	case errors.As(err, &refused):
		return 0, c.refusal(refused)
	case err != nil:
		return 0, cause(err)
	}
	switch result := result.(type) {
	case nil:
		return 0, errForeign
	case *model.Scalar:
		return float64(result.Value), nil
	case model.Vector:
		switch {
		case len(result) == 0:
			return 0, errors.New(`the result has no series: if that means 0, append "or vector(0)" to the query`)
		case len(result) > 1:
			return 0, fmt.Errorf("the result has %d series: make them one, such as with sum()", len(result))
		case result[0].Histogram != nil:
			return 0, errors.New("the result is a histogram and not a number: use a function such as histogram_count()")
		}
		return float64(result[0].Value), nil
	}
	return 0, fmt.Errorf("the result is a %s and not a number: use a query whose result is an instant vector",
		result.Type())
}

// get returns a number in the answer of a URL.
func (c *call) get(ctx context.Context, u *config.ScalingURL) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, http.NoBody)
	if err != nil {
		return 0, errors.New("its URL is malformed")
	}
	request.Header.Set("Accept", "application/json")
	answer, err := c.client().Do(request)
	if err != nil {
		return 0, cause(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, c.problem()
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, cause(err)
	}
	return jsonpointer.Number(body, u.JSON)
}

// call is one read. It sends the token, limits the answer, and remembers its status.
type call struct {
	transport http.RoundTripper
	token     string
	secret    string // its name
	status    int
}

// with calls read with a call that sends the token, if there is one.
func (r *Reader) with(ctx context.Context, source *config.TokenSource, read func(*call) (float64, error)) (float64,
	error) {
	c := &call{transport: r.transport}
	if source == nil {
		return read(c)
	}
	value, err := r.secret(ctx, source.Source)
	switch {
	case errors.Is(err, secretstore.ErrNotFound):
		return 0, fmt.Errorf("there is no secret %s, which must hold the token", source.Source)
	case err != nil:
		return 0, fmt.Errorf("the secret %s, which holds the token, cannot be read from the secrets store",
			source.Source)
	}
	c.secret, c.token = source.Source, string(pasted.Clean(value))
	if c.token == "" || strings.ContainsFunc(c.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return 0, fmt.Errorf("the secret %s is not a token, which is one word of ASCII characters", source.Source)
	}
	return read(c)
}

// client returns a client for one read. It follows no redirects: they would bring the token to another server, or away
// from TLS.
func (c *call) client() *http.Client {
	return &http.Client{Transport: c, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// RoundTrip implements [http.RoundTripper].
func (c *call) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("User-Agent", "nstance-server")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	c.status = answer.StatusCode
	answer.Body = &limitedBody{answer.Body, maxAnswer}
	return answer, nil
}

// refusal returns why Prometheus has not answered a query.
func (c *call) refusal(err *prometheus.Error) error {
	switch err.Type {
	case prometheus.ErrBadData, prometheus.ErrExec, prometheus.ErrTimeout, prometheus.ErrCanceled:
		if c.token == "" || !strings.Contains(err.Msg, c.token) {
			return fmt.Errorf("it answers %q: check the query", line(err.Msg))
		}
	}
	if c.status == http.StatusOK {
		return errForeign
	}
	return c.problem()
}

// problem returns what the status of an answer says.
func (c *call) problem() error {
	status := strings.TrimSpace(fmt.Sprint(c.status, " ", http.StatusText(c.status)))
	switch {
	case c.status/100 == 3:
		return fmt.Errorf("it answers %q and redirects: configure the URL to which it redirects", status)
	case c.status != http.StatusUnauthorized && c.status != http.StatusForbidden:
		return fmt.Errorf("it answers %q", status)
	case c.secret == "":
		return fmt.Errorf("it answers %q: configure a token that it accepts", status)
	}
	return fmt.Errorf("it answers %q: the secret %s must hold a token that it accepts", status, c.secret)
}

// line returns the start of a text from outside as one line.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}

var (
	errForeign = errors.New("the answer is not one of Prometheus: check the URL")
	errTooLong = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
)

// limitedBody is a body that fails when it is longer than a limit.
type limitedBody struct {
	io.ReadCloser
	left int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if b.left -= n; b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// cause returns why a request failed, without what differs between two failures, such as ports and times.
func cause(err error) error {
	var dns *net.DNSError
	var untrusted *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var network *net.OpError
	switch {
	case errors.Is(err, errTooLong):
		return errTooLong
	case errors.As(err, &dns) && dns.IsNotFound:
		return errors.New("its name has no address in DNS")
	case errors.As(err, &dns):
		return errors.New("its name cannot be looked up in DNS")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return errors.New("its certificate has expired, or is not valid yet")
	case errors.As(err, &untrusted):
		return fmt.Errorf("the machines of the shard's servers do not trust its certificate: %s",
			line(untrusted.Err.Error()))
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("it does not speak TLS")
	case errors.As(err, &network):
		root := network.Err
		for next := root; next != nil; next = errors.Unwrap(next) {
			root = next
		}
		return fmt.Errorf("no connection (%w): the shard's servers must be able to connect to it", root)
	}
	return errors.New("the connection ended without a complete answer")
}
