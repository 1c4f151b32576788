// Package awscloud makes the configuration for AWS's SDK (region, profile and role) and reads the errors of the SDK.
//
// Invariant: the package sends no request. The SDK assumes the role when a client first needs credentials.
package awscloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"cloud.google.com/go/compute/metadata"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// Load returns the SDK's configuration for access to AWS. What access does not set comes from the SDK's usual places:
// environment, profiles, the machine's role. The options take precedence over access.
func Load(ctx context.Context, access cloud.Access, options ...func(*config.LoadOptions) error) (aws.Config, error) {
	cfg, err := config.LoadDefaultConfig(ctx, append([]func(*config.LoadOptions) error{
		config.WithRegion(access.Region), config.WithSharedConfigProfile(access.Profile)}, options...)...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("load the AWS configuration: %w", err)
	}
	if role := access.AssumeRole; role.ARN != "" {
		// STS has an endpoint in each region. Any region will do where an S3 server ignores the region.
		client := sts.NewFromConfig(cfg, func(o *sts.Options) { o.Region = cmp.Or(o.Region, "us-east-1") })
		if role.WithToken {
			cfg.Credentials = aws.NewCredentialsCache(stscreds.NewWebIdentityRoleProvider(client, role.ARN,
				googleIdentity{role.ARN}, func(o *stscreds.WebIdentityRoleOptions) {
					o.RoleSessionName = role.SessionName
				}))
			return cfg, nil
		}
		cfg.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(client, role.ARN,
			func(o *stscreds.AssumeRoleOptions) {
				o.RoleSessionName = role.SessionName
				if role.ExternalID != "" {
					o.ExternalID = &role.ExternalID
				}
			}))
	}
	return cfg, nil
}

// CodeOf returns the API's error code, or "" if there was no answer or the answer has no code. For such an answer, the
// SDK sets the code UnknownError.
func CodeOf(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok && e.ErrorCode() != "UnknownError" {
		return e.ErrorCode()
	}
	return ""
}

// StatusOf returns the HTTP status of the answer, or 0 if there was no answer.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return e.HTTPStatusCode()
	}
	return 0
}

// identityTimeout is how long the metadata server may take to return a token.
const identityTimeout = 10 * time.Second

// googleIdentity gets identity tokens of the Google Cloud VM on which the program runs.
// https://cloud.google.com/compute/docs/instances/verifying-instance-identity
type googleIdentity struct{ audience string }

// GetIdentityToken implements [stscreds.IdentityTokenRetriever].
func (g googleIdentity) GetIdentityToken() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), identityTimeout)
	defer cancel()
	token, err := metadata.GetWithContext(ctx,
		"instance/service-accounts/default/identity?audience="+url.QueryEscape(g.audience))
	if err != nil {
		return nil, fmt.Errorf("get the identity token of this VM from Google's metadata server: %w", err)
	}
	return []byte(token), nil
}
