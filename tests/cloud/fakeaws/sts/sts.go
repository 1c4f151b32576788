// Package sts is a fake of the AWS Security Token Service: who a caller is, and sessions of roles.
//
// Invariant: a session exists only of a role whose trust policy let the caller in.
// Source: https://docs.aws.amazon.com/STS/latest/APIReference/
package sts

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/iam"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Credentials are a session's.
type Credentials struct {
	Access, Secret, Token string
	Expires               time.Time
}

// Config is what a Service needs of the cloud. Both functions are called with the cloud locked.
type Config struct {
	Role  func(name string) (iam.Role, bool)
	Issue func(role, session string, lasts time.Duration) Credentials
}

// Service is the fake.
type Service struct{ cfg Config }

// New makes one.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// Name is the signing name.
func (s *Service) Name() string { return "sts" }

// Operations are all that this fake can do.
func (s *Service) Operations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"GetCallerIdentity": s.getCallerIdentity,
		"AssumeRole":        s.assumeRole,
	}
}

// getCallerIdentity needs no permission, and no policy can deny it.
func (s *Service) getCallerIdentity(c *wire.Call) (any, error) {
	if err := c.Decode(&struct{}{}); err != nil {
		return nil, err
	}
	return struct{ Arn, UserId, Account string }{c.Principal.ARN, c.Principal.UserID, c.Principal.Account}, nil
}

var sessionForm = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

// chained is the longest session that a session may make. Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles.html (role chaining)
const chained = time.Hour

func (s *Service) assumeRole(c *wire.Call) (any, error) {
	in := struct {
		RoleArn, RoleSessionName, ExternalId string
		DurationSeconds                      int
	}{DurationSeconds: 3600}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if !sessionForm.MatchString(in.RoleSessionName) {
		return nil, invalid("The session name %q is not valid", in.RoleSessionName)
	}
	keys := policy.Context{"sts:RoleSessionName": {in.RoleSessionName}}
	if in.ExternalId != "" {
		keys["sts:ExternalId"] = []string{in.ExternalId}
	}
	role, ok := s.cfg.Role(in.RoleArn[strings.LastIndexByte(in.RoleArn, '/')+1:])
	if ok = ok && role.ARN == in.RoleArn; ok {
		c.ResourcePolicy = role.Trust
		for k, v := range role.Tags {
			keys["aws:ResourceTag/"+k] = []string{v}
		}
	}
	// A role that does not exist trusts nobody.
	if err := c.Authorize("sts:AssumeRole", in.RoleArn, keys); err != nil {
		return nil, err
	}
	lasts := time.Duration(in.DurationSeconds) * time.Second
	if lasts < 15*time.Minute || lasts > time.Duration(role.MaxSession)*time.Second || c.Principal.Role != "" &&
		lasts > chained {
		return nil, invalid("The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	}
	credentials := s.cfg.Issue(role.Name, in.RoleSessionName, lasts)
	type user struct{ AssumedRoleId, Arn string }
	type secret struct {
		AccessKeyId, SecretAccessKey, SessionToken string
		Expiration                                 wire.Time
	}
	return struct {
		AssumedRoleUser user
		Credentials     secret
	}{
		user{role.ID + ":" + in.RoleSessionName, "arn:aws:sts::" + c.Principal.Account + ":assumed-role/" + role.Name +
			"/" + in.RoleSessionName},
		secret{credentials.Access, credentials.Secret, credentials.Token, wire.Time{Time: credentials.Expires}},
	}, nil
}

func invalid(format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, "ValidationError", format, args...)
}
