// Package aws stores the cluster's secrets in a service of AWS: Secrets Manager, or Systems Manager's Parameter Store.
//
// Invariant: Get returns exactly the bytes of Put. Exactly one of several concurrent creations succeeds. Get of a
// secret that is marked for deletion is an error other than "not found". If the secret is the CA, "not found" would
// make Nstance create a second CA.
package aws

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	sm "github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	ssmtypes "github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/awscloud"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// Backends returns the back ends for the services of AWS.
func Backends() []secretstore.Backend {
	return []secretstore.Backend{
		backend("aws-secrets-manager", func(cfg awssdk.Config, prefix string) *Store {
			return NewSecretsManager(sm.NewFromConfig(cfg), prefix)
		}),
		backend("aws-parameter-store", func(cfg awssdk.Config, prefix string) *Store {
			return NewParameterStore(ssm.NewFromConfig(cfg), prefix)
		}),
	}
}

// backend describes the back end for one service.
func backend(name string, connect func(cfg awssdk.Config, prefix string) *Store) secretstore.Backend {
	return secretstore.Backend{Name: name,
		Open: func(ctx context.Context, settings config.Secrets, options secretstore.Options) (secretstore.Store,
			error) {
			cfg, err := awscloud.Load(ctx, options.Access)
			if err != nil {
				return nil, err
			}
			return connect(cfg, settings.Prefix), nil
		}}
}

// Store is a [secretstore.Store]. The service's name for a secret is the prefix followed by the secret's own name.
type Store struct {
	service service
	title   string // of the service
	prefix  string
}

// service is one of the AWS services. It stores the contents of secrets by name. Its errors are the SDK's, or those of
// package secretstore.
type service interface {
	get(ctx context.Context, name string) ([]byte, error)
	// put sets the content of a secret. If create is set and the secret exists, put fails.
	put(ctx context.Context, name string, content []byte, create bool) error
	remove(ctx context.Context, name string) error
	// list returns at least the names of all secrets that begin with the prefix. It may return other names, too.
	list(ctx context.Context, prefix string) ([]string, error)
}

var _ secretstore.Store = (*Store)(nil)

// Get implements secretstore.Store.
func (s *Store) Get(ctx context.Context, name string) (secretstore.Secret, error) {
	if err := secretstore.ValidateName(name); err != nil {
		return secretstore.Secret{}, err
	}
	content, err := s.service.get(ctx, s.prefix+name)
	if err != nil {
		return secretstore.Secret{}, s.explain(ctx, "read", name, err)
	}
	return secretstore.Secret{Name: name, Value: secretstore.NewValue(content)}, nil
}

// Put implements secretstore.Store.
func (s *Store) Put(ctx context.Context, name string, value secretstore.Value, cond secretstore.Condition) error {
	if err := secretstore.ValidatePut(name, value, cond); err != nil {
		return err
	}
	err := s.service.put(ctx, s.prefix+name, value.Reveal(), cond == secretstore.IfAbsent)
	return s.explain(ctx, "write", name, err)
}

// Delete implements secretstore.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := secretstore.ValidateName(name); err != nil {
		return err
	}
	err := s.service.remove(ctx, s.prefix+name)
	if isNotFound(err) {
		return nil
	}
	return s.explain(ctx, "delete", name, err)
}

