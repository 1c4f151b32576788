package aws_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/keyring/aws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
)

const key = "thisisatest32bytekey123456789012"

func TestSources(t *testing.T) {
	fake, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	}()
	server := httptest.NewServer(fake)
	defer server.Close()
	access, secret := fake.Credentials()
	cfg := awssdk.Config{Region: fake.Region(), BaseEndpoint: &server.URL,
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
			aws.Sources(cloud.Access{}))
	}
	if ring, err := load("aws-secrets-manager", arn); err != nil || ring.Current.IsZero() {
		t.Errorf("by ARN, in another region: %v", err)
	}
	t.Setenv("AWS_REGION", fake.Region())
	for source, provider := range map[string]string{
		"text": "aws-secrets-manager", "binary": "aws-secrets-manager", "/key": "aws-parameter-store",
		"arn:aws:ssm:" + fake.Region() + ":" + fakeaws.Account + ":parameter/key": "aws-parameter-store",
	} {
		ring, err := load(provider, source)
		if err != nil || ring.Current.IsZero() {
			t.Errorf("%s %s: %v", provider, source, err)
		}
	}
	denied := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Amzn-ErrorType", "AccessDeniedException")
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer denied.Close()
	for _, test := range []struct{ provider, source, endpoint, want string }{
		{"aws-secrets-manager", "", server.URL, "no source is named"},
		{"aws-secrets-manager", "none", server.URL, "ResourceNotFoundException"},
		{"aws-parameter-store", "/none", server.URL, "ParameterNotFound"},
		{"aws-secrets-manager", "text", denied.URL, "AccessDeniedException"},
		{"aws-parameter-store", "/key", denied.URL, "AccessDeniedException"},
	} {
		t.Setenv("AWS_ENDPOINT_URL", test.endpoint)
		_, err := load(test.provider, test.source)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), text) ||
			errors.Is(err, keyring.ErrDenied) != (test.endpoint == denied.URL) {
			t.Errorf("%s %q: %v, want %q", test.provider, test.source, err, test.want)
		}
	}
}
