package aws

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/nstance-kit/nstance/services/store/secretstore"
)

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
		Name: &name, Value: &text, Type: types.ParameterTypeSecureString,
		// Intelligent tiering uses the Standard tier, which is free, as long as the value fits.
		Tier: types.ParameterTierIntelligentTiering, Overwrite: awssdk.Bool(!create),
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
		in.ParameterFilters = []types.ParameterStringFilter{{Key: awssdk.String("Name"),
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
