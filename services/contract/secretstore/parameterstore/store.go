// Package parameterstore stores the cluster's secrets in AWS Systems Manager Parameter Store, as SecureString
// parameters.
//
// Invariant: Get returns exactly the bytes of Put. A parameter holds text, so a value that is not plain text is stored
// in base64 after a marker.
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

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/secretstore"
)

// Client lists the methods of the service that this package uses.
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

// maxValue is the maximum size of an advanced parameter's value in bytes (Systems Manager quotas).
const maxValue = 8192

// marker starts the value of a parameter that is not plain text. The base64 of the content follows.
const marker = "nstance:base64:"

// Store is a [secretstore.Store]. The name of a parameter is the prefix followed by the name of the secret. A prefix
// with slashes starts with a slash.
type Store struct {
	client Client
	prefix string
}

// New returns a store that uses client.
func New(client Client, prefix string) *Store { return &Store{client, prefix} }

// Backend describes this kind of secrets store.
var Backend = secretstore.Backend{Name: "aws-parameter-store",
	Open: func(ctx context.Context, settings config.Secrets, _ secretstore.Options) (secretstore.Store, error) {
		return Open(ctx, settings.Prefix)
	}}

// Open makes a client with the SDK's default configuration: environment, profiles, the machine's role.
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
		// The tier is Standard, which is free, as long as the value fits.
		Tier: types.ParameterTierIntelligentTiering, Overwrite: awssdk.Bool(cond == secretstore.Any),
	}, func(o *ssm.Options) {
		if cond == secretstore.IfAbsent {
			o.RetryMaxAttempts = 1 // a repeat would fail because of its own success
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

// List implements secretstore.Store. It ignores parameters under the prefix with names that no secret can have.
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

// failed translates the service's errors. The service's messages do not quote values.
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

// encode returns plain text unchanged, so that a person can read and edit it in the console.
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

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
