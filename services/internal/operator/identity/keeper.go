package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// These are the names of the entries in the CA ConfigMap and in the identity Secrets.
const (
	CAKey      = "ca.crt"
	NonceKey   = "nonce.jwt"
	PrivateKey = "private.key"
	PublicKey  = "public.key"
	// NextPrivateKey is the entry that holds the private key of an unfinished renewal.
	NextPrivateKey = "next.key"
)

// Options configures a [Keeper]. All fields are required, except Replaced.
type Options struct {
	// Client reads from the API server, not from a cache.
	Client    client.Client
	Namespace string
	// Names of the ConfigMap and the Secrets.
	CAConfigMap, CertSecret, KeySecret, NonceSecret string
	// The operator works for this cluster and this tenant.
	Cluster, Tenant string
	// Rand is crypto/rand.Reader except in tests.
	Rand io.Reader
	Now  func() time.Time
	// Recorder records events about the Secrets.
	Recorder events.EventRecorder
	// Problems receives what is wrong with the ConfigMap and the Secrets.
	Problems *scope.Problems
	Log      *slog.Logger
	// Replaced is called after another identity has replaced the current one. Optional.
	Replaced func()
}

// Keeper manages the operator's identity. [Keeper.Ensure] and [Keeper.Run] must not run at the same time. The other
// methods are safe for concurrent use.
type Keeper struct {
	Options
	roots atomic.Pointer[trustBundle]
	// renewEarly is set when a server asks for an early renewal. Servers do so while the cluster's CA is being rotated.
	renewEarly atomic.Bool
	current    atomic.Pointer[Identity]
	// sent is the CA bundle that came with the current certificate. Only Ensure, Run and Renew use it.
	sent []byte
}

// New returns a Keeper without an identity.
func New(o Options) *Keeper { return &Keeper{Options: o} }

// Current returns the identity, nil before [Keeper.Ensure] has returned.
func (k *Keeper) Current() *Identity { return k.current.Load() }

// The Role is namespaced, because the operator needs no Secrets of other namespaces. The Role does not list the names
// of the Secrets, because these names depend on environment variables and on the cluster. The chart and the components
// for clusterctl know the names, and add them.
//
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get,namespace=nstance-system
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update,namespace=nstance-system

// Ensure loads the stored identity, or registers with one of the shards. shards maps each shard to its registration
// address. An error says what the user must do: provide the CA or the nonce, or repair the shards that refuse the
// registration.
func (k *Keeper) Ensure(ctx context.Context, shards map[string]string) error {
	stored, err := k.readSecret(ctx, k.CertSecret)
	if err != nil {
		return err
	}
	k.keepSent(stored)
	roots, err := k.readTrust(ctx)
	if err != nil {
		// The bundle that a server sent is enough for an operator that is registered.
		sent, parseErr := parseTrust(k.sent)
		if parseErr != nil {
			return err
		}
		roots = sent
	}
	k.report(caSource, err)
	k.roots.Store(roots)
	key, err := k.loadKey(ctx, stored)
	if err != nil {
		return err
	}
	identity, reason, err := k.loadIdentity(ctx, key, stored, roots)
	if err != nil {
		return err
	}
	if identity == nil {
		if identity, err = k.register(ctx, key, roots, shards, reason); err != nil {
			return err
		}
	}
	k.use(identity)
	k.Log.Info("loaded the operator's identity", "operator", identity.Who.ID.String(), "cluster", identity.Who.Cluster,
		"tenant", identity.Who.Tenant,
		"expires", identity.Leaf.NotAfter)
	return nil
}

