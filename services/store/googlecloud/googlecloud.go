// Package googlecloud makes the HTTP client for Google's APIs: credentials, endpoints, the project, and retries.
//
// Invariant: the package itself sends no request to an API, and only [Repeat] repeats one.
package googlecloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

const (
	// scope permits everything that the roles of the credentials permit.
	scope = "https://www.googleapis.com/auth/cloud-platform"
	// connections is the number of idle connections to keep. Up to this number, parallel requests need no new
	// connections.
	connections = 128
	// tries bounds the attempts of Repeat.
	tries = 3
)

// Environment describes the environment variables that this package reads, for help texts.
const Environment = "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_CLOUD_PROJECT and the usual Google credentials"

// Access is a client with credentials.
type Access struct {
	Client *http.Client
	// Project is the project of the credentials, or "" if they do not name one.
	Project string
}

// Open finds the default credentials: a file named by GOOGLE_APPLICATION_CREDENTIALS, those of gcloud, or those of the
// VM. With a federation, Open instead uses the AWS credentials of this machine (see [federate]). GOOGLE_CLOUD_PROJECT
// takes precedence over the project of the credentials.
// https://cloud.google.com/docs/authentication/application-default-credentials
func Open(ctx context.Context, federation cloud.Federation) (Access, error) {
	// The credentials keep the context for later requests of tokens, so the end of ctx must not cancel them.
	found, err := credentials(context.WithoutCancel(ctx), federation)
	if err != nil {
		return Access{}, err
	}
	base, _ := http.DefaultTransport.(*http.Transport)
	transport := base.Clone()
	transport.MaxIdleConnsPerHost, transport.MaxIdleConns = connections, 2*connections
	return Access{
		Client:  &http.Client{Transport: &oauth2.Transport{Source: found.TokenSource, Base: Record(transport)}},
		Project: cmp.Or(os.Getenv("GOOGLE_CLOUD_PROJECT"), found.ProjectID),
	}, nil
}

func credentials(ctx context.Context, federation cloud.Federation) (*google.Credentials, error) {
	if federation != (cloud.Federation{}) {
		tokens, err := federate(ctx, federation)
		return &google.Credentials{TokenSource: tokens}, err
	}
	found, err := google.FindDefaultCredentials(ctx, scope)
	if err != nil {
		return nil, fmt.Errorf("find Google credentials: %w", explainKeyFile(os.Getenv(keyFileVariable), err))
	}
	return found, nil
}

// keyFileVariable names the variable with the path of a key file.
const keyFileVariable = "GOOGLE_APPLICATION_CREDENTIALS"

// explainKeyFile adds to an error of the SDK which key file it is about, and what to do. "path" is empty if no key file
// is set.
func explainKeyFile(path string, err error) error {
	if path == "" {
		return err
	}
	if _, unread := os.ReadFile(path); unread != nil {
		return fmt.Errorf("read the key file of %s: %w; put the key of the service account there, readable for the "+
			"user of this program", keyFileVariable, unread)
	}
	return fmt.Errorf("%s, which %s names, is not the JSON key file of a service account: %w; make a new key and put "+
		"its file there", path, keyFileVariable, err)
}

// ErrNoProject means that neither the configuration nor the credentials name a project.
var ErrNoProject = errors.New("no project is known: set it in the configuration or in GOOGLE_CLOUD_PROJECT")

// Options returns the options for an SDK client of a service, such as "storage". The environment variable
// GOOGLE_{SERVICE}_CUSTOM_ENDPOINT replaces the service's URL, as for Google's Terraform provider. Its value includes
// the version, such as https://compute.googleapis.com/compute/v1/.
func (a Access) Options(service string) []option.ClientOption {
	options := []option.ClientOption{option.WithHTTPClient(a.Client)}
	if endpoint := Endpoint(service, ""); endpoint != "" {
		options = append(options, option.WithEndpoint(trimVersion(endpoint)))
	}
	return options
}

// Endpoint returns the URL of a service from its environment variable (see [Access.Options]). If the variable is empty,
// Endpoint returns the parameter "otherwise".
func Endpoint(service, otherwise string) string {
	return cmp.Or(os.Getenv("GOOGLE_"+strings.ToUpper(service)+"_CUSTOM_ENDPOINT"), otherwise)
}

// trimVersion removes the version from the URL of a service if the service's SDK client adds the version itself.
func trimVersion(endpoint string) string {
	endpoint = strings.TrimSuffix(endpoint, "/") + "/"
	if strings.HasSuffix(endpoint, "/compute/v1/") || strings.HasSuffix(endpoint, "/storage/v1/") {
		return endpoint
	}
	return strings.TrimSuffix(endpoint, "v1/")
}

// Sent records whether a request was sent. Callers use it to know whether the request can have had an effect.
type Sent struct{ atomic.Bool }

type sentKey struct{}

// WithSent returns a context, and a value that records whether a request with that context was sent.
func WithSent(ctx context.Context) (context.Context, *Sent) {
	sent := &Sent{}
	return context.WithValue(ctx, sentKey{}, sent), sent
}

// Record returns a transport that records requests for [WithSent].
func Record(base http.RoundTripper) http.RoundTripper { return recorder{base} }

type recorder struct{ base http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	if sent, ok := req.Context().Value(sentKey{}).(*Sent); ok {
		sent.Store(true)
	}
	return r.base.RoundTrip(req)
}

// Repeat makes an idempotent call up to three times, while it fails with a temporary error.
func Repeat[T any](ctx context.Context, call func() (T, error)) (T, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 2*time.Second
	return backoff.Retry(ctx, func() (T, error) {
		v, err := call()
		if err != nil && (ctx.Err() != nil || !passing(err)) {
			err = backoff.Permanent(err)
		}
		return v, err
	}, backoff.WithBackOff(pause), backoff.WithMaxTries(tries))
}

// passing reports whether a call may succeed when it is repeated.
// https://cloud.google.com/storage/docs/retry-strategy
func passing(err error) bool {
	answer, ok := errors.AsType[*googleapi.Error](err)
	return !ok || answer.Code == http.StatusRequestTimeout || answer.Code == http.StatusTooManyRequests ||
		answer.Code >= 500
}

// StatusOf returns the HTTP status of the answer, or 0 if there was no answer.
func StatusOf(err error) int {
	if answer, ok := errors.AsType[*googleapi.Error](err); ok {
		return answer.Code
	}
	return 0
}
