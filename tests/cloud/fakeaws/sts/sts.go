// Package sts fakes the parts of the AWS Security Token Service with which callers learn their identity, and with which
// programs of Google Cloud assume a role.
//
// https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
// https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
package sts

import (
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// WithWebIdentity is the operation that needs no signature.
const WithWebIdentity = "AssumeRoleWithWebIdentity"

// google is the issuer of Google's identity tokens. AWS knows it without a provider in IAM.
const google = "accounts.google.com"

// Credentials are the credentials of a session of a role.
type Credentials struct {
	AccessKeyId, SecretAccessKey, SessionToken string
	Expiration                                 wire.Time
}

// Config configures a Service.
type Config struct {
	// GoogleKeys returns the certificates of the keys that sign Google's identity tokens, in PEM, by key ID.
	GoogleKeys func() (map[string]string, error)
	// Role finds a role by its name.
	Role func(name string) (iam.Role, bool)
	// Issue starts a session of a role.
	Issue func(role, session string, length time.Duration) Credentials
}

// Service is the fake.
type Service struct{ Config }

// New makes the service.
func New(c Config) Service { return Service{c} }

// Name is the signing name.
func (Service) Name() string { return "sts" }

// Operations returns the handlers by action.
func (s Service) Operations() map[string]wire.Handler {
	return map[string]wire.Handler{"GetCallerIdentity": getCallerIdentity, WithWebIdentity: s.assume}
}

// getCallerIdentity needs no permission, and no policy can deny it.
func getCallerIdentity(c *wire.Call) (any, error) {
	if err := c.Decode(&struct{}{}); err != nil {
		return nil, err
	}
	return struct{ Arn, UserId, Account string }{c.Principal.ARN, c.Principal.UserID, c.Principal.Account}, nil
}

var (
	roleForm    = regexp.MustCompile(`^arn:aws:iam::[0-9]{12}:role/(?:[^/]+/)*([^/]+)$`)
	sessionForm = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)
)

// assume starts a session of a role for a program with an identity token. The role's trust policy decides.
func (s Service) assume(c *wire.Call) (any, error) {
	in := struct {
		RoleArn, RoleSessionName, WebIdentityToken string
		DurationSeconds                            int
	}{DurationSeconds: 3600}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	m := roleForm.FindStringSubmatch(in.RoleArn)
	if m == nil || !sessionForm.MatchString(in.RoleSessionName) || in.DurationSeconds < 900 {
		return nil, wire.Errorf(http.StatusBadRequest, "ValidationError", "RoleArn, RoleSessionName or DurationSeconds")
	}
	claims, err := s.verify(in.WebIdentityToken, c.Now)
	if err != nil {
		return nil, err
	}
	role, ok := s.Role(m[1])
	decision := policy.EvaluateTrust(policy.Policies{Resource: role.Trust}, policy.Request{Action: "sts:" + c.Action,
		Resource: in.RoleArn, Caller: policy.Caller{Federated: google}, Context: claims.context()})
	if !ok || role.ARN != in.RoleArn || !decision.Allowed {
		return nil, wire.Errorf(http.StatusForbidden, "AccessDenied", "Not authorized to perform sts:%s", c.Action)
	}
	session := role.ID + ":" + in.RoleSessionName
	return struct {
		Credentials                                     Credentials
		AssumedRoleUser                                 struct{ AssumedRoleId, Arn string }
		SubjectFromWebIdentityToken, Provider, Audience string
	}{s.Issue(role.Name, in.RoleSessionName, time.Duration(in.DurationSeconds)*time.Second),
		struct{ AssumedRoleId, Arn string }{session, in.RoleArn + "/" + in.RoleSessionName}, claims.Subject, google,
		claims.Authorized}, nil
}

// claims are the claims of an identity token of Google.
type claims struct {
	jwt.RegisteredClaims
	Authorized string `json:"azp"`
}

// context returns the condition keys of a trust policy. If the token has the claim azp, the key aud has its value.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_iam-condition-keys.html
func (c claims) context() policy.Context {
	audience := []string(c.Audience)
	if c.Authorized != "" {
		audience = []string{c.Authorized}
	}
	return policy.Context{google + ":sub": {c.Subject}, google + ":aud": audience, google + ":oaud": c.Audience}
}

// verify checks the signature, the issuer and the expiry of a token.
func (s Service) verify(token string, now time.Time) (c claims, err error) {
	if s.GoogleKeys == nil {
		return c, wire.Errorf(http.StatusBadRequest, "InvalidIdentityToken", "No OpenIDConnect provider found")
	}
	_, err = jwt.NewParser(jwt.WithValidMethods([]string{"RS256"}), jwt.WithExpirationRequired(),
		jwt.WithIssuer("https://"+google), jwt.WithTimeFunc(func() time.Time { return now })).
		ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) { return s.key(fmt.Sprint(t.Header["kid"])) })
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return c, wire.Errorf(http.StatusBadRequest, "ExpiredTokenException", "Token expired")
	case err != nil:
		return c, wire.Errorf(http.StatusBadRequest, "InvalidIdentityToken",
			"Couldn't retrieve verification key from your identity provider, or the token is wrong: %v", err)
	}
	return c, nil
}

func (s Service) key(id string) (*rsa.PublicKey, error) {
	keys, err := s.GoogleKeys()
	if err != nil {
		return nil, err
	}
	if keys[id] == "" {
		return nil, fmt.Errorf("no key %s", id)
	}
	return jwt.ParseRSAPublicKeyFromPEM([]byte(keys[id]))
}