// readTrust returns the CAs in the ConfigMap, and those that a server has sent with the current certificate. A CA of
// another cluster is an error.
func (k *Keeper) readTrust(ctx context.Context) (*trustBundle, error) {
	var m corev1.ConfigMap
	if err := k.Client.Get(ctx, k.objectKey(k.CAConfigMap), &m); err != nil {
		return nil, fmt.Errorf("read the cluster CA from ConfigMap %s: %w", k.objectKey(k.CAConfigMap), err)
	}
	text, ok := m.Data[CAKey]
	if !ok {
		return nil, fmt.Errorf("read the cluster CA: ConfigMap %s has no key %s", k.objectKey(k.CAConfigMap), CAKey)
	}
	roots, err := parseTrust([]byte(text))
	for i := 0; err == nil && i < len(roots.certs); i++ {
		err = authority.CheckCluster(roots.certs[i], k.Cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster CA: ConfigMap %s, key %s: %w", k.objectKey(k.CAConfigMap), CAKey, err)
	}
	return roots.with(k.sent), nil
}

// Sources of problems.
const (
	caSource       = "the cluster's CA"
	identitySource = "the operator's identity"
	renewalSource  = "the renewal of the operator's certificate"
)

func (k *Keeper) report(source string, err error) {
	k.Problems.Set(source, v1beta1.IdentityFailedReason, err)
}

// loadKey returns the stored key. If no key is stored, loadKey stores a key and returns it. certificate is the
// certificate's Secret, nil if there is none.
func (k *Keeper) loadKey(ctx context.Context, certificate *corev1.Secret) (ed25519.PrivateKey, error) {
	secret, err := k.readSecret(ctx, k.KeySecret)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		key, err := k.createKey(ctx, keyOf(certificate))
		if !apierrors.IsAlreadyExists(err) {
			return key, err
		}
		// During a rollout without leader election, another operator process may have stored its key first. If so, use
		// that stored key.
		if secret, err = k.readSecret(ctx, k.KeySecret); err != nil {
			return nil, err
		}
		if secret == nil {
			return nil, fmt.Errorf("read Secret %s: it was deleted just after it was created",
				k.objectKey(k.KeySecret))
		}
	}
	if next := secret.Data[NextPrivateKey]; certificate != nil && len(next) > 0 &&
		bytes.Equal(next, certificate.Data[corev1.TLSPrivateKeyKey]) {
		// The certificate belongs to the next key. So a renewal was interrupted after its certificate was stored.
		// Complete this renewal.
		secret.Data[PrivateKey] = next
		delete(secret.Data, NextPrivateKey)
		secret.Data[PublicKey] = nil // corrected below
	}
	key, err := authority.ParsePrivateKey(secret.Data[PrivateKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s, key %s: %w; delete the Secret to register again with a new nonce",
			k.objectKey(k.KeySecret), PrivateKey, err)
	}
	_, public := encodeKey(key)
	if !bytes.Equal(secret.Data[PublicKey], public) {
		secret.Data[PublicKey] = public
		if err := k.Client.Update(ctx, secret); err != nil {
			return nil, fmt.Errorf("correct the public key in Secret %s: %w", k.objectKey(k.KeySecret), err)
		}
	}
	return key, nil
}

// keyOf returns the key in the certificate's Secret, nil if there is none.
func keyOf(certificate *corev1.Secret) ed25519.PrivateKey {
	if certificate == nil {
		return nil
	}
	key, err := authority.ParsePrivateKey(certificate.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil // unusable, so a new key is created
	}
	return key
}

