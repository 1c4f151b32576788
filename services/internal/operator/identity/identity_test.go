package identity_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/operator/identity"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/internal/proof/identitytest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// front is the registration service of a real leader. A test can make it drop answers and redirect clients.
type front struct {
	registerapi.Service
	mu    sync.Mutex
	calls int
	lose  func(call int) bool
	to    string
}

func (f *front) RegisterOperator(ctx context.Context, r *nstancev1.RegisterOperatorRequest) (
	*nstancev1.RegisterOperatorResponse, error) {
	f.mu.Lock()
	f.calls++
	lost, to := f.lose != nil && f.lose(f.calls), f.to
	f.mu.Unlock()
	if to != "" {
		return nil, notleader.Error("not the leader", &nstancev1.NotLeader{Shard: "a", RegistrationAddr: to})
	}
	answer, err := f.Service.RegisterOperator(ctx, r)
	if lost {
		return nil, status.Error(codes.Unavailable, "the answer was lost")
	}
	return answer, err
}

// testShard is shard "a" of cluster "example". Its Kubernetes API contains the objects that an administrator creates
// for tenant "prod".
type testShard struct {
	*leadertest.Leader
	front *front
	addr  string
	kube  client.WithWatch
	log   *bytes.Buffer
	nonce string
}

func newTestShard(t *testing.T) *testShard {
	t.Helper()
	l := leadertest.New(t, config.Group{Template: "worker", Kind: "knd", Size: 1})
	leader := &registerapi.Registrar{Context: l.Context, Cluster: l.Name, Shard: "a", Term: l.Term(),
		Incarnation: leadertest.Incarnation, State: l.State,
		Records: l.Executor, Store: l.Bucket, NonceKeys: l.NonceKey.Accepted(), Issuer: l.Issuer(),
		Record: func(record.Event) {}}
	w := &testShard{Leader: l, log: new(bytes.Buffer), front: &front{Service: registerapi.Service{Now: l.Clock.Now,
		Log:    l.Log,
		Leader: func() (*registerapi.Registrar, error) { return leader, nil }}}}
	w.addr = l.Serve(t, "", func(s *grpc.Server) { nstancev1.RegisterRegistrationServiceServer(s, w.front) })
	nonce, _, err := authority.MintNonce(l.NonceKey, authority.NonceSpec{Role: authority.RoleOperator, Cluster: l.Name,
		Tenant: "prod"}, rand.Reader, l.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.nonce = nonce.Reveal()
	w.kube = fake.NewClientBuilder().WithObjects(
		&corev1.ConfigMap{ObjectMeta: meta("nstance-cluster-ca"), Data: map[string]string{
			identity.CAKey: string(authority.EncodeBundle(l.CA.Certificate()))}},
		&corev1.Secret{ObjectMeta: meta("nstance-operator-nonce"), Data: map[string][]byte{
			identity.NonceKey: []byte(w.nonce + "\n")}},
	).Build()
	return w
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: identitytest.Namespace, Name: name}
}

func (f *testShard) keeper(c client.Client) *identity.Keeper {
	o := identitytest.Options(c, f.Name, "prod", f.Clock.Now)
	o.Rand = rand.Reader
	o.Log = slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return identity.New(o)
}

func (f *testShard) ensure(ctx context.Context) (*identity.Keeper, error) {
	k := f.keeper(f.kube)
	return k, k.Ensure(ctx, map[string]string{"a": f.addr})
}

