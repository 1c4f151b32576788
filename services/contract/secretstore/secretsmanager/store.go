// Package secretsmanager keeps the cluster's secrets in AWS Secrets Manager.
//
// Invariant: a secret is created by CreateSecret alone, which has one winner; one that is only marked for deletion is
// an error and never "not found", or a second CA would be made in its place.
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

	"github.com/nstance-kit/nstance/services/contract/secretstore"
)

// Client is what is called of the service.
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

// maxValue is the largest secret in bytes (Secrets Manager quotas).
const maxValue = 65536

// tries bounds how often a Put changes its mind about whether the secret exists, when others create and delete it at
// the same time.
const tries = 5

// Store is a [secretstore.Store]. Names in the service are prefix and name, one after the other.
type Store struct {
	client Client
	prefix string
}

// New returns a store over a client.
func New(client Client, prefix string) *Store { return &Store{client, prefix} }

// Open makes a client from the usual places of the SDK: environment, profiles, the machine's role.
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
		// The SDK sends one request token for all its attempts, so a repeat is no second creation.
		_, err = s.client.CreateSecret(ctx, &sm.CreateSecretInput{Name: id, SecretString: text, SecretBinary: binary})
		if cond == secretstore.IfAbsent || !isA[*types.ResourceExistsException](err) {
			return s.failed(ctx, "create", name, err)
		}
	}
	return s.failed(ctx, "write", name, err)
}

// content is text where it can be, so that a person can read and edit it in the console.
func content(value secretstore.Value) (text *string, binary []byte) {
	raw := value.Reveal()
	if utf8.Valid(raw) && !slices.Contains(raw, 0) {
		return awssdk.String(string(raw)), nil
	}
	return nil, raw
}

// Delete implements secretstore.Store. There is no recovery window: the name is free for another secret at once.
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

// List implements secretstore.Store. What lies under the prefix with a name that is none of a secret's is somebody
// else's.
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

// failed translates the service's errors. The messages of the service do not quote values.
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
