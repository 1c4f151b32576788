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
	"os"
	"strings"
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
		return aws.Config{}, fmt.Errorf("load the AWS configuration: %w", explainProfile(access.Profile, err))
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

// explainProfile adds to an error of the SDK in which files it has looked for a profile, and what to do. "profile" is
// empty if none is set.
func explainProfile(profile string, err error) error {
	if bad, ok := errors.AsType[config.SharedConfigLoadError](err); ok {
		return fmt.Errorf("%w; correct the file %s, and make it readable for the user of this program", err,
			bad.Filename)
	}
	if profile == "" {
		return err
	}
	var seen []string
	for _, path := range []string{
		cmp.Or(os.Getenv("AWS_CONFIG_FILE"), config.DefaultSharedConfigFilename()),
		cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), config.DefaultSharedCredentialsFilename()),
	} {
		if _, unread := os.ReadFile(path); unread != nil {
			seen = append(seen, unread.Error())
		} else {
			seen = append(seen, path+" has no usable profile of this name")
		}
	}
	return fmt.Errorf("%w: %s; add the section [profile %s] with the access key to the file that AWS_CONFIG_FILE "+
		"names, readable for the user of this program", err, strings.Join(seen, "; "), profile)
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