func (f *testShard) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	var s corev1.Secret
	if err := f.kube.Get(t.Context(), types.NamespacedName{Namespace: identitytest.Namespace, Name: name},
		&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (f *testShard) remove(t *testing.T, name string) {
	t.Helper()
	if err := f.kube.Delete(t.Context(), f.secret(t, name)); err != nil {
		t.Fatal(err)
	}
}

func (f *testShard) edit(t *testing.T, name string, change func(*corev1.Secret)) {
	t.Helper()
	s := f.secret(t, name)
	change(s)
	if err := f.kube.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// consistent checks that exactly one operator is registered, and that the key Secret and the certificate Secret belong
// to its key.
func (f *testShard) consistent(t *testing.T) *x509.Certificate {
	t.Helper()
	all, err := f.Bucket.ListOperators(t.Context(), "prod")
	if err != nil || len(all) != 1 {
		t.Fatalf("%d operators are registered (%v)", len(all), err)
	}
	key, cert := f.secret(t, "nstance-operator-key"), f.secret(t, "nstance-operator-cert")
	if !bytes.Equal(key.Data[identity.PrivateKey], cert.Data[corev1.TLSPrivateKeyKey]) {
		t.Error("the keys in the two Secrets differ")
	}
	block, _ := pem.Decode(key.Data[identity.PublicKey])
	if block == nil {
		t.Fatal("no public key")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil || !bytes.Equal(public.(ed25519.PublicKey), all[0].PublicKey) {
		t.Errorf("the public key is not the operator's (%v)", err)
	}
	block, _ = pem.Decode(cert.Data[corev1.TLSCertKey])
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !bytes.Equal(leaf.PublicKey.(ed25519.PublicKey), all[0].PublicKey) {
		t.Errorf("the certificate is not the operator's (%v)", err)
	}
	if cert.Type != corev1.SecretTypeTLS || authority.Serial(leaf) != all[0].Certificate.Serial {
		t.Errorf("type %s, serial %s, recorded %s", cert.Type, authority.Serial(leaf), all[0].Certificate.Serial)
	}
	return leaf
}

// silent checks that no secret occurs in the log or in the given errors.
func (f *testShard) silent(t *testing.T, errs ...error) {
	t.Helper()
	text := f.log.String() + fmt.Sprint(errs)
	for name, secret := range map[string]string{"the nonce": f.nonce, "a private key": "PRIVATE KEY"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is in the log or in an error:\n%s", name, text)
		}
	}
}

func TestRegistersOnceAndReuses(t *testing.T) {
	w := newTestShard(t)
	k, err := w.ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leaf := w.consistent(t)
	registry := prometheus.NewRegistry()
	if err := registry.Register(k); err != nil {
		t.Fatal(err)
	}
	if families, err := registry.Gather(); err != nil || len(families) != 1 ||
		families[0].GetMetric()[0].GetGauge().GetValue() != float64(leaf.NotAfter.Unix()) {
		t.Errorf("metrics %v, %v", families, err)
	}
	if who := k.Current().Who; who.Tenant != "prod" || who.Role != authority.RoleOperator ||
		!k.Current().Leaf.Equal(leaf) {
		t.Errorf("identity %v", k.Current())
	}
	w.remove(t, "nstance-operator-nonce") // no longer needed
	again, err := w.ensure(t.Context())
	if err != nil || w.front.calls != 1 || !again.Current().Leaf.Equal(leaf) {
		t.Errorf("second start: %v, %d registrations", err, w.front.calls)
	}

	// The operator's key is in two Secrets. If it is lost or damaged in one of them, Ensure restores it from the other
	// one.
	w.remove(t, "nstance-operator-key")
	if _, err := w.ensure(t.Context()); err != nil {
		t.Error(err)
	}
	w.consistent(t)
	w.edit(t, "nstance-operator-cert", func(s *corev1.Secret) {
		s.Data[corev1.TLSPrivateKeyKey] = []byte("x")
		s.Data["ca.crt"] = []byte("kept")
	})
	w.edit(t, "nstance-operator-key", func(s *corev1.Secret) { delete(s.Data, identity.PublicKey) })
	if _, err := w.ensure(t.Context()); err != nil {
		t.Error(err)
	}
	w.consistent(t)
	if string(w.secret(t, "nstance-operator-cert").Data["ca.crt"]) != "kept" {
		t.Error("another program's key of the Secret is gone")
	}
	w.silent(t)
}

// errKilled is the error of every request of a killed client.
var errKilled = errors.New("killed")

// killed returns a client that acts as if its process were killed at the n-th request, counted from 1. If after is
// true, that request still takes effect. All later requests fail. asked counts the requests.
func killed(inner client.WithWatch, n int, after bool, asked *int) client.Client {
	do := func(run func() error) error {
		*asked++
		if n > 0 && (*asked > n || *asked == n && !after) {
			return errKilled
		}
		if err := run(); err != nil {
			return err
		}
		if *asked == n {
			return errKilled
		}
		return nil
	}
	return interceptor.NewClient(inner, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			return do(func() error { return c.Get(ctx, key, o, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return do(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return do(func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			return do(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return do(func() error { return c.Delete(ctx, o, opts...) })
		},
	})
}

// TestKilledAnywhere kills a starting operator at each of its requests. After the next start, exactly one operator must
// be registered.
func TestKilledAnywhere(t *testing.T) {
	total := 0
	w := newTestShard(t)
	if err := w.keeper(killed(w.kube, 0, false, &total)).Ensure(t.Context(),
		map[string]string{"a": w.addr}); err != nil || total < 6 {
		t.Fatalf("%d requests: %v", total, err)
	}
	for n := 1; n <= total; n++ {
		for _, after := range []bool{false, true} {
			w := newTestShard(t)
			asked := 0
			if err := w.keeper(killed(w.kube, n, after, &asked)).Ensure(t.Context(),
				map[string]string{"a": w.addr}); !errors.Is(err, errKilled) {
				t.Fatalf("request %d of %d: %v", n, total, err)
			}
			k, err := w.ensure(t.Context())
			if err != nil {
				t.Fatalf("started again after request %d (%t): %v", n, after, err)
			}
			if leaf := w.consistent(t); !k.Current().Leaf.Equal(leaf) {
				t.Errorf("after request %d: not the stored certificate", n)
			}
			w.silent(t)
		}
	}
}

func TestLostAnswer(t *testing.T) {
	w := newTestShard(t)
	w.front.lose = func(call int) bool { return call == 1 }
	_, err := w.ensure(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no shard has registered the operator") {
		t.Fatal(err)
	}
	w.silent(t, err)
	if _, err := w.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.consistent(t)
}

func TestRegistersWithAnyShard(t *testing.T) {
	w := newTestShard(t)
	k := w.keeper(w.kube)
	// Nothing listens at the address of shard "0". The address of shard "b" belongs to a server of shard "a".
	err := k.Ensure(t.Context(), map[string]string{"0": "127.0.0.1:1", "b": w.addr})
	if err == nil || !strings.Contains(err.Error(), "shard 0: ") || !strings.Contains(err.Error(),
		"wrong peer: a server of shard a, want shard b") {
		t.Fatalf("no shard: %v", err)
	}
	if err := k.Ensure(t.Context(), map[string]string{"0": "127.0.0.1:1", "a": w.addr}); err != nil {
		t.Fatal(err)
	}
	w.consistent(t)

	w = newTestShard(t)
	standby := &front{to: w.addr}
	addr := w.Serve(t, "", func(s *grpc.Server) { nstancev1.RegisterRegistrationServiceServer(s, standby) })
	if err := w.keeper(w.kube).Ensure(t.Context(), map[string]string{"a": addr}); err != nil || standby.calls != 1 {
		t.Errorf("by way of a standby: %v", err)
	}
	w.consistent(t)
}

func TestErrorsNameWhatIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*testing.T, *testShard)
		want    string
	}{
		"no nonce": {func(t *testing.T, w *testShard) { w.remove(t, "nstance-operator-nonce") },
			"must register (there is no certificate yet), but Secret nstance-system/nstance-operator-nonce with a " +
				"registration nonce is missing"},
		"no key in the nonce's Secret": {func(t *testing.T, w *testShard) {
			w.edit(t, "nstance-operator-nonce", func(s *corev1.Secret) {
				s.Data = map[string][]byte{"nonce": []byte("x")}
			})
		}, "has no key nonce.jwt"},
		"refused nonce": {func(t *testing.T, w *testShard) {
			w.edit(t, "nstance-operator-nonce", func(s *corev1.Secret) { s.Data[identity.NonceKey] = []byte("a.b.c") })
		}, ": rpc error: code = InvalidArgument"},
		"expired": {func(t *testing.T, w *testShard) {
			if _, err := w.ensure(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.remove(t, "nstance-operator-nonce")
			w.Clock.Advance(authority.OperatorTTL + time.Hour)
		}, "must register (the certificate expired at"},
		"another cluster's certificate": {func(t *testing.T, w *testShard) {
			if _, err := w.ensure(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.remove(t, "nstance-operator-nonce")
			w.edit(t, "nstance-operator-cert", func(s *corev1.Secret) {
				key, private := identitytest.Key(t)
				cert := w.Certificate(t, authority.Identity{Role: authority.RoleOperator, Cluster: w.Name,
					Tenant: "other", ID: w.NewID(t, "opr")}, key)
				s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey] = authority.EncodeCertificate(cert.Leaf),
					private
			})
			w.edit(t, "nstance-operator-key", func(s *corev1.Secret) {
				_, s.Data[identity.PrivateKey] = identitytest.Key(t)
			})
		}, "the certificate is for cluster example, tenant other"},
		"broken key": {func(t *testing.T, w *testShard) {
			s := &corev1.Secret{ObjectMeta: meta("nstance-operator-key"),
				Data: map[string][]byte{
					identity.PrivateKey: []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")}}
			if err := w.kube.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}, "not a PKCS #8 private key; delete the Secret to register again"},
		"no CA": {func(t *testing.T, w *testShard) {
			if err := w.kube.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: meta(
				"nstance-cluster-ca")}); err != nil {
				t.Fatal(err)
			}
		}, `configmaps "nstance-cluster-ca" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestShard(t)
			test.prepare(t, w)
			k, err := w.ensure(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || k.Current() != nil {
				t.Errorf("got %v, want %q", err, test.want)
			}
			w.silent(t, err)
		})
	}
}

// TestNonceIsNotSentToOtherServers checks that a server without the cluster's certificate gets no nonce.
func TestNonceIsNotSentToOtherServers(t *testing.T) {
	w, other := newTestShard(t), newTestShard(t)
	err := w.keeper(w.kube).Ensure(t.Context(), map[string]string{"a": other.addr})
	if err == nil || !strings.Contains(err.Error(), "certificate") || other.front.calls != 0 {
		t.Errorf("%d calls: %v", other.front.calls, err)
	}
}

func TestRenews(t *testing.T) {
	w := newTestShard(t)
	k, err := w.ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := k.Current()
	renew := func(context.Context, ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse, error) {
		all, err := w.Bucket.ListOperators(t.Context(), "prod")
		if err != nil {
			return nil, err
		}
		cert, _, err := w.Issuer().Issue(first.Who, all[0].PublicKey)
		return &nstancev1.OperatorServiceRenewCertificateResponse{Certificate: authority.EncodeCertificate(cert)}, err
	}
	w.Clock.Advance(24 * time.Hour)
	w.remove(t, "nstance-operator-key")
	if err := k.Renew(t.Context(), renew); err != nil {
		t.Fatal(err)
	}
	if now := k.Current(); !now.Leaf.NotAfter.After(first.Leaf.NotAfter) || now.Who != first.Who {
		t.Errorf("identity %v until %v", now, now.Leaf.NotAfter)
	}
	if again, err := w.ensure(t.Context()); err != nil || !again.Current().Leaf.Equal(k.Current().Leaf) ||
		w.front.calls != 1 {
		t.Errorf("after a restart: %v, %d registrations", err, w.front.calls)
	}
	if !bytes.Equal(w.secret(t, "nstance-operator-key").Data[identity.PrivateKey],
		w.secret(t, "nstance-operator-cert").Data[corev1.TLSPrivateKeyKey]) {
		t.Error("the keys in the two Secrets differ")
	}
	for name, bad := range map[string]struct {
		renew identity.Renewer
		want  string
	}{
		"an older one": {func(context.Context, ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse,
			error) {
			return &nstancev1.OperatorServiceRenewCertificateResponse{
				Certificate: authority.EncodeCertificate(first.Leaf)}, nil
		}, "earlier than the current one"},
		"another's": {func(context.Context, ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse,
			error) {
			cert, _, err := w.Issuer().Issue(first.Who, transporttest.Public(transporttest.NewKey(t)))
			return &nstancev1.OperatorServiceRenewCertificateResponse{Certificate: authority.EncodeCertificate(cert)},
				err
		}, "another key"},
		"none": {func(context.Context, ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse, error) {
			return &nstancev1.OperatorServiceRenewCertificateResponse{}, nil
		}, "not PEM"},
	} {
		had := k.Current()
		if err := k.Renew(t.Context(), bad.renew); err == nil || !strings.Contains(err.Error(), bad.want) ||
			k.Current() != had {
			t.Errorf("%s: %v", name, err)
		}
	}

	// This server issues a certificate for the key in the request, but its first answer is lost. The operator must then
	// use the same key in its next request, even after a restart.
	var asked []ed25519.PublicKey
	rekey := func(_ context.Context, key ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse,
		error) {
		if asked = append(asked, key); len(asked) == 1 {
			return nil, errors.New("the answer is lost")
		}
		cert, _, err := w.Issuer().Issue(first.Who, key)
		return &nstancev1.OperatorServiceRenewCertificateResponse{Certificate: authority.EncodeCertificate(cert)}, err
	}
	w.Clock.Advance(24 * time.Hour)
	if err := k.Renew(t.Context(), rekey); err == nil {
		t.Fatal("the renewal without an answer succeeded")
	}
	if k, err = w.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := k.Renew(t.Context(), rekey); err != nil {
		t.Fatal(err)
	}
	if !asked[0].Equal(asked[1]) || !asked[0].Equal(k.Current().Leaf.PublicKey) ||
		asked[0].Equal(first.Leaf.PublicKey) {
		t.Error("the renewal was not repeated for the same new key")
	}
	if keys := w.secret(t, "nstance-operator-key").Data; !bytes.Equal(keys[identity.PrivateKey],
		w.secret(t, "nstance-operator-cert").Data[corev1.TLSPrivateKeyKey]) || len(keys[identity.NextPrivateKey]) > 0 {
		t.Error("the Secret of the key does not hold the new key alone")
	}
	w.silent(t)
}

// TestRunRenewsInTime checks that Run renews the certificate at two thirds of its life, retries after a failure, and
// adopts a new CA bundle.
func TestRunRenewsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := fleettest.NewCluster(t, "demo")
		began := time.Now()
		now := func() time.Time { return fleettest.Now.Add(time.Since(began)) }
		issued := now()
		_, private := identitytest.Key(t)
		kube := fake.NewClientBuilder().WithObjects(identitytest.CA(cluster),
			&corev1.Secret{ObjectMeta: meta("nstance-operator-cert"), Data: map[string][]byte{
				corev1.TLSCertKey:       identitytest.Certificate(t, cluster, "default", issued, 30*time.Hour),
				corev1.TLSPrivateKeyKey: private}}).Build()
		k := identity.New(identitytest.Options(kube, "demo", "default", now))
		if err := k.Ensure(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		var asked []time.Duration
		fail := true
		renew := func(context.Context, ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse, error) {
			asked = append(asked, time.Since(began))
			if fail {
				fail = false
				return nil, errors.New("no server listens")
			}
			return &nstancev1.OperatorServiceRenewCertificateResponse{Certificate: identitytest.Certificate(t, cluster,
				"default", now(), 30*time.Hour)}, nil
		}
		run := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := k.Run(ctx, renew); err != nil {
				t.Error(err)
			}
		}
		run(19*time.Hour + 50*time.Minute)
		if len(asked) != 0 {
			t.Errorf("asked at %v", asked)
		}
		run(30 * time.Minute)
		if len(asked) != 2 || asked[0] < 20*time.Hour || asked[1] > 20*time.Hour+15*time.Minute {
			t.Errorf("asked at %v", asked)
		}
		if k.Current().Leaf.NotAfter.Before(issued.Add(49 * time.Hour)) {
			t.Errorf("certificate until %v", k.Current().Leaf.NotAfter)
		}
		// The operator renews early when a server asks for it.
		before := len(asked)
		k.RenewalRequests().HandleRPC(t.Context(), &stats.InHeader{Client: true,
			Header: metadata.Pairs(operatorapi.RenewHeader, "now")})
		run(5 * time.Minute)
		if len(asked) != before+1 {
			t.Errorf("%d renewals after the server asked for one", len(asked)-before)
		}
		// Change the CA bundle. The operator must ignore an unreadable bundle. When the bundle contains only another
		// CA, the operator must refuse certificates of the first CA.
		trust := func(text string) {
			cm := identitytest.CA(cluster)
			cm.Data[identity.CAKey] = text
			if err := kube.Update(t.Context(), cm); err != nil {
				t.Fatal(err)
			}
			run(2 * time.Minute)
		}
		trust("nonsense")
		if err := k.Renew(t.Context(), renew); err != nil {
			t.Error(err)
		}
		other, err := authority.CreateCA("demo", rand.Reader, fleettest.Now)
		if err != nil {
			t.Fatal(err)
		}
		trust(string(authority.EncodeBundle(other.Certificate())))
		if err := k.Renew(t.Context(), renew); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("a certificate of a CA that is no longer trusted: %v", err)
		}
		if err := k.Run(t.Context(), renew); !errors.Is(err, identity.ErrExpired) ||
			now().Before(k.Current().Leaf.NotAfter) {
			t.Errorf("in the end: %v", err)
		}
	})
}

// TestRunReportsFailedRenewals checks that a failed renewal is repeated within 30 s, and that the problem is reported
// until a renewal succeeds.
func TestRunReportsFailedRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSecretsTest(t)
		began, asked, fail := time.Now(), []time.Duration(nil), true
		renew := func(context.Context, ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse, error) {
			asked = append(asked, time.Since(began))
			if fail {
				return nil, errors.New("shard west does not answer")
			}
			return &nstancev1.OperatorServiceRenewCertificateResponse{Certificate: identitytest.Certificate(t,
				w.cluster, "default", w.Now(), 30*time.Hour)}, nil
		}
		run := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := w.Run(ctx, renew); err != nil {
				t.Fatal(err)
			}
		}
		run(21 * time.Hour)
		for i := range asked {
			if i > 0 && asked[i]-asked[i-1] > 30*time.Second {
				t.Fatalf("no attempt between %s and %s", asked[i-1], asked[i])
			}
		}
		if text := w.Problems.String(); len(asked) < 100 || !strings.Contains(text, "shard west does not answer") ||
			!strings.Contains(text, "expires") {
			t.Errorf("%d attempts, problems %q", len(asked), text)
		}
		fail = false
		run(30 * time.Second)
		if text := w.Problems.String(); text != "" {
			t.Errorf("after a renewal: %s", text)
		}
	})
}

// secretsTest is an operator with an identity, and its Kubernetes API.
type secretsTest struct {
	*identity.Keeper
	kube     client.Client
	recorder *events.FakeRecorder
	cluster  *fleettest.Cluster
	want     map[string]map[string][]byte
}

func newSecretsTest(t *testing.T) *secretsTest {
	t.Helper()
	w := &secretsTest{cluster: fleettest.NewCluster(t, "demo"), recorder: events.NewFakeRecorder(10),
		want: map[string]map[string][]byte{}}
	began := time.Now()
	_, private := identitytest.Key(t)
	sent := []byte(identitytest.CA(w.cluster).Data[identity.CAKey])
	w.kube = fake.NewClientBuilder().WithObjects(identitytest.CA(w.cluster),
		&corev1.Secret{ObjectMeta: meta("nstance-operator-cert"), Data: map[string][]byte{
			corev1.TLSCertKey:       identitytest.Certificate(t, w.cluster, "default", fleettest.Now, 30*time.Hour),
			corev1.TLSPrivateKeyKey: private, identity.CAKey: sent}}).Build()
	o := identitytest.Options(w.kube, "demo", "default", func() time.Time {
		return fleettest.Now.Add(time.Since(began))
	})
	o.Recorder = w.recorder
	w.Keeper = identity.New(o)
	if err := w.Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nstance-operator-key", "nstance-operator-cert"} {
		w.want[name] = w.read(t, name).Data
	}
	return w
}

func (s *secretsTest) read(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := s.kube.Get(t.Context(), client.ObjectKey{Namespace: identitytest.Namespace, Name: name},
		secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

func (s *secretsTest) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Run(ctx, nil); err != nil {
		t.Fatal(err)
	}
}

// TestRestoresSecrets checks that Run writes the Secrets of the identity again within a minute, with their earlier
// content, when they were deleted, damaged or replaced. It records an event each time.
func TestRestoresSecrets(t *testing.T) {
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := authority.EncodePrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		secret string
		data   map[string][]byte // nil: the Secret is deleted
	}{
		"certificate deleted":         {"nstance-operator-cert", nil},
		"key deleted":                 {"nstance-operator-key", nil},
		"certificate damaged":         {"nstance-operator-cert", map[string][]byte{corev1.TLSCertKey: []byte("x")}},
		"certificate's key replaced":  {"nstance-operator-cert", map[string][]byte{corev1.TLSPrivateKeyKey: otherKey}},
		"CA bundle damaged":           {"nstance-operator-cert", map[string][]byte{identity.CAKey: []byte("x")}},
		"certificate emptied":         {"nstance-operator-cert", map[string][]byte{"other": []byte("x")}},
		"private key damaged":         {"nstance-operator-key", map[string][]byte{identity.PrivateKey: []byte("x")}},
		"private key replaced":        {"nstance-operator-key", map[string][]byte{identity.PrivateKey: otherKey}},
		"public key damaged":          {"nstance-operator-key", map[string][]byte{identity.PublicKey: nil}},
		"key's Secret holds all else": {"nstance-operator-key", map[string][]byte{"other": []byte("x")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSecretsTest(t)
				secret := w.read(t, test.secret)
				if test.data == nil {
					err = w.kube.Delete(t.Context(), secret)
				} else {
					if _, all := test.data["other"]; all {
						secret.Data = nil
					}
					secret.Data = maps.Clone(secret.Data)
					if secret.Data == nil {
						secret.Data = map[string][]byte{}
					}
					maps.Copy(secret.Data, test.data)
					err = w.kube.Update(t.Context(), secret)
				}
				if err != nil {
					t.Fatal(err)
				}
				w.run(t)
				for name, data := range w.want {
					got := w.read(t, name).Data
					delete(got, "other")
					if !maps.EqualFunc(got, data, bytes.Equal) {
						t.Errorf("%s has the keys %v, want %v with the same values", name,
							slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(data)))
					}
				}
				if len(w.recorder.Events) != 1 {
					t.Fatalf("%d events", len(w.recorder.Events))
				}
				if text := <-w.recorder.Events; !strings.Contains(text, "Warning SecretRestored") {
					t.Errorf("event %q", text)
				}
			})
		})
	}
}

// TestAdoptsNewerIdentity checks that the operator uses a newer valid identity that replaces its own in the Secret. An
// older one, or one of another tenant, is replaced by its own.
func TestAdoptsNewerIdentity(t *testing.T) {
	for name, test := range map[string]struct {
		tenant string
		after  time.Duration
		adopt  bool
	}{
		"newer": {"default", time.Hour, true}, "older": {"default", -time.Hour, false},
		"of another tenant": {"other", time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSecretsTest(t)
				before := w.Current().Leaf
				time.Sleep(time.Hour)
				_, key, err := ed25519.GenerateKey(rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				leaf, err := w.cluster.CA.IssueClient(authority.ClientSpec{Identity: authority.Identity{
					Role: authority.RoleOperator, Cluster: "demo", Tenant: test.tenant, ID: w.Current().Who.ID},
					PublicKey: key.Public().(ed25519.PublicKey)}, rand.Reader, fleettest.Now.Add(test.after))
				if err != nil {
					t.Fatal(err)
				}
				secret := w.read(t, "nstance-operator-cert")
				secret.Data[corev1.TLSCertKey] = authority.EncodeCertificate(leaf)
				if secret.Data[corev1.TLSPrivateKeyKey], err = authority.EncodePrivateKey(key); err != nil {
					t.Fatal(err)
				}
				if err := w.kube.Update(t.Context(), secret); err != nil {
					t.Fatal(err)
				}
				w.run(t)
				if test.adopt {
					before = leaf
				}
				stored, err := authority.ParseCertificate(w.read(t, "nstance-operator-cert").Data[corev1.TLSCertKey])
				if err != nil || !stored.Equal(before) || !w.Current().Leaf.Equal(before) {
					t.Errorf("certificate of %s is used, %s is stored, want %s; %v", w.Current().Leaf.NotBefore,
						stored.NotBefore, before.NotBefore, err)
				}
				private, err := authority.ParsePrivateKey(w.read(t, "nstance-operator-key").Data[identity.PrivateKey])
				if err != nil || !private.Public().(ed25519.PublicKey).Equal(before.PublicKey) {
					t.Errorf("the Secret of the key does not hold the certificate's key: %v", err)
				}
			})
		})
	}
}

// TestRenewsDuringRotation checks that the operator trusts a new CA that a server sends with a renewed certificate. The
// operator must still trust it after a restart.
func TestRenewsDuringRotation(t *testing.T) {
	w := newTestShard(t)
	k, err := w.ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(time.Hour)
	next, err := authority.CreateCA(w.Name, rand.Reader, w.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	renew := func(bundle []byte) identity.Renewer {
		return func(_ context.Context, key ed25519.PublicKey) (*nstancev1.OperatorServiceRenewCertificateResponse,
			error) {
			cert, err := next.IssueClient(authority.ClientSpec{Identity: k.Current().Who, PublicKey: key}, rand.Reader,
				w.Clock.Now())
			if err != nil {
				return nil, err
			}
			return &nstancev1.OperatorServiceRenewCertificateResponse{Certificate: authority.EncodeCertificate(cert),
				CaBundle: bundle}, nil
		}
	}
	if err := k.Renew(t.Context(), renew(nil)); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a certificate of an unknown CA: %v", err)
	}
	if err := k.Renew(t.Context(), renew(authority.EncodeBundle(w.CA.Certificate(), next.Certificate()))); err != nil {
		t.Fatal(err)
	}
	again, err := w.ensure(t.Context())
	if err != nil || !again.Current().Leaf.Equal(k.Current().Leaf) || w.front.calls != 1 {
		t.Errorf("after a restart: %v, %d registrations", err, w.front.calls)
	}
}

// TestConnectionsUseTheRenewedCertificate checks that a new connection presents the current certificate.
func TestConnectionsUseTheRenewedCertificate(t *testing.T) {
	cluster := fleettest.NewCluster(t, "demo")
	seen := make(chan time.Time, 10)
	addr, _ := cluster.Serve(t, "a", witness{seen: seen})
	k := identitytest.Keeper(t, cluster, "default")
	call := func() time.Time {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(
			operatorclient.NewCredentials(func() (*tls.Config, error) { return k.TLS("a") })))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := nstancev1.NewOperatorServiceClient(conn).ListGroups(t.Context(),
			&nstancev1.ListGroupsRequest{}); err != nil {
			t.Fatal(err)
		}
		return <-seen
	}
	first, replaced := call(), 0
	k.Replaced = func() { replaced++ }
	if err := k.Renew(t.Context(), func(context.Context, ed25519.PublicKey) (
		*nstancev1.OperatorServiceRenewCertificateResponse, error) {
		return &nstancev1.OperatorServiceRenewCertificateResponse{
			Certificate: identitytest.Certificate(t, cluster, "default", fleettest.Now, authority.OperatorTTL+
				time.Hour)}, nil
	}); err != nil {
		t.Fatal(err)
	}
	if second := call(); !second.Equal(first.Add(time.Hour)) || replaced != 1 {
		t.Errorf("certificates until %v and %v, %d calls of Replaced", first, second, replaced)
	}
}

type witness struct {
	nstancev1.UnimplementedOperatorServiceServer
	seen chan<- time.Time
}

func (w witness) ListGroups(ctx context.Context, _ *nstancev1.ListGroupsRequest) (*nstancev1.ListGroupsResponse,
	error) {
	peer, err := transport.PeerOf(ctx)
	if err != nil {
		return nil, err
	}
	w.seen <- peer.NotAfter
	return &nstancev1.ListGroupsResponse{}, nil
}
