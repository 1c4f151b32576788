package identity

import (
	"context"
	"crypto/ed25519"

	corev1 "k8s.io/api/core/v1"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// restoreSecrets writes the Secrets of the certificate and the key again if they were deleted. It writes the
// certificate's Secret first, because that one is enough for the next start.
func (k *Keeper) restoreSecrets(ctx context.Context) {
	identity := k.current.Load()
	key, ok := identity.load().PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return // not possible: parseCertificate has checked the key
	}
	for _, one := range []struct {
		name    string
		restore func() error
	}{
		{k.CertSecret, func() error { return k.storeCertificate(ctx, key, identity, k.sent) }},
		{k.KeySecret, func() error { _, err := k.createKey(ctx, key); return err }},
	} {
		secret, err := k.readSecret(ctx, one.name)
		if err == nil && secret == nil {
			err = one.restore()
		} else if err == nil {
			continue
		}
		if err != nil {
			if ctx.Err() == nil {
				k.Log.Warn("failed to check that a Secret of the identity exists", "secret", one.name, "error", err)
			}
			continue
		}
		k.Log.Warn("a Secret of the identity was deleted; wrote it again", "secret", one.name)
		k.Recorder.Eventf(&corev1.Secret{ObjectMeta: k.objectMeta(one.name)}, nil, corev1.EventTypeWarning,
			v1beta1.SecretRestoredReason, "Restore", "the Secret was deleted while the operator was running; "+
				"the operator wrote it again")
	}
}
