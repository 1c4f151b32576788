// Package parameterstore keeps the cluster's secrets in AWS Systems Manager Parameter Store, as SecureString
// parameters.
//
// Invariant: a value comes back to the byte. A parameter holds text; what is not plain text is kept in base64 behind a
// marker.
package parameterstore

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
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/nstance-kit/nstance/services/contract/secretstore"
)

// Client is what is called of the service.
type Client interface {
	PutParameter(ctx context.Context, in *ssm.PutParameterInput, opts ...func(*ssm.Options)) (*ssm.PutParameterOutput,
		error)
	GetParameter(ctx context.Context, in *ssm.GetParameterInput, opts ...func(*ssm.Options)) (*ssm.GetParameterOutput,
		error)
	DeleteParameter(ctx context.Context, in *ssm.DeleteParameterInput,
		opts ...func(*ssm.Options)) (*ssm.DeleteParameterOutput, error)
	DescribeParameters(ctx context.Context, in *ssm.DescribeParametersInput,
		opts ...func(*ssm.Options)) (*ssm.DescribeParametersOutput, error)
}

// maxValue is the largest value of an advanced parameter in bytes (Systems Manager quotas).
const maxValue = 8192

// marker begins the value of a parameter that is not plain text; base64 of the content follows.
const marker = "nstance:base64:"

// Store is a [secretstore.Store]. Parameters are named prefix and name, one after the other; a prefix with slashes
// begins with one.
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
	return New(ssm.NewFromConfig(cfg), prefix), nil
}

var _ secretstore.Store = (*Store)(nil)

// Get implements secretstore.Store.
func (s *Store) Get(ctx context.Context, name string) (secretstore.Secret, error) {
	if err := secretstore.ValidateName(name); err != nil {
		return secretstore.Secret{}, err
	}
	out, err := s.client.GetParameter(ctx, &ssm.GetParameterInput{Name: awssdk.String(s.prefix + name),
		WithDecryption: awssdk.Bool(true)})
	if err != nil {
		return secretstore.Secret{}, s.failed(ctx, "read", name, err)
	}
	if out.Parameter == nil {
		return secretstore.Secret{}, fmt.Errorf("read parameter %q: the answer holds none", s.prefix+name)
	}
	content, err := decode(awssdk.ToString(out.Parameter.Value))
	if err != nil {
		return secretstore.Secret{}, fmt.Errorf("read parameter %q: %w", s.prefix+name, err)
	}
	return secretstore.Secret{Name: name, Value: secretstore.NewValue(content)}, nil
}

// Put implements secretstore.Store.
func (s *Store) Put(ctx context.Context, name string, value secretstore.Value, cond secretstore.Condition) error {
	if err := secretstore.ValidatePut(name, value, cond); err != nil {
		return err
	}
	text := encode(value.Reveal())
	if len(text) > maxValue {
		return fmt.Errorf("%w: it takes %d bytes, and a parameter at most %d", secretstore.ErrInvalid, len(text),
			maxValue)
	}
	_, err := s.client.PutParameter(ctx, &ssm.PutParameterInput{
		Name: awssdk.String(s.prefix + name), Value: &text, Type: types.ParameterTypeSecureString,
		// Standard as long as the value fits, which is free.
		Tier: types.ParameterTierIntelligentTiering, Overwrite: awssdk.Bool(cond == secretstore.Any),
	}, func(o *ssm.Options) {
		if cond == secretstore.IfAbsent {
			o.RetryMaxAttempts = 1 // a repeat would be told that its own success exists
		}
	})
	return s.failed(ctx, "write", name, err)
}

// Delete implements secretstore.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := secretstore.ValidateName(name); err != nil {
		return err
	}
	_, err := s.client.DeleteParameter(ctx, &ssm.DeleteParameterInput{Name: awssdk.String(s.prefix + name)})
	if isA[*types.ParameterNotFound](err) {
		return nil
	}
	return s.failed(ctx, "delete", name, err)
}

// List implements secretstore.Store. What lies under the prefix with a name that is none of a secret's is somebody
// else's.
func (s *Store) List(ctx context.Context) ([]string, error) {
	in := &ssm.DescribeParametersInput{MaxResults: awssdk.Int32(50)}
	if s.prefix != "" {
		in.ParameterFilters = []types.ParameterStringFilter{{Key: awssdk.String("Name"),
			Option: awssdk.String("BeginsWith"), Values: []string{s.prefix}}}
	}
	var names []string
	pages := ssm.NewDescribeParametersPaginator(s.client, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list parameters of AWS Systems Manager: %w", err)
		}
		for _, parameter := range page.Parameters {
			name, ok := strings.CutPrefix(awssdk.ToString(parameter.Name), s.prefix)
			if ok && secretstore.ValidateName(name) == nil {
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
	case isA[*types.ParameterNotFound](err):
		return fmt.Errorf("%w: AWS Systems Manager has no parameter %q", secretstore.ErrNotFound, s.prefix+name)
	case isA[*types.ParameterAlreadyExists](err):
		return fmt.Errorf("%w: AWS Systems Manager has parameter %q", secretstore.ErrExists, s.prefix+name)
	}
	return fmt.Errorf("%s parameter %q of AWS Systems Manager: %w", what, s.prefix+name, err)
}

// encode leaves plain text as it is, so that a person can read and edit it in the console.
func encode(content []byte) string {
	if text := string(content); plain(text) {
		return text
	}
	return marker + base64.StdEncoding.EncodeToString(content)
}

// plain reports whether a parameter can hold a text as it is. Space around it may be lost, and two braces refer to
// other parameters (PutParameter, API reference).
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

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
