package aws_test

import (
	"encoding/base64"
	"net/http/httptest"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keyring"
	"github.com/nstance-kit/nstance/services/contract/keyring/aws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
)

const key = "thisisatest32bytekey123456789012"

func TestSources(t *testing.T) {
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	}()
	server := httptest.NewServer(cloud)
	defer server.Close()
	access, secret := cloud.Credentials()
	cfg := awssdk.Config{Region: cloud.Region(), BaseEndpoint: &server.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")}
	ctx := t.Context()
	text := base64.StdEncoding.EncodeToString([]byte(key))
	made, err := secretsmanager.NewFromConfig(cfg).CreateSecret(ctx, &secretsmanager.CreateSecretInput{
		Name: awssdk.String("text"), SecretString: &text})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := secretsmanager.NewFromConfig(cfg).CreateSecret(ctx, &secretsmanager.CreateSecretInput{
		Name: awssdk.String("binary"), SecretBinary: []byte(key)}); err != nil {
		t.Fatal(err)
	}
	if _, err := ssm.NewFromConfig(cfg).PutParameter(ctx, &ssm.PutParameterInput{Name: awssdk.String("/key"),
		Value: &text, Type: types.ParameterTypeSecureString}); err != nil {
		t.Fatal(err)
	}

	t.Setenv("AWS_ENDPOINT_URL", server.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_REGION", "eu-central-1") // the region of an ARN takes precedence
	arn := awssdk.ToString(made.ARN)
	load := func(provider, source string) (keyring.Ring, error) {
		return keyring.Load(ctx, config.Secrets{EncryptionKey: &config.KeySource{Provider: provider, Source: source}},
			aws.Sources())
	}
	if ring, err := load("aws-secrets-manager", arn); err != nil || ring.Current.IsZero() {
		t.Errorf("by ARN, in another region: %v", err)
	}
	t.Setenv("AWS_REGION", cloud.Region())
	for source, provider := range map[string]string{
		"text": "aws-secrets-manager", "binary": "aws-secrets-manager", "/key": "aws-parameter-store",
		"arn:aws:ssm:" + cloud.Region() + ":" + fakeaws.Account + ":parameter/key": "aws-parameter-store",
	} {
		ring, err := load(provider, source)
		if err != nil || ring.Current.IsZero() {
			t.Errorf("%s %s: %v", provider, source, err)
		}
	}
	for source, provider := range map[string]string{"": "aws-secrets-manager", "none": "aws-secrets-manager",
		"/none": "aws-parameter-store"} {
		_, err := load(provider, source)
		if err == nil {
			t.Errorf("%s %q gave a key", provider, source)
		} else if strings.Contains(err.Error(), text) {
			t.Errorf("the error quotes a key: %v", err)
		}
	}
}
