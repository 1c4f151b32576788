// Package identitytest creates operator identities for tests.
//
// Invariant: the certificates are real. Only the Kubernetes API that stores them is fake.
package identitytest

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/operator/identity"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// Namespace is the namespace of all objects.
const Namespace = "nstance-system"

// Options returns the identity options of a tenant's operator. The ConfigMap and the Secrets have their default names.
func Options(c client.Client, cluster, tenant string, now func() time.Time) identity.Options {
	return identity.Options{Client: c, Namespace: Namespace, CAConfigMap: "nstance-cluster-ca",
		CertSecret: "nstance-operator-cert",
		KeySecret:  "nstance-operator-key", NonceSecret: "nstance-operator-nonce", Cluster: cluster, Tenant: tenant,
		Rand: fleettest.Rand(9),
		Now:  now, Recorder: &events.FakeRecorder{}, Problems: &scope.Problems{}, Log: slog.New(slog.DiscardHandler)}
}

// CA returns the ConfigMap with the cluster's CA.
func CA(cluster *fleettest.Cluster) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "nstance-cluster-ca"},
		Data: map[string]string{identity.CAKey: string(authority.EncodeBundle(cluster.CA.Certificate()))}}
}

// Key returns an operator's key and its PEM encoding.
func Key(t testing.TB) (ed25519.PrivateKey, []byte) {
	t.Helper()
	key := ed25519.NewKeyFromSeed(append(make([]byte, 31), 8))
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Certificate returns a new certificate for the key that [Key] returns. It is valid for ttl, beginning at issued.
func Certificate(t testing.TB, cluster *fleettest.Cluster, tenant string, issued time.Time, ttl time.Duration) []byte {
	t.Helper()
	id, err := ident.NewID(ident.OperatorPrefix, fleettest.Now, fleettest.Rand(3))
	if err != nil {
		t.Fatal(err)
	}
	key, _ := Key(t)
	cert, err := cluster.CA.IssueClient(authority.ClientSpec{Identity: authority.Identity{Role: authority.RoleOperator,
		Cluster: cluster.ID, Tenant: tenant, ID: id},
		PublicKey: key.Public().(ed25519.PublicKey), TTL: ttl}, fleettest.Rand(4), issued)
	if err != nil {
		t.Fatal(err)
	}
	return authority.EncodeCertificate(cert)
}

// Keeper returns a Keeper with an identity.
func Keeper(t testing.TB, cluster *fleettest.Cluster, tenant string) *identity.Keeper {
	t.Helper()
	_, private := Key(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "nstance-operator-cert"},
		Data: map[string][]byte{
			corev1.TLSCertKey:       Certificate(t, cluster, tenant, fleettest.Now, authority.OperatorTTL),
			corev1.TLSPrivateKeyKey: private}}
	keeper := identity.New(Options(fake.NewClientBuilder().WithObjects(CA(cluster), secret).Build(), cluster.ID, tenant,
		fleettest.Clock))
	if err := keeper.Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return keeper
}
