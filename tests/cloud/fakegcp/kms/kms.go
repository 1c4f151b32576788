// Package kms fakes the parts of Cloud KMS that other services need to encrypt: the policies of keys, and whether a key
// can be used. A test makes the keys, as a user of the modules does.
package kms

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// user is the role with the permissions to encrypt and decrypt.
const user = "roles/cloudkms.cryptoKeyEncrypterDecrypter"

// KMS holds keys in memory.
type KMS struct {
	mu   sync.Mutex
	keys map[string]*key // by name, projects/…/locations/…/keyRings/…/cryptoKeys/…
}

type key struct {
	disabled bool
	policy   policy.Policy
}

// New makes a service without keys.
func New() *KMS { return &KMS{keys: map[string]*key{}} }

// Add makes a key that no caller may use.
func (k *KMS) Add(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[name] = &key{}
}

// SetDisabled disables the only version of a key, or enables it again.
func (k *KMS) SetDisabled(name string, disabled bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[name].disabled = disabled
}

// PermissionDenied is the reason in the error about a key that a service may not use.
const PermissionDenied = "kmsPermissionDenied"

// Use returns an error if a service cannot encrypt and decrypt with a key. The service acts as the service account
// "member".
func (k *KMS) Use(name, member string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	refusal := &rest.Error{Code: http.StatusBadRequest, Message: "Cloud KMS error when using key " + name + ": "}
	found := k.keys[name]
	switch {
	case found == nil || !found.policy.Allows(member, policy.Attributes{Name: name},
		func(role string) bool { return role == user }):
		refusal.Reason = PermissionDenied
		refusal.Message += fmt.Sprintf("Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied on resource '%s' "+
			"(or it may not exist).", name)
	case found.disabled:
		refusal.Reason = "invalid"
		refusal.Message += name + "/cryptoKeyVersions/1 is not enabled, current state is: DISABLED."
	default:
		return nil
	}
	return refusal
}

// Handlers returns the methods that the fake has.
func (k *KMS) Handlers() map[string]rest.Handler {
	const keys = "cloudkms.projects.locations.keyRings.cryptoKeys."
	return map[string]rest.Handler{
		keys + "getIamPolicy": k.onKey(func(c *rest.Call, found *key) (any, error) {
			version, _ := strconv.Atoi(c.Query.Get("options.requestedPolicyVersion"))
			return found.policy.Get(version), nil
		}),
		keys + "setIamPolicy": k.onKey(func(c *rest.Call, found *key) (any, error) {
			return found.policy.Set(c.Body["policy"])
		}),
	}
}

func (k *KMS) onKey(f func(*rest.Call, *key) (any, error)) rest.Handler {
	return func(c *rest.Call) (any, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		name := c.Params["resource"]
		if found := k.keys[name]; found != nil {
			return f(c, found)
		}
		return nil, rest.NotFound("CryptoKey %s not found.", name)
	}
}

// Inventory returns the bindings of the keys.
func (k *KMS) Inventory() (found []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, key := range k.keys {
		for _, b := range key.policy.Bindings() {
			found = append(found, fmt.Sprintf("binding %s of %v on %s", b.Role, b.Members, name))
		}
	}
	return found
}
