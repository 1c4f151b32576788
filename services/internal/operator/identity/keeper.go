package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// Keys of the ConfigMap and the Secrets.
const (
	CAKey      = "ca.crt"
	NonceKey   = "nonce.jwt"
	PrivateKey = "private.key"
	PublicKey  = "public.key"
)

// Options of a [Keeper]. All are required.
type Options struct {
	// Client reads without a cache.
	Client    client.Client
	Namespace string
	// Names of the ConfigMap and the Secrets.
	CAConfigMap, CertSecret, KeySecret, NonceSecret string
	// Cluster and Tenant are who the operator is for.
	Cluster, Tenant string
	// Rand is crypto/rand.Reader except in tests.
	Rand io.Reader
	Now  func() time.Time
	Log  *slog.Logger
}

// Keeper keeps the operator's identity. [Keeper.Ensure] and [Keeper.Run] may not run at the same time; the rest may be
// used concurrently.
type Keeper struct {
	Options
	roots   atomic.Pointer[trust]
	current atomic.Pointer[Identity]
}

// New returns a Keeper that has looked at nothing yet.
func New(o Options) *Keeper { return &Keeper{Options: o} }

// Current is the identity; nil before [Keeper.Ensure] has returned.
func (k *Keeper) Current() *Identity { return k.current.Load() }

// Namespaced, because Secrets of other namespaces are none of the operator's business. Names come from the environment
// and the cluster's, so create and the kubeconfig cannot be bound to one.
//
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get,namespace=nstance-system
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update,namespace=nstance-system

// Ensure returns once there is an identity: the stored one, or a new one by registering with any of the shards, whose
// registration addresses it is given. The error says what a person has to do: the CA or, if a registration is needed,
// the nonce is missing, or no shard registers us.
func (k *Keeper) Ensure(ctx context.Context, shards map[string]string) error {
	roots, err := k.readTrust(ctx)
	if err != nil {
		return err
	}
	k.roots.Store(roots)
	key, secret, err := k.key(ctx)
	if err != nil {
		return err
	}
	identity, reason, err := k.stored(ctx, key, secret, roots)
	if err != nil {
		return err
	}
	if identity == nil {
		if identity, err = k.register(ctx, key, roots, shards, reason); err != nil {
			return err
		}
	}
	k.current.Store(identity)
	k.Log.Info("This is the operator's identity", "operator", identity.Who.ID.String(), "cluster", identity.Who.Cluster,
		"tenant", identity.Who.Tenant,
		"expires", identity.Leaf.NotAfter)
	return nil
}

func (k *Keeper) readTrust(ctx context.Context) (*trust, error) {
	var m corev1.ConfigMap
	if err := k.Client.Get(ctx, k.named(k.CAConfigMap), &m); err != nil {
		return nil, fmt.Errorf("read the cluster CA from ConfigMap %s: %w", k.named(k.CAConfigMap), err)
	}
	text, ok := m.Data[CAKey]
	if !ok {
		return nil, fmt.Errorf("read the cluster CA: ConfigMap %s has no key %s", k.named(k.CAConfigMap), CAKey)
	}
	roots, err := parseTrust([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("read the cluster CA: ConfigMap %s, key %s: %w", k.named(k.CAConfigMap), CAKey, err)
	}
	return roots, nil
}

// key returns the stored key, with the certificate's Secret, which may be nil. It makes and stores a key if there is
// none.
func (k *Keeper) key(ctx context.Context) (ed25519.PrivateKey, *corev1.Secret, error) {
	certificate, err := k.secret(ctx, k.CertSecret)
	if err != nil {
		return nil, nil, err
	}
	secret, err := k.secret(ctx, k.KeySecret)
	if err != nil {
		return nil, nil, err
	}
	if secret == nil {
		key, err := k.makeKey(ctx, certificate)
		if !apierrors.IsAlreadyExists(err) {
			return key, certificate, err
		}
		// Another operator of a rollout without leader election was faster: its key is ours.
		if secret, err = k.secret(ctx, k.KeySecret); err != nil || secret == nil {
			return nil, nil, fmt.Errorf("read Secret %s: it was there a moment ago: %w", k.named(k.KeySecret), err)
		}
	}
	key, err := parseKey(secret.Data[PrivateKey])
	if err != nil {
		return nil, nil, fmt.Errorf("secret %s, key %s: %w; delete the Secret to begin anew with another nonce",
			k.named(k.KeySecret), PrivateKey, err)
	}
	_, public, err := encodeKey(key)
	if err != nil {
		return nil, nil, err
	}
	if !bytes.Equal(secret.Data[PublicKey], public) {
		secret.Data[PublicKey] = public
		if err := k.Client.Update(ctx, secret); err != nil {
			return nil, nil, fmt.Errorf("correct the public key in Secret %s: %w", k.named(k.KeySecret), err)
		}
	}
	return key, certificate, nil
}

// makeKey stores a key: the one that is in the certificate's Secret, or a new one.
func (k *Keeper) makeKey(ctx context.Context, certificate *corev1.Secret) (ed25519.PrivateKey, error) {
	var key ed25519.PrivateKey
	if certificate != nil {
		key, _ = parseKey(certificate.Data[corev1.TLSPrivateKeyKey]) // if not, a new one
	}
	if key == nil {
		seed := make([]byte, ed25519.SeedSize)
		if _, err := io.ReadFull(k.Rand, seed); err != nil {
			return nil, fmt.Errorf("make the operator's key: %w", err)
		}
		key = ed25519.NewKeyFromSeed(seed)
	}
	private, public, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	err = k.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: k.meta(k.KeySecret),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{PrivateKey: private, PublicKey: public},
	})
	if err != nil {
		return nil, fmt.Errorf("store the operator's key in Secret %s: %w", k.named(k.KeySecret), err)
	}
	k.Log.Info("The operator's key is made", "secret", k.KeySecret)
	return key, nil
}

