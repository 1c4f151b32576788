// Package aws stores the cluster's secrets in a service of AWS: Secrets Manager, or Systems Manager's Parameter Store.
//
// Invariant: Get returns exactly the bytes of Put. Exactly one of several concurrent creations succeeds. Get of a
// secret that is marked for deletion is an error other than "not found". If the secret is the CA, "not found" would
// make Nstance create a second CA.
package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	sm "github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/smithy-go"

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
	case codeOf(err) == "InvalidRequestException":
		err = fmt.Errorf("if it is marked for deletion, restore it: %w", err)
	}
	return fmt.Errorf("%s secret %q of %s: %w", what, s.prefix+name, s.title, err)
}

func isNotFound(err error) bool {
	return codeOf(err) == "ResourceNotFoundException" || codeOf(err) == "ParameterNotFound"
}

func isExists(err error) bool {
	return codeOf(err) == "ResourceExistsException" || codeOf(err) == "ParameterAlreadyExists"
}

func codeOf(err error) string {
	if failure, ok := errors.AsType[smithy.APIError](err); ok {
		return failure.ErrorCode()
	}
	return ""
}