func (k *Keeper) generateKey() (ed25519.PrivateKey, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(k.Rand, seed); err != nil {
		return nil, fmt.Errorf("generate the operator's key: %w", err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// nextKey returns the key for the next certificate. If a renewal is unfinished, this is its key. Otherwise nextKey
// generates and stores a new key.
func (k *Keeper) nextKey(ctx context.Context, secret *corev1.Secret) (ed25519.PrivateKey, error) {
	if key, err := authority.ParsePrivateKey(secret.Data[NextPrivateKey]); err == nil {
		return key, nil
	}
	key, err := k.generateKey()
	if err != nil {
		return nil, err
	}
	secret.Data[NextPrivateKey], _ = encodeKey(key)
	return key, k.updateKeys(ctx, secret)
}

// replaceKey stores the key of the current certificate in the operator's key Secret. It removes the entry
// NextPrivateKey.
func (k *Keeper) replaceKey(ctx context.Context, secret *corev1.Secret, key ed25519.PrivateKey) error {
	delete(secret.Data, NextPrivateKey)
	secret.Data[PrivateKey], secret.Data[PublicKey] = encodeKey(key)
	return k.updateKeys(ctx, secret)
}

func (k *Keeper) updateKeys(ctx context.Context, secret *corev1.Secret) error {
	if err := k.Client.Update(ctx, secret); err != nil {
		return fmt.Errorf("store the operator's key in Secret %s: %w", k.objectKey(k.KeySecret), err)
	}
	return nil
}

// createKey stores a key in the operator's key Secret. If key is nil, createKey generates one.
func (k *Keeper) createKey(ctx context.Context, key ed25519.PrivateKey) (ed25519.PrivateKey, error) {
	if key == nil {
		var err error
		if key, err = k.generateKey(); err != nil {
			return nil, err
		}
	}
	private, public := encodeKey(key)
	err := k.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: k.objectMeta(k.KeySecret),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{PrivateKey: private, PublicKey: public},
	})
	if err != nil {
		return nil, fmt.Errorf("store the operator's key in Secret %s: %w", k.objectKey(k.KeySecret), err)
	}
	k.Log.Info("created the operator's key", "secret", k.KeySecret)
	return key, nil
}

// loadIdentity returns the identity of the stored certificate. If the certificate cannot be used, loadIdentity returns
// nil and the reason. The second error means that a request failed.
func (k *Keeper) loadIdentity(ctx context.Context, key ed25519.PrivateKey, secret *corev1.Secret,
	roots *trustBundle) (*Identity,
	error, error) {
	if secret == nil {
		return nil, errors.New("there is no certificate yet"), nil
	}
	identity, err := k.parseCertificate(key, roots, secret.Data[corev1.TLSCertKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s, key %s: %w", k.objectKey(k.CertSecret), corev1.TLSCertKey, err), nil
	}
	if !k.Now().Before(identity.Leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate expired at %s", identity.Leaf.NotAfter.UTC().Format(time.RFC3339)), nil
	}
	private, _ := encodeKey(key)
	if !bytes.Equal(secret.Data[corev1.TLSPrivateKeyKey], private) {
		return identity, nil, k.storeCertificate(ctx, key, identity, nil)
	}
	return identity, nil, nil
}

// storeCertificate writes the certificate, its key and the CA bundle that came with it to the certificate's Secret. If
// bundle is empty, the stored bundle stays.
func (k *Keeper) storeCertificate(ctx context.Context, key ed25519.PrivateKey, identity *Identity,
	bundle []byte) error {
	private, _ := encodeKey(key)
	data := map[string][]byte{corev1.TLSCertKey: authority.EncodeCertificate(identity.Leaf),
		corev1.TLSPrivateKeyKey: private}
	if len(bundle) > 0 {
		data[CAKey], k.sent = bundle, bundle
	}
	secret, err := k.readSecret(ctx, k.CertSecret)
	switch {
	case err != nil:
		return err
	case secret == nil:
		err = k.Client.Create(ctx, &corev1.Secret{ObjectMeta: k.objectMeta(k.CertSecret), Type: corev1.SecretTypeTLS,
			Data: data})
	default:
		maps.Copy(secret.Data, data) // keeps all other entries
		err = k.Client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("store the operator's certificate in Secret %s: %w", k.objectKey(k.CertSecret), err)
	}
	return nil
}

// readSecret reads a Secret. It returns nil if the Secret does not exist.
func (k *Keeper) readSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	var s corev1.Secret
	switch err := k.Client.Get(ctx, k.objectKey(name), &s); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", k.objectKey(name), err)
	}
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	return &s, nil
}

func (k *Keeper) objectKey(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: k.Namespace, Name: name}
}

func (k *Keeper) objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: k.Namespace, Name: name, Labels: map[string]string{
		"app.kubernetes.io/managed-by": "nstance-operator"}}
}

var expiryDesc = prometheus.NewDesc("nstance_operator_certificate_expiry_timestamp_seconds",
	"Expiry of the operator's certificate.", nil, nil)

var _ prometheus.Collector = (*Keeper)(nil)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(out chan<- *prometheus.Desc) { out <- expiryDesc }

// Collect implements prometheus.Collector. A standby operator exports no metric, because it has no certificate.
func (k *Keeper) Collect(out chan<- prometheus.Metric) {
	if identity := k.current.Load(); identity != nil {
		out <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(identity.Leaf.NotAfter.Unix()))
	}
}

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
	key := identity.key()
	private, public := encodeKey(key)
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
