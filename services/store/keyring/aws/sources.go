// Package aws reads encryption keys from AWS Secrets Manager and AWS Systems Manager Parameter Store.
//
// Invariant: no error quotes a key, and no request is sent to AWS before a key is requested.
package aws

import (
	"context"
	"errors"
	"fmt"
	"strings"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/awscloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
)

// Sources returns the sources "aws-secrets-manager" and "aws-parameter-store". In the configuration, the source of a
// key is the name or the ARN of its secret or parameter. The region in an ARN takes precedence over that of access.
func Sources(access cloud.Access) []keyring.Source {
	in := account(access)
	return []keyring.Source{{Name: "aws-secrets-manager", Read: in.readSecret},
		{Name: "aws-parameter-store", Read: in.readParameter}}
}

// account is the account and the region that hold keys.
type account cloud.Access

func (a account) readSecret(ctx context.Context, source config.KeySource) ([]byte, error) {
	cfg, err := a.load(ctx, source.Source)
	if err != nil {
		return nil, err
	}
	out, err := secretsmanager.NewFromConfig(cfg).GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{
		SecretId: &source.Source})
	switch {
	case err != nil:
		return nil, explain(err)
	case out.SecretString != nil:
		return []byte(*out.SecretString), nil
	}
	return out.SecretBinary, nil
}

func (a account) readParameter(ctx context.Context, source config.KeySource) ([]byte, error) {
	cfg, err := a.load(ctx, source.Source)
	if err != nil {
		return nil, err
	}
	out, err := ssm.NewFromConfig(cfg).GetParameter(ctx, &ssm.GetParameterInput{Name: &source.Source,
		WithDecryption: awssdk.Bool(true)})
	switch {
	case err != nil:
		return nil, explain(err)
	case out.Parameter == nil:
		return nil, errors.New("the answer holds no parameter")
	}
	return []byte(awssdk.ToString(out.Parameter.Value)), nil
}

// explain returns err. If AWS refused the request, the returned error also matches keyring.ErrDenied.
func explain(err error) error {
	if strings.HasPrefix(awscloud.CodeOf(err), "AccessDenied") {
		return fmt.Errorf("%w: %w", keyring.ErrDenied, err)
	}
	return err
}

func (a account) load(ctx context.Context, name string) (awssdk.Config, error) {
	if name == "" {
		return awssdk.Config{}, errors.New("no source is named: its name or ARN")
	}
	if parsed, err := arn.Parse(name); err == nil && parsed.Region != "" {
		a.Region = parsed.Region
	}
	return awscloud.Load(ctx, cloud.Access(a))
}
