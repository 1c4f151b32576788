// Package secretsmanager stores the cluster's secrets in AWS Secrets Manager.
//
// Invariant: only CreateSecret creates a secret, so that concurrent creations have one winner. A secret that is marked
// for deletion is an error and never "not found". Otherwise a second CA would be made in its place.
package secretsmanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	sm "github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
)

// Client lists the methods of the service that this package uses.
type Client interface {
	CreateSecret(ctx context.Context, in *sm.CreateSecretInput, opts ...func(*sm.Options)) (*sm.CreateSecretOutput,
		error)
	PutSecretValue(ctx context.Context, in *sm.PutSecretValueInput, opts ...func(*sm.Options)) (
		*sm.PutSecretValueOutput, error)
	GetSecretValue(ctx context.Context, in *sm.GetSecretValueInput, opts ...func(*sm.Options)) (
		*sm.GetSecretValueOutput, error)
	DeleteSecret(ctx context.Context, in *sm.DeleteSecretInput, opts ...func(*sm.Options)) (*sm.DeleteSecretOutput,
		error)
	ListSecrets(ctx context.Context, in *sm.ListSecretsInput, opts ...func(*sm.Options)) (*sm.ListSecretsOutput, error)
}

// maxValue is the maximum size of a secret in bytes (Secrets Manager quotas).
const maxValue = 65536

// tries bounds the attempts of a Put to update or create a secret, while others create and delete it at the same time.
const tries = 5

// Store is a [secretstore.Store]. A name in the service is the prefix followed by the name of the secret.
type Store struct {
	client Client
	prefix string
}

// New returns a store that uses client.
func New(client Client, prefix string) *Store { return &Store{client, prefix} }

// Backend describes this kind of secrets store.
var Backend = secretstore.Backend{Name: "aws-secrets-manager",
	Open: func(ctx context.Context, settings config.Secrets, _ secretstore.Options) (secretstore.Store, error) {
		return Open(ctx, settings.Prefix)
	}}

// Open makes a client with the SDK's default configuration: environment, profiles, the machine's role.
func Open(ctx context.Context, prefix string) (*Store, error) {
	cfg, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("load the AWS configuration: %w", err)
	}
	return New(sm.NewFromConfig(cfg), prefix), nil
}

var _ secretstore.Store = (*Store)(nil)

// Get implements secretstore.Store.
func (s *Store) Get(ctx context.Context, name string) (secretstore.Secret, error) {
	if err := secretstore.ValidateName(name); err != nil {
		return secretstore.Secret{}, err
	}
	out, err := s.client.GetSecretValue(ctx, &sm.GetSecretValueInput{SecretId: awssdk.String(s.prefix + name)})
	if err != nil {
		return secretstore.Secret{}, s.failed(ctx, "read", name, err)
	}
	content := out.SecretBinary
	if out.SecretString != nil {
		content = []byte(*out.SecretString)
	}
	return secretstore.Secret{Name: name, Value: secretstore.NewValue(content)}, nil
}

// Put implements secretstore.Store.
func (s *Store) Put(ctx context.Context, name string, value secretstore.Value, cond secretstore.Condition) error {
	if err := secretstore.ValidatePut(name, value, cond); err != nil {
		return err
	}
	if value.Len() > maxValue {
		return fmt.Errorf("%w: %d bytes, and AWS Secrets Manager takes at most %d", secretstore.ErrInvalid, value.Len(),
			maxValue)
	}
	text, binary := content(value)
	id := awssdk.String(s.prefix + name)
	var err error
	for range tries {
		if cond == secretstore.Any {
			_, err = s.client.PutSecretValue(ctx, &sm.PutSecretValueInput{SecretId: id, SecretString: text,
				SecretBinary: binary})
			if !isA[*types.ResourceNotFoundException](err) {
				return s.failed(ctx, "write", name, err)
			}
		}
		// The SDK sends the same request token in all its attempts, so a repeat creates no second secret.
		_, err = s.client.CreateSecret(ctx, &sm.CreateSecretInput{Name: id, SecretString: text, SecretBinary: binary})
		if cond == secretstore.IfAbsent || !isA[*types.ResourceExistsException](err) {
			return s.failed(ctx, "create", name, err)
		}
	}
	return s.failed(ctx, "write", name, err)
}

// content returns the value as text if possible, so that a person can read and edit it in the console.
func content(value secretstore.Value) (text *string, binary []byte) {
	raw := value.Reveal()
	if utf8.Valid(raw) && !slices.Contains(raw, 0) {
		return awssdk.String(string(raw)), nil
	}
	return nil, raw
}

// Delete implements secretstore.Store. It sets no recovery window, so the name can be used again immediately.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := secretstore.ValidateName(name); err != nil {
		return err
	}
	_, err := s.client.DeleteSecret(ctx, &sm.DeleteSecretInput{SecretId: awssdk.String(s.prefix + name),
		ForceDeleteWithoutRecovery: awssdk.Bool(true)})
	if isA[*types.ResourceNotFoundException](err) {
		return nil
	}
	return s.failed(ctx, "delete", name, err)
}

// List implements secretstore.Store. It ignores secrets under the prefix with names that are not valid for a [Store].
func (s *Store) List(ctx context.Context) ([]string, error) {
	in := &sm.ListSecretsInput{MaxResults: awssdk.Int32(100)}
	if s.prefix != "" {
		in.Filters = []types.Filter{{Key: types.FilterNameStringTypeName, Values: []string{s.prefix}}}
	}
	var names []string
	pages := sm.NewListSecretsPaginator(s.client, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list secrets of AWS Secrets Manager: %w", err)
		}
		for _, entry := range page.SecretList {
			name, ok := strings.CutPrefix(awssdk.ToString(entry.Name), s.prefix)
			if ok && entry.DeletedDate == nil && secretstore.ValidateName(name) == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// failed translates the service's errors. The service's messages do not quote values.
func (s *Store) failed(ctx context.Context, what, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // nothing is known
	case isA[*types.ResourceNotFoundException](err):
		return fmt.Errorf("%w: AWS Secrets Manager has no %q", secretstore.ErrNotFound, s.prefix+name)
	case isA[*types.ResourceExistsException](err):
		return fmt.Errorf("%w: AWS Secrets Manager has %q", secretstore.ErrExists, s.prefix+name)
	case isA[*types.InvalidRequestException](err):
		return fmt.Errorf("%s secret %q of AWS Secrets Manager (if it is marked for deletion, restore it): %w", what,
			s.prefix+name, err)
	}
	return fmt.Errorf("%s secret %q of AWS Secrets Manager: %w", what, s.prefix+name, err)
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
