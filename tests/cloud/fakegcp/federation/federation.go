// Package federation fakes Google's Security Token Service for callers with AWS credentials, and the Service Account
// Credentials API.
//
// Invariant: an AWS role is known only by the answer of AWS to the signed request in the subject token.
package federation

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// Tokens exchanges signed requests to AWS for access tokens.
// https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token
type Tokens struct {
	IAM *iam.IAM
	// AWS answers the requests in subject tokens. Nil: no AWS can be reached.
	AWS http.Handler
}

const (
	exchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	fromAWS  = "urn:ietf:params:aws:token-type:aws4_request"
	access   = "urn:ietf:params:oauth:token-type:access_token"
	scope    = "https://www.googleapis.com/auth/cloud-platform"
	target   = "X-Goog-Cloud-Target-Resource"
)

// refusal is an error answer of the service.
type refusal struct{ code, description string }

func (r refusal) Error() string { return r.code + ": " + r.description }

// ServeHTTP implements http.Handler for /v1/token.
func (t Tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	name, err := t.exchange(r)
	if err != nil {
		answer := refusal{"invalid_request", err.Error()}
		errors.As(err, &answer)
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": answer.code,
			"error_description": answer.description})
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": credentials.Token(name), "expires_in": 3600,
		"issued_token_type": access, "token_type": "Bearer"})
}

func (t Tokens) exchange(r *http.Request) (name string, err error) {
	if r.Method != http.MethodPost || r.FormValue("grant_type") != exchange ||
		r.FormValue("subject_token_type") != fromAWS || r.FormValue("requested_token_type") != access ||
		r.FormValue("scope") != scope {
		return "", refusal{"invalid_request", fmt.Sprintf("not an exchange of an AWS token: %v", r.Form)}
	}
	provider, ok := strings.CutPrefix(r.FormValue("audience"), "//iam.googleapis.com/")
	account := t.IAM.Account(provider)
	if !ok || account == "" {
		return "", refusal{"invalid_target", "The target service indicated by the \"audience\" parameters is invalid."}
	}
	caller, err := t.identify(r.Context(), r.FormValue("subject_token"), r.FormValue("audience"))
	if err != nil {
		return "", err
	}
	if caller.Account != account {
		return "", refusal{"invalid_grant", "The AWS account ID " + caller.Account + " is not the provider's."}
	}
	return t.IAM.Federate(provider, caller.Arn), nil
}

type caller struct{ Arn, Account string }

var stsHost = regexp.MustCompile(`^sts\.[a-z0-9-]+\.amazonaws\.com$`)

// identify sends the request in a subject token to AWS, and returns the caller that AWS names.
func (t Tokens) identify(ctx context.Context, token, audience string) (caller, error) {
	text, err := url.QueryUnescape(token)
	var signed struct {
		URL, Method string
		Headers     []struct{ Key, Value string }
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &signed)
	}
	if err != nil {
		return caller{}, refusal{"invalid_grant", "Unable to parse the AWS token: " + err.Error()}
	}
	at, err := url.Parse(signed.URL)
	if err != nil || at.Scheme != "https" || !stsHost.MatchString(at.Host) || signed.Method != http.MethodPost ||
		at.Query().Get("Action") != "GetCallerIdentity" {
		return caller{}, refusal{"invalid_grant", "The AWS token is no GetCallerIdentity request: " + signed.URL}
	}
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, at.RequestURI(), http.NoBody)
	request.Host = at.Host
	for _, h := range signed.Headers {
		request.Header.Set(h.Key, h.Value)
	}
	request.Header.Del("Host")
	if request.Header.Get(target) != audience ||
		!strings.Contains(request.Header.Get("Authorization"), strings.ToLower(target)) {
		return caller{}, refusal{"invalid_grant", "The AWS token is for another audience."}
	}
	if t.AWS == nil {
		return caller{}, refusal{"invalid_grant", "AWS cannot be reached"}
	}
	answer := httptest.NewRecorder()
	t.AWS.ServeHTTP(answer, request)
	var found struct {
		Result caller `xml:"GetCallerIdentityResult"`
	}
	if err := xml.Unmarshal(answer.Body.Bytes(), &found); err != nil || answer.Code != http.StatusOK {
		return caller{}, refusal{"invalid_grant", "Received invalid AWS response: " + answer.Body.String()}
	}
	return found.Result, nil
}

// Handlers returns the methods of the Service Account Credentials API that the fake has.
func Handlers() map[string]rest.Handler {
	return map[string]rest.Handler{
		"iamcredentials.projects.serviceAccounts.generateAccessToken": func(c *rest.Call) (any, error) {
			_, email, _ := strings.Cut(c.Params["name"], "/serviceAccounts/")
			return map[string]any{"accessToken": credentials.Token(email),
				"expireTime": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, nil
		},
	}
}
