package wire

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

type kind int

const (
	kindQuery kind = iota // AWS query, also the shape of errors for unknown services
	kindEC2
	kindJSON
	kindS3
)

type protocol struct {
	kind      kind
	namespace string // XML
	version   string // Version parameter of the query protocols
	target    string // prefix of X-Amz-Target
}

// protocols holds the protocol of each service, by signing name. Source: the services' API references.
var protocols = map[string]protocol{
	"ec2": {kind: kindEC2, namespace: "http://ec2.amazonaws.com/doc/2016-11-15/",
		version: "2016-11-15"},
	"autoscaling": {kind: kindQuery, namespace: "http://autoscaling.amazonaws.com/doc/2011-01-01/",
		version: "2011-01-01"},
	"elasticloadbalancing": {kind: kindQuery, namespace: "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/",
		version: "2015-12-01"},
	"iam": {kind: kindQuery, namespace: "https://iam.amazonaws.com/doc/2010-05-08/",
		version: "2010-05-08"},
	"sts": {kind: kindQuery, namespace: "https://sts.amazonaws.com/doc/2011-06-15/",
		version: "2011-06-15"},
	"ssm":            {kind: kindJSON, target: "AmazonSSM."},
	"secretsmanager": {kind: kindJSON, target: "secretsmanager."},
	"s3":             {kind: kindS3},
}

// Parse reads the action and the parameters of a request to a service. The caller has already read the body to verify
// the signature. The caller sets the principal, the region and Authorize.
func Parse(service string, r *http.Request, body []byte) (*Call, error) {
	c := &Call{Context: r.Context(), Service: service, RequestID: uuid.NewString()}
	p, ok := protocols[service]
	if !ok {
		return c, Errorf(http.StatusNotFound, "UnknownService", "There is no service %s", service)
	}
	switch p.kind {
	case kindS3:
		c.Request = r
		return c, nil
	case kindJSON:
		action, ok := strings.CutPrefix(r.Header.Get("X-Amz-Target"), p.target)
		if !ok {
			return c, Errorf(http.StatusBadRequest, "UnknownOperationException", "X-Amz-Target %q is not of %s",
				r.Header.Get("X-Amz-Target"), service)
		}
		c.Action, c.Body = action, body
		return c, nil
	}
	form, err := url.ParseQuery(string(body))
	if r.Method == http.MethodGet || len(body) == 0 && r.URL.RawQuery != "" {
		form, err = url.ParseQuery(r.URL.RawQuery)
	}
	if err != nil {
		return c, Errorf(http.StatusBadRequest, "MalformedQueryString", "%v", err)
	}
	c.Action, c.Form = form.Get("Action"), form
	version := form.Get("Version")
	for name := range form {
		if name == "Action" || name == "Version" || strings.HasPrefix(name, "X-Amz-") {
			delete(form, name)
		}
	}
	if c.Action == "" {
		return c, Errorf(http.StatusBadRequest, "MissingAction", "The request has no Action")
	}
	if version != p.version {
		return c, Errorf(http.StatusBadRequest, "InvalidAction", "Could not find operation %s for version %s", c.Action,
			version)
	}
	return c, nil
}

// Unknown returns the service's error for an unknown operation.
func Unknown(c *Call) error {
	if protocols[c.Service].kind == kindJSON {
		return Errorf(http.StatusBadRequest, "UnknownOperationException", "%s has no operation %s here", c.Service,
			c.Action)
	}
	return Errorf(http.StatusBadRequest, "InvalidAction", "The action %s is not valid for this web service", c.Action)
}

// Handle serves one service alone, without signatures. Every caller is the account and may do everything. It is meant
// for tests of a single service.
func Handle(s Service, account, region string, lock sync.Locker) http.Handler {
	operations := s.Operations()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := ReadBody(w, r)
		if err != nil {
			WriteError(w, s.Name(), uuid.NewString(), err)
			return
		}
		c, err := Parse(s.Name(), r, body)
		if err != nil {
			WriteError(w, s.Name(), c.RequestID, err)
			return
		}
		c.Region, c.Now = region, time.Now()
		c.Principal = Principal{ARN: "arn:aws:iam::" + account + ":root", Account: account, UserID: account}
		c.Authorize = func(string, string, policy.Context) error { return nil }
		answer, err := serve(c, operations, lock)
		if err != nil {
			WriteError(w, s.Name(), c.RequestID, err)
			return
		}
		Write(w, c, answer)
	})
}

func serve(c *Call, operations map[string]Handler, lock sync.Locker) ([]byte, error) {
	operation, ok := operations[c.Action]
	if !ok {
		return nil, Unknown(c)
	}
	lock.Lock()
	defer lock.Unlock()
	answer, err := operation(c)
	if err != nil {
		return nil, err
	}
	return Encode(c, answer)
}

// maxBody exceeds every request body of the services other than S3. S3 streams its bodies.
const maxBody = 1 << 20

// ReadBody reads a request's body, at most 1 MiB.
func ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, Errorf(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "The body: %v", err)
	}
	if len(body) > 0 {
		time.Sleep(distance)
	}
	return body, nil
}

// distance is the simulated network latency to AWS. The SDK closes a request's body as soon as the answer begins. If
// net/http's background goroutine has not yet seen the end of the body, the goroutine breaks the connection, and the
// answer is incomplete. Only a server on the same machine can answer so early. Callers without retries would see the
// failure.
const distance = 2 * time.Millisecond
