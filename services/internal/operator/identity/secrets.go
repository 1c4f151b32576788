package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/pasted"
)

// checkSecrets compares the Secrets of the certificate and the key with the identity in use. A newer valid identity in
// the certificate's Secret replaces the one in use. Otherwise checkSecrets writes each Secret again that was deleted or
// changed, the certificate's first, because that one is enough for the next start.
func (k *Keeper) checkSecrets(ctx context.Context) error {
	certificate, err := k.readSecret(ctx, k.CertSecret)
	if err != nil {
		return err
	}
	if next := k.newerIdentity(certificate); next != nil {
		k.use(next)
		k.keepSent(certificate)
		k.Log.Info("using the newer identity in the Secret", "secret", k.CertSecret, "operator", next.Who.ID.String(),
			"expires", next.Leaf.NotAfter)
	}
	identity := k.current.Load()
	key, ok := identity.load().PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return errors.New("the operator's key is not Ed25519") // not possible: parseCertificate has checked the key
	}
	private, public, err := encodeKey(key)
	if err != nil {
		return err
	}
	want := map[string][]byte{corev1.TLSCertKey: authority.EncodeCertificate(identity.Leaf),
		corev1.TLSPrivateKeyKey: private}
	if len(k.sent) > 0 {
		want[CAKey] = k.sent
	}
	if !holds(certificate, want) {
		if err := k.storeCertificate(ctx, key, identity, k.sent); err != nil {
			return err
		}
		k.reportRestored(k.CertSecret, certificate)
	}
	keys, err := k.readSecret(ctx, k.KeySecret)
	if err != nil || holds(keys, map[string][]byte{PrivateKey: private, PublicKey: public}) {
		return err
	}
	if keys == nil {
		_, err = k.createKey(ctx, key)
	} else {
		err = k.replaceKey(ctx, keys, key)
	}
	if err == nil {
		k.reportRestored(k.KeySecret, keys)
	}
	return err
}

// holds reports whether a Secret contains the PEM texts. Other white space makes no difference.
func holds(secret *corev1.Secret, texts map[string][]byte) bool {
	if secret == nil {
		return false
	}
	for name, text := range texts {
		if !bytes.Equal(pasted.Clean(secret.Data[name]), pasted.Clean(text)) {
			return false
		}
	}
	return true
}

// newerIdentity returns the identity in the certificate's Secret if it is valid and was issued later than the one in
// use. Another process of the operator has renewed its certificate then, or a user has replaced the Secret.
func (k *Keeper) newerIdentity(certificate *corev1.Secret) *Identity {
	key := keyOf(certificate)
	if key == nil {
		return nil
	}
	identity, err := k.parseCertificate(key, k.roots.Load(), certificate.Data[corev1.TLSCertKey])
	if err != nil || !k.Now().Before(identity.Leaf.NotAfter) ||
		!identity.Leaf.NotBefore.After(k.current.Load().Leaf.NotBefore) {
		return nil
	}
	return identity
}

// keepSent remembers the CA bundle that came with the certificate in a Secret, if it is valid.
func (k *Keeper) keepSent(certificate *corev1.Secret) {
	if certificate == nil {
		return
	}
	if _, err := authority.ParseBundle(certificate.Data[CAKey]); err == nil {
		k.sent = certificate.Data[CAKey]
	}
}

// reportRestored logs that a Secret was written again, and records an event. before is the Secret that was found, nil
// if it was deleted.
func (k *Keeper) reportRestored(name string, before *corev1.Secret) {
	what := "changed"
	if before == nil {
		what = "deleted"
	}
	k.Log.Warn("wrote a Secret of the identity again", "secret", name, "was", what)
	k.Recorder.Eventf(&corev1.Secret{ObjectMeta: k.objectMeta(name)}, nil, corev1.EventTypeWarning,
		v1beta1.SecretRestoredReason, "Restore", "%s", fmt.Sprintf("the Secret was %s while the operator was running; "+
			"the operator wrote it again", what))
}