// List implements secretstore.Store. It returns the names without the prefix. It skips a name that lacks the prefix, or
// that is invalid without the prefix.
func (s *Store) List(ctx context.Context) ([]string, error) {
	all, err := s.service.list(ctx, s.prefix)
	if err != nil {
		return nil, fmt.Errorf("list secrets of %s: %w", s.title, err)
	}
	var names []string
	for _, full := range all {
		name, ok := strings.CutPrefix(full, s.prefix)
		if ok && secretstore.ValidateName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// explain translates the service's errors. The new errors may quote the service's messages, because those never contain
// a secret.
func (s *Store) explain(ctx context.Context, what, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // nothing is known
	case isNotFound(err):
		return fmt.Errorf("%w: %s has no %q", secretstore.ErrNotFound, s.title, s.prefix+name)
	case isExists(err):
		return fmt.Errorf("%w: %s has %q", secretstore.ErrExists, s.title, s.prefix+name)
	case awscloud.CodeOf(err) == "InvalidRequestException":
		err = fmt.Errorf("if it is marked for deletion, restore it: %w", err)
	}
	return fmt.Errorf("%s secret %q of %s: %w", what, s.prefix+name, s.title, err)
}

func isNotFound(err error) bool {
	return awscloud.CodeOf(err) == "ResourceNotFoundException" || awscloud.CodeOf(err) == "ParameterNotFound"
}

func isExists(err error) bool {
	return awscloud.CodeOf(err) == "ResourceExistsException" || awscloud.CodeOf(err) == "ParameterAlreadyExists"
}

// maxParameter is the maximum size of an advanced parameter's value in bytes (Systems Manager quotas).
const maxParameter = 8192

// marker starts the value of a parameter that is not plain text. The base64 of the content follows.
const marker = "nstance:base64:"

// NewParameterStore returns a store in AWS Systems Manager Parameter Store. Secrets are SecureString parameters. If
// prefix contains a slash, prefix must begin with a slash.
func NewParameterStore(client *ssm.Client, prefix string) *Store {
	return &Store{parameterStore{client}, "AWS Systems Manager", prefix}
}

type parameterStore struct{ client *ssm.Client }

func (s parameterStore) get(ctx context.Context, name string) ([]byte, error) {
	out, err := s.client.GetParameter(ctx, &ssm.GetParameterInput{Name: &name, WithDecryption: awssdk.Bool(true)})
	switch {
	case err != nil:
		return nil, err
	case out.Parameter == nil:
		return nil, errors.New("the answer holds no parameter")
	}
	return decode(awssdk.ToString(out.Parameter.Value))
}

func (s parameterStore) put(ctx context.Context, name string, content []byte, create bool) error {
	text := encode(content)
	if len(text) > maxParameter {
		return fmt.Errorf("%w: it takes %d bytes, and a parameter at most %d", secretstore.ErrInvalid, len(text),
			maxParameter)
	}
	_, err := s.client.PutParameter(ctx, &ssm.PutParameterInput{
		Name: &name, Value: &text, Type: ssmtypes.ParameterTypeSecureString,
		// Intelligent tiering uses the Standard tier, which is free, as long as the value fits.
		Tier: ssmtypes.ParameterTierIntelligentTiering, Overwrite: awssdk.Bool(!create),
	}, func(o *ssm.Options) {
		if create {
			o.RetryMaxAttempts = 1 // a repeat would fail because of its own success
		}
	})
	return err
}

func (s parameterStore) remove(ctx context.Context, name string) error {
	_, err := s.client.DeleteParameter(ctx, &ssm.DeleteParameterInput{Name: &name})
	return err
}

func (s parameterStore) list(ctx context.Context, prefix string) (names []string, err error) {
	in := &ssm.DescribeParametersInput{MaxResults: awssdk.Int32(50)}
	if prefix != "" {
		in.ParameterFilters = []ssmtypes.ParameterStringFilter{{Key: awssdk.String("Name"),
			Option: awssdk.String("BeginsWith"), Values: []string{prefix}}}
	}
	pages := ssm.NewDescribeParametersPaginator(s.client, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, parameter := range page.Parameters {
			names = append(names, awssdk.ToString(parameter.Name))
		}
	}
	return names, nil
}

// encode returns the value of the parameter for a secret. If the content is plain text, the value is the same text, so
// that a person can read and edit it in the console.
func encode(content []byte) string {
	if text := string(content); plain(text) {
		return text
	}
	return marker + base64.StdEncoding.EncodeToString(content)
}

// plain reports whether a parameter can hold a text unchanged. The service may remove surrounding space, and it reads
// two braces as a reference to another parameter (PutParameter, API reference).
func plain(text string) bool {
	return utf8.ValidString(text) && text == strings.TrimSpace(text) && !strings.Contains(text, "{{") &&
		!strings.HasPrefix(text, marker) &&
		!strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) })
}

func decode(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, marker)
	if !ok {
		return []byte(text), nil
	}
	content, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return nil, errors.New("what follows its marker is not base64")
	}
	return content, nil
}

const (
	// maxSecret is the maximum size of a secret in bytes (Secrets Manager quotas).
	maxSecret = 65536
	// tries is the maximum number of attempts to update or create a secret that other writers create and delete at the
	// same time.
	tries = 5
)

// NewSecretsManager returns a store in AWS Secrets Manager.
func NewSecretsManager(client *sm.Client, prefix string) *Store {
	return &Store{secretsManager{client}, "AWS Secrets Manager", prefix}
}

type secretsManager struct{ client *sm.Client }

func (s secretsManager) get(ctx context.Context, name string) ([]byte, error) {
	out, err := s.client.GetSecretValue(ctx, &sm.GetSecretValueInput{SecretId: &name})
	switch {
	case err != nil:
		return nil, err
	case out.SecretString != nil:
		return []byte(*out.SecretString), nil
	}
	return out.SecretBinary, nil
}

// put stores valid text as a string, so that a person can read and edit it in the console. Unless create is set, put
// first tries to update the secret. It calls CreateSecret if create is set or the secret is missing.
func (s secretsManager) put(ctx context.Context, name string, content []byte, create bool) (err error) {
	if len(content) > maxSecret {
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", secretstore.ErrInvalid, len(content), maxSecret)
	}
	var text *string
	if utf8.Valid(content) && !slices.Contains(content, 0) {
		text, content = awssdk.String(string(content)), nil
	}
	for range tries {
		if !create {
			_, err = s.client.PutSecretValue(ctx, &sm.PutSecretValueInput{SecretId: &name, SecretString: text,
				SecretBinary: content})
			if !isNotFound(err) {
				return err
			}
		}
		// The SDK sends the same request token in all its attempts, so a repeat creates no second secret.
		_, err = s.client.CreateSecret(ctx, &sm.CreateSecretInput{Name: &name, SecretString: text,
			SecretBinary: content})
		if create || !isExists(err) {
			return err
		}
	}
	return err
}

// remove deletes a secret without a recovery window, so that the name can be used again immediately.
func (s secretsManager) remove(ctx context.Context, name string) error {
	_, err := s.client.DeleteSecret(ctx, &sm.DeleteSecretInput{SecretId: &name,
		ForceDeleteWithoutRecovery: awssdk.Bool(true)})
	return err
}

func (s secretsManager) list(ctx context.Context, prefix string) (names []string, err error) {
	in := &sm.ListSecretsInput{MaxResults: awssdk.Int32(100)}
	if prefix != "" {
		in.Filters = []types.Filter{{Key: types.FilterNameStringTypeName, Values: []string{prefix}}}
	}
	pages := sm.NewListSecretsPaginator(s.client, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, entry := range page.SecretList {
			if entry.DeletedDate == nil {
				names = append(names, awssdk.ToString(entry.Name))
			}
		}
	}
	return names, nil
}