// stored returns the identity of the stored certificate, or nil and why it cannot be used.
func (k *Keeper) stored(ctx context.Context, key ed25519.PrivateKey, secret *corev1.Secret, roots *trust) (*Identity,
	error, error) {
	if secret == nil {
		return nil, errors.New("there is no certificate yet"), nil
	}
	identity, err := k.accept(key, roots, secret.Data[corev1.TLSCertKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s, key %s: %w", k.named(k.CertSecret), corev1.TLSCertKey, err), nil
	}
	if !k.Now().Before(identity.Leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate ended at %s", identity.Leaf.NotAfter.UTC().Format(time.RFC3339)), nil
	}
	private, _, err := encodeKey(key)
	if err != nil {
		return nil, nil, err
	}
	if !bytes.Equal(secret.Data[corev1.TLSPrivateKeyKey], private) {
		return identity, nil, k.store(ctx, key, identity)
	}
	return identity, nil, nil
}

// store writes the certificate with its key.
func (k *Keeper) store(ctx context.Context, key ed25519.PrivateKey, identity *Identity) error {
	private, _, err := encodeKey(key)
	if err != nil {
		return err
	}
	data := map[string][]byte{corev1.TLSCertKey: authority.EncodeCertificate(identity.Leaf),
		corev1.TLSPrivateKeyKey: private}
	secret, err := k.secret(ctx, k.CertSecret)
	switch {
	case err != nil:
		return err
	case secret == nil:
		err = k.Client.Create(ctx, &corev1.Secret{ObjectMeta: k.meta(k.CertSecret), Type: corev1.SecretTypeTLS,
			Data: data})
	default:
		// Not the whole data: what somebody else keeps there stays.
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		for name, value := range data {
			secret.Data[name] = value
		}
		err = k.Client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("store the operator's certificate in Secret %s: %w", k.named(k.CertSecret), err)
	}
	return nil
}

// secret reads a Secret; nil if there is none.
func (k *Keeper) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	var s corev1.Secret
	switch err := k.Client.Get(ctx, k.named(name), &s); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", k.named(name), err)
	}
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	return &s, nil
}

func (k *Keeper) named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: k.Namespace, Name: name}
}

func (k *Keeper) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: k.Namespace, Name: name, Labels: map[string]string{
		"app.kubernetes.io/managed-by": "nstance-operator"}}
}

var expiryDesc = prometheus.NewDesc("nstance_operator_certificate_expiry_seconds",
	"When the operator's certificate ends, in seconds since 1970.", nil, nil)

var _ prometheus.Collector = (*Keeper)(nil)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(out chan<- *prometheus.Desc) { out <- expiryDesc }

// Collect implements prometheus.Collector. Without a certificate there is nothing to tell of: operators that do not
// lead have none.
func (k *Keeper) Collect(out chan<- prometheus.Metric) {
	if identity := k.current.Load(); identity != nil {
		out <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(identity.Leaf.NotAfter.Unix()))
	}
}
