package aws

import (
	"errors"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	sm "github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/services/store/secretstore/secretstoretest"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

func openSecrets(t *testing.T) (*fakeaws.Cloud, *sm.Client) {
	cloud, cfg := open(t)
	return cloud, sm.NewFromConfig(cfg)
}

func TestSecretsManager(t *testing.T) {
	secretstoretest.Run(t, func(t *testing.T) (a, b secretstore.Store) {
		_, client := openSecrets(t)
		return NewSecretsManager(client, "nstance/example/"), NewSecretsManager(client, "nstance/example/")
	})
}

// TestMarkedForDeletion checks that a secret that a person has marked for deletion does not count as missing.
func TestMarkedForDeletion(t *testing.T) {
	_, client := openSecrets(t)
	store := NewSecretsManager(client, "p/")
	value := secretstore.NewValue([]byte("x"))
	if err := store.Put(t.Context(), "ca.key", value, secretstore.IfAbsent); err != nil {
		t.Fatal(err)
	}
	if _, err := client.DeleteSecret(t.Context(), &sm.DeleteSecretInput{SecretId: awssdk.String("p/ca.key"),
		RecoveryWindowInDays: awssdk.Int64(7)}); err != nil {
		t.Fatal(err)
	}
	_, err := store.Get(t.Context(), "ca.key")
	if err == nil || errors.Is(err, secretstore.ErrNotFound) || !strings.Contains(err.Error(), "restore it") {
		t.Errorf("get: %v", err)
	}
	if err := store.Put(t.Context(), "ca.key", value, secretstore.IfAbsent); err == nil {
		t.Error("a second one was created")
	}
}

// TestPrefixes also checks that the services select the secrets by prefix, because an account may have many.
func TestPrefixes(t *testing.T) {
	_, secrets := openSecrets(t)
	_, parameters := openParameters(t)
	for title, open := range map[string]func(prefix string) *Store{
		"secrets":    func(prefix string) *Store { return NewSecretsManager(secrets, prefix) },
		"parameters": func(prefix string) *Store { return NewParameterStore(parameters, prefix) },
	} {
		t.Run(title, func(t *testing.T) {
			root := map[string]string{"secrets": "", "parameters": "/"}[title]
			secretstoretest.Prefixes(t, func(prefix string) secretstore.Store { return open(root + prefix) })
			if names, err := open("").service.list(t.Context(), root+"a/"); err != nil || len(names) != 2 {
				t.Errorf("the service lists %v, %v, want 2 names", names, err)
			}
		})
	}
}

// TestReadableInConsole checks that text is stored as text, and everything else as bytes.
func TestReadableInConsole(t *testing.T) {
	_, client := openSecrets(t)
	store := NewSecretsManager(client, "")
	for content, readable := range map[string]bool{"grüße\n": true, "gr\xfc\xdfe": false, "a\x00b": false} {
		if err := store.Put(t.Context(), "x", secretstore.NewValue([]byte(content)), secretstore.Any); err != nil {
			t.Fatal(err)
		}
		out, err := client.GetSecretValue(t.Context(), &sm.GetSecretValueInput{SecretId: awssdk.String("x")})
		if err != nil || (out.SecretString != nil) != readable || (out.SecretBinary != nil) == readable {
			t.Errorf("%q is stored as text %v, as bytes %v, %v", content, out.SecretString != nil,
				out.SecretBinary != nil, err)
		}
	}
}

// TestOtherWriters has other writers that create or delete the secret between the requests of a put.
func TestOtherWriters(t *testing.T) {
	const missing, exists, denied = "ResourceNotFoundException", "ResourceExistsException", "AccessDeniedException"
	for name, test := range map[string]struct {
		action, code string // fails once
		cond         secretstore.Condition
		exists       bool
		want         string // "" means success
	}{
		"deleted and created again":  {"PutSecretValue", missing, secretstore.Any, true, ""},
		"created, and then deleted":  {"CreateSecret", exists, secretstore.Any, false, ""},
		"created first":              {"CreateSecret", exists, secretstore.IfAbsent, false, "secret exists"},
		"not allowed to be created":  {"CreateSecret", denied, secretstore.Any, false, denied},
		"not allowed to be replaced": {"PutSecretValue", denied, secretstore.Any, true, denied},
	} {
		t.Run(name, func(t *testing.T) {
			cloud, client := openSecrets(t)
			store := NewSecretsManager(client, "")
			if test.exists {
				value := secretstore.NewValue([]byte("old"))
				if err := store.Put(t.Context(), "x", value, secretstore.IfAbsent); err != nil {
					t.Fatal(err)
				}
			}
			cloud.Faults().Fail(fault.Match{Action: test.action}, 1, 400, test.code, "")
			err := store.Put(t.Context(), "x", secretstore.NewValue([]byte("new")), test.cond)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("put: %v, want %q", err, test.want)
			}
		})
	}
}

// TestLostAnswerOfSecretsManager checks that the SDK repeats a creation with a lost answer under the same token, and
// that the service creates one secret.
func TestLostAnswerOfSecretsManager(t *testing.T) {
	cloud, client := openSecrets(t)
	store := NewSecretsManager(client, "")
	cloud.Faults().LoseAnswer(fault.Match{Service: "secretsmanager", Action: "CreateSecret"}, 1)
	if err := store.Put(t.Context(), "x", secretstore.NewValue([]byte("x")), secretstore.IfAbsent); err != nil {
		t.Error(err)
	}
	if cloud.Faults().Pending() != 0 {
		t.Error("no answer was lost")
	}
}
