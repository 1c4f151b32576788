package googlecloud

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google/externalaccount"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/store/awscloud"
)

// Exchange begins every error of an exchange of AWS credentials for a token of Google Cloud.
const Exchange = "exchange AWS credentials for a token of Google Cloud"

// federate returns a source of access tokens for a service account. It signs a GetCallerIdentity request with the AWS
// credentials of this machine. Google's Security Token Service sends that request to AWS, and so learns the AWS role.
// No key is stored, and no AWS credentials leave the machine.
// https://cloud.google.com/iam/docs/workload-identity-federation-with-other-clouds
func federate(ctx context.Context, f cloud.Federation) (oauth2.TokenSource, error) {
	cfg, err := awscloud.Load(ctx, cloud.Access{}, config.WithEC2IMDSRegion())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Exchange, err)
	}
	tokens, err := externalaccount.NewTokenSource(ctx, externalaccount.Config{
		Audience:         "//iam.googleapis.com/" + f.PoolProvider,
		SubjectTokenType: "urn:ietf:params:aws:token-type:aws4_request",
		TokenURL:         Endpoint("sts", "https://sts.googleapis.com/v1/") + "token",
		ServiceAccountImpersonationURL: Endpoint("iam_credentials", "https://iamcredentials.googleapis.com/v1/") +
			"projects/-/serviceAccounts/" + f.ServiceAccount + ":generateAccessToken",
		Scopes:                         []string{scope},
		AwsSecurityCredentialsSupplier: awsCredentials{cfg},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Exchange, err)
	}
	return oauth2.ReuseTokenSource(nil, explained{tokens}), nil
}

// explained adds to an error what was attempted.
type explained struct{ oauth2.TokenSource }

// Token implements [oauth2.TokenSource].
func (e explained) Token() (*oauth2.Token, error) {
	token, err := e.TokenSource.Token()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Exchange, err)
	}
	return token, nil
}

// awsCredentials implements [externalaccount.AwsSecurityCredentialsSupplier].
type awsCredentials struct{ aws.Config }

// AwsRegion returns the region whose AWS Security Token Service verifies the request.
func (a awsCredentials) AwsRegion(context.Context, externalaccount.SupplierOptions) (string, error) {
	if a.Region == "" {
		return "", errors.New("no AWS region is known: set AWS_REGION")
	}
	return a.Region, nil
}

// AwsSecurityCredentials returns the credentials that sign the request.
func (a awsCredentials) AwsSecurityCredentials(ctx context.Context,
	_ externalaccount.SupplierOptions) (*externalaccount.AwsSecurityCredentials, error) {
	found, err := a.Credentials.Retrieve(ctx)
	if err != nil {
		return nil, err
	}
	return &externalaccount.AwsSecurityCredentials{AccessKeyID: found.AccessKeyID,
		SecretAccessKey: found.SecretAccessKey, SessionToken: found.SessionToken}, nil
}
