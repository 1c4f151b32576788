// Package sts fakes the part of the AWS Security Token Service that callers use to learn their identity.
//
// https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
package sts

import "github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"

// Service is the fake.
type Service struct{}

// Name is the signing name.
func (Service) Name() string { return "sts" }

// Operations returns the handlers by action.
func (Service) Operations() map[string]wire.Handler {
	return map[string]wire.Handler{"GetCallerIdentity": getCallerIdentity}
}

// getCallerIdentity needs no permission, and no policy can deny it.
func getCallerIdentity(c *wire.Call) (any, error) {
	if err := c.Decode(&struct{}{}); err != nil {
		return nil, err
	}
	return struct{ Arn, UserId, Account string }{c.Principal.ARN, c.Principal.UserID, c.Principal.Account}, nil
}
