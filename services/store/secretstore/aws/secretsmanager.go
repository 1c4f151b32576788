package aws

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	sm "github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/nstance-kit/nstance/services/store/secretstore"
)

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
