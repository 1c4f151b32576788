package aws

import (
	"errors"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	sm "github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/nstance-kit/nstance/services/contract/secretstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore/secretstoretest"
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

// TestPrefixes checks that a store does not list the secrets of another store, even if the other store's prefix begins
// with its own prefix.
func TestPrefixes(t *testing.T) {
	_, client := openSecrets(t)
	ours, theirs := NewSecretsManager(client, "a/"), NewSecretsManager(client, "a/b/")
	for _, store := range []*Store{ours, theirs} {
		if err := store.Put(t.Context(), "x", secretstore.NewValue([]byte("x")), secretstore.IfAbsent); err != nil {
			t.Fatal(err)
		}
	}
	for _, store := range []*Store{ours, theirs} {
		if names, err := store.List(t.Context()); err != nil || len(names) != 1 {
			t.Errorf("names %v, %v, want just x", names, err)
		}
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
