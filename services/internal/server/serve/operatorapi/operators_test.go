package operatorapi_test

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/operatorapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

func (f *testShard) renew(t testing.TB, client nstancev1.OperatorServiceClient) (*x509.Certificate, error) {
	t.Helper()
	answer, err := client.RenewCertificate(t.Context(), &nstancev1.OperatorServiceRenewCertificateRequest{})
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(answer.GetCertificate())
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one PEM block: %q", answer.GetCertificate())
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if bundle, err := authority.ParseBundle(answer.GetCaBundle()); err != nil || !bundle[0].Equal(f.CA.Certificate()) ||
		!cert.NotAfter.Equal(answer.GetNotAfter().AsTime()) {
		t.Errorf("bundle: %v, not after %v", err, answer.GetNotAfter().AsTime())
	}
	return cert, nil
}

func list(t testing.TB, client nstancev1.OperatorServiceClient) error {
	_, err := client.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	return err
}

// remove makes the operator's record a tombstone. An administrator removes an operator in the same way.
func (f *testShard) remove(t testing.TB) {
	t.Helper()
	rec, token, err := f.state.GetOperator(t.Context(), "prod", f.id)
	if err != nil {
		t.Fatal(err)
	}
	rec.Revision++
	rec.RemovedAt = f.Clock.Now()
	if _, err := f.state.PutOperator(t.Context(), rec, token); err != nil {
		t.Fatal(err)
	}
}

func TestRoles(t *testing.T) {
	w := newTestShard(t)
	agent := w.Certificate(t, authority.Identity{Role: authority.RoleAgent, Cluster: w.Name, Tenant: "prod",
		ID: w.NewID(t, "knd")}, transporttest.NewKey(t))
	wants(t, "agent", list(t, w.dial(t, agent)), codes.PermissionDenied, "role")
	// On a port for another role, the service still refuses clients that are not operators.
	wants(t, "agent on the agents' port", list(t, w.dialTo(t, w.serve(t, authority.RoleAgent), agent)),
		codes.PermissionDenied, "role")
	wants(t, "nobody", list(t, w.dialTo(t, w.serve(t, ""), nil)), codes.PermissionDenied, "role")
}

func TestUnknownOperators(t *testing.T) {
	w := newTestShard(t)
	identity := authority.Identity{Role: authority.RoleOperator, Cluster: w.Name, Tenant: "prod", ID: w.NewID(t, "opr")}
	wants(t, "no record", list(t, w.dial(t, w.Certificate(t, identity, transporttest.NewKey(t)))),
		codes.PermissionDenied, "not registered")
	// The operator has a certificate of another tenant, but a record of this tenant.
	identity.Tenant, identity.ID = "rival", w.id
	wants(t, "other tenant", list(t, w.dial(t, w.Certificate(t, identity, w.key))), codes.PermissionDenied,
		"not registered")
	w.Clock.Advance(time.Minute)
	identity.Tenant = "prod"
	wants(t, "other key", list(t, w.dial(t, w.Certificate(t, identity, transporttest.NewKey(t)))),
		codes.PermissionDenied, "another key")
	stream := watchGroups(t, w.dial(t, w.Certificate(t, identity, transporttest.NewKey(t))))
	_, err := stream.ended()
	wants(t, "stream", err, codes.PermissionDenied)
}

func TestRemovedOperator(t *testing.T) {
	w := newTestShard(t)
	if err := list(t, w); err != nil {
		t.Fatal(err)
	}
	w.remove(t)
	if err := list(t, w); err != nil {
		t.Errorf("its record was read a moment ago: %v", err)
	}
	w.Clock.Advance(5 * time.Minute)
	wants(t, "removed", list(t, w), codes.PermissionDenied, "was removed")
	_, err := watchErrors(t, w).ended()
	wants(t, "removed", err, codes.PermissionDenied, "was removed")
}

// The watch of a removed operator ends, with or without events.
func TestRemovedOperatorStopsWatching(t *testing.T) {
	w := newTestShard(t)
	w.service.Recheck(10 * time.Millisecond)
	instances, groups, errs := live(t, w), watchGroups(t, w), watchErrors(t, w)
	groups.await("a group", func(*groupEvent) bool { return true })
	w.remove(t)
	w.Clock.Advance(5 * time.Minute)
	for name, end := range map[string]func() error{
		"instances": func() error { _, err := instances.ended(); return err },
		"groups":    func() error { _, err := groups.ended(); return err },
		"errors":    func() error { _, err := errs.ended(); return err },
	} {
		wants(t, name, end(), codes.PermissionDenied, "was removed")
	}
}

func TestRemovedOperatorCannotRenew(t *testing.T) {
	w := newTestShard(t)
	if err := list(t, w); err != nil {
		t.Fatal(err)
	}
	w.remove(t)
	_, err := w.renew(t, w)
	wants(t, "renew", err, codes.PermissionDenied, "was removed")
	wants(t, "what was read then counts for all", list(t, w), codes.PermissionDenied, "was removed")
}

func TestOperatorsDuringAStorageOutage(t *testing.T) {
	w := newTestShard(t)
	other := w.rival(t)
	if err := list(t, w); err != nil {
		t.Fatal(err)
	}
	w.service.Recheck(10 * time.Millisecond)
	instances := live(t, w)
	w.breakStore(outOfOrder)
	w.Clock.Advance(time.Hour - time.Second)
	if err := list(t, w); err != nil {
		t.Errorf("an operator that is known: %v", err)
	}
	w.Clock.Advance(time.Second)
	wants(t, "an operator with a record that was not read for an hour", list(t, w), codes.Unavailable,
		"operator record")
	_, err := instances.ended()
	wants(t, "the watch of that operator", err, codes.Unavailable, "read operator", "out of order")
	wants(t, "an operator that is not known", list(t, other), codes.Unavailable, "operator record")
	_, err = w.renew(t, w)
	wants(t, "renew", err, codes.Unavailable, "out of order")
	w.breakStore(nil)
	if err := list(t, w); err != nil {
		t.Error(err)
	}
	if err := list(t, other); err != nil {
		t.Error(err)
	}
}

// An operator's record is read once in four minutes, independent of the number of calls.
func TestOperatorRecordIsRemembered(t *testing.T) {
	w := newTestShard(t)
	var mu sync.Mutex
	reads := 0
	w.breakStore(func(r mem.Request) mem.Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.Op == mem.Get {
			reads++
		}
		return mem.Fault{}
	})
	for range 10 {
		w.Clock.Advance(23 * time.Second)
		if err := list(t, w); err != nil {
			t.Fatal(err)
		}
	}
	if reads != 1 {
		t.Errorf("%d reads", reads)
	}
}

func TestRenewCertificate(t *testing.T) {
	w := newTestShard(t)
	w.Clock.Advance(20 * 24 * time.Hour)
	cert, err := w.renew(t, w)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := authority.ParseIdentity(cert)
	if err != nil || identity != (authority.Identity{Role: authority.RoleOperator, Cluster: w.Name, Tenant: "prod",
		ID: w.id}) ||
		!cert.PublicKey.(ed25519.PublicKey).Equal(w.key.Public()) || !cert.NotAfter.Equal(
		w.Clock.Now().Add(authority.OperatorTTL)) {
		t.Errorf("%v until %v, %v", identity, cert.NotAfter, err)
	}
	rec, _, err := w.state.GetOperator(t.Context(), "prod", w.id)
	if err != nil || rec.Certificate.Serial != authority.Serial(cert) ||
		!rec.Certificate.NotAfter.Equal(cert.NotAfter) || rec.Revision != 2 || rec.Writer != "incarnation-1" {
		t.Errorf("%+v, %v", rec, err)
	}
	// If the answer to a renewal was lost and the client asks again, it gets the same certificate, and nothing is
	// written.
	again, err := w.renew(t, w)
	if err != nil || !again.Equal(cert) {
		t.Errorf("another certificate, %v", err)
	}
	if rec, _, err := w.state.GetOperator(t.Context(), "prod", w.id); err != nil || rec.Revision != 2 {
		t.Errorf("%+v, %v", rec, err)
	}
	// The new certificate is accepted and can itself be renewed.
	client := w.dial(t, &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: w.key})
	if err := list(t, client); err != nil {
		t.Error(err)
	}
	w.Clock.Advance(20 * 24 * time.Hour)
	next, err := w.renew(t, client)
	if err != nil || next.Equal(cert) || !next.NotAfter.Equal(w.Clock.Now().Add(authority.OperatorTTL)) {
		t.Errorf("%v, %v", next, err)
	}
	wants(t, "the first one is over", list(t, w.dial(t, w.cert)), codes.Unauthenticated)
}

// TestRenewalChangesTheKey checks that a renewal replaces the key. With the old key, an operator can only repeat that
// renewal, and only until it has used the new key.
func TestRenewalChangesTheKey(t *testing.T) {
	w := newTestShard(t)
	w.Clock.Advance(20 * 24 * time.Hour)
	next := transporttest.NewKey(t)
	renew := func(key ed25519.PublicKey) (*x509.Certificate, error) {
		answer, err := w.RenewCertificate(t.Context(), &nstancev1.OperatorServiceRenewCertificateRequest{
			PublicKey: key})
		if err != nil {
			return nil, err
		}
		return authority.ParseCertificate(answer.GetCertificate())
	}
	cert, err := renew(transporttest.Public(next))
	if err != nil {
		t.Fatal(err)
	}
	if !cert.PublicKey.(ed25519.PublicKey).Equal(next.Public()) {
		t.Error("the certificate is for another key")
	}
	w.Clock.Advance(5 * time.Minute) // the leader reads the record again
	if again, err := renew(transporttest.Public(next)); err != nil || !again.Equal(cert) {
		t.Errorf("the answer was lost: %v", err)
	}
	wants(t, "another call with the replaced key", list(t, w), codes.PermissionDenied)
	w.Clock.Advance(time.Minute)
	_, err = renew(transporttest.Public(transporttest.NewKey(t)))
	wants(t, "the replaced key for another key", err, codes.PermissionDenied)
	_, err = renew([]byte("short"))
	wants(t, "a bad key", err, codes.InvalidArgument)

	if err := list(t, w.dial(t, &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: next})); err != nil {
		t.Error(err)
	}
	w.Clock.Advance(time.Minute)
	_, err = renew(transporttest.Public(next))
	wants(t, "the replaced key after the new one was used", err, codes.PermissionDenied)
	if rec, _, err := w.state.GetOperator(t.Context(), "prod", w.id); err != nil || len(rec.PreviousKey) > 0 {
		t.Errorf("%+v, %v", rec, err)
	}
}

// An administrator may have issued a certificate with another lifetime. A renewal replaces it by a certificate with the
// standard lifetime.
func TestRenewCertificateOfAnotherLength(t *testing.T) {
	w := newTestShard(t)
	w.Clock.Advance(20 * 24 * time.Hour) // the CA is older than every certificate
	for _, ttl := range []time.Duration{365 * 24 * time.Hour, 18 * 24 * time.Hour} {
		key, id := transporttest.NewKey(t), w.NewID(t, "opr")
		identity := authority.Identity{Role: authority.RoleOperator, Cluster: w.Name, Tenant: "prod", ID: id}
		w.operator(t, "prod", id, key)
		rec, token, err := w.state.GetOperator(t.Context(), "prod", id)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := w.CA.IssueClient(authority.ClientSpec{Identity: identity, PublicKey: transporttest.Public(key),
			TTL: ttl}, w.Issuer().Rand, w.Clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		rec.Revision++
		rec.Certificate = record.CertificateRef{Serial: authority.Serial(leaf), NotAfter: leaf.NotAfter}
		if _, err := w.state.PutOperator(t.Context(), rec, token); err != nil {
			t.Fatal(err)
		}
		cert, err := w.renew(t, w.dial(t, &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}))
		if err != nil || authority.Serial(cert) == authority.Serial(leaf) ||
			!cert.NotAfter.Equal(w.Clock.Now().Add(authority.OperatorTTL)) || cert.NotBefore.After(w.Clock.Now()) {
			t.Errorf("%s: %v", ttl, err)
		}
	}
}

// Concurrent renewals all return the same certificate, which is the one in the record.
func TestRenewCertificateAtOnce(t *testing.T) {
	w := newTestShard(t)
	w.Clock.Advance(20 * 24 * time.Hour)
	var wg sync.WaitGroup
	serials := make([]string, 6)
	for i := range serials {
		wg.Go(func() {
			cert, err := w.renew(t, w)
			if err != nil {
				t.Error(err)
				return
			}
			serials[i] = authority.Serial(cert)
		})
	}
	wg.Wait()
	rec, _, err := w.state.GetOperator(t.Context(), "prod", w.id)
	for _, serial := range serials {
		if err != nil || serial != rec.Certificate.Serial {
			t.Errorf("%s, the record has %s, %v", serial, rec.Certificate.Serial, err)
		}
	}
}

func TestConfigStatusAndRefresh(t *testing.T) {
	w := newTestShard(t)
	status := func() *nstancev1.GetConfigStatusResponse {
		answer, err := w.GetConfigStatus(t.Context(), &nstancev1.GetConfigStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	refresh := func(want nstancev1.RefreshResult) *nstancev1.RefreshConfigResponse {
		t.Helper()
		answer, err := w.RefreshConfig(t.Context(), &nstancev1.RefreshConfigRequest{})
		if err != nil || answer.GetResult() != want {
			t.Fatalf("%v, %v, want %s", answer, err, want)
		}
		return answer
	}
	first := status()
	if first.GetEtag() == "" || first.GetSize() != uint64(len(document(""))) || first.GetGeneration() != 1 ||
		first.GetShard() != "a" || first.GetLeaderId() != "one" ||
		first.GetTerm() != 3 || first.GetClusterId() != "example" || !first.GetLastModified().AsTime().Equal(
		w.Clock.Now()) || first.GetRefusedEtag() != "" {
		t.Errorf("%v", first)
	}
	if answer := refresh(nstancev1.RefreshResult_REFRESH_RESULT_UNCHANGED); answer.GetEtag() != first.GetEtag() {
		t.Errorf("%v", answer)
	}
	w.configure(t, document(`"nonsense": 1, "images": [],`))
	answer := refresh(nstancev1.RefreshResult_REFRESH_RESULT_INVALID)
	if len(answer.GetProblems()) != 2 || answer.GetEtag() != first.GetEtag() {
		t.Errorf("%v", answer)
	}
	for _, p := range answer.GetProblems() {
		if p.GetLine() != 5 || p.GetColumn() == 0 || p.GetPath() == "" || p.GetMessage() == "" {
			t.Errorf("%v", p)
		}
	}
	refused := status()
	if refused.GetEtag() != first.GetEtag() || refused.GetRefusedEtag() == "" || len(refused.GetProblems()) != 2 ||
		refused.GetGeneration() != 1 {
		t.Errorf("%v", refused)
	}
	if g := w.scale(t, "fleet", 0); settingsOf(g).Template != "worker" {
		t.Errorf("the old configuration is not in force: %v", g)
	}

	w.configure(t, document(`"images": {},`))
	if answer := refresh(nstancev1.RefreshResult_REFRESH_RESULT_UPDATED); answer.GetRestarting() ||
		answer.GetEtag() == first.GetEtag() || len(answer.GetProblems()) != 0 {
		t.Errorf("%v", answer)
	}
	if now := status(); now.GetGeneration() != 2 || now.GetRefusedEtag() != "" || len(now.GetProblems()) != 0 {
		t.Errorf("%v", now)
	}
	w.configure(t, `{"cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
		"server": {"shard": "a", "provider": {"kind": "mock", "zone": "elsewhere"}, "subnet_pools": {"p": ["s"]}},
		"tenants": {"prod": {}}, "templates": {"worker": {"kind": "knd", "arch": "arm64", "subnet_pool": "p", "instance_type": "small", "tenants": ["prod"]}}}`)
	if answer := refresh(nstancev1.RefreshResult_REFRESH_RESULT_UPDATED); !answer.GetRestarting() ||
		answer.GetEtag() == "" || answer.GetEtag() == status().GetEtag() {
		t.Errorf("%v", answer)
	}
	w.breakStore(outOfOrder)
	_, err := w.RefreshConfig(t.Context(), &nstancev1.RefreshConfigRequest{})
	wants(t, "storage", err, codes.Unavailable, "out of order")
	if now := status(); now.GetLastModified() != nil || now.GetGeneration() != 2 {
		t.Errorf("%v", now)
	}
}

// TestRotationAsksForRenewal checks the responses to an operator during a rotation of the CA. They must ask the
// operator to renew its certificate until it has done so.
func TestRotationAsksForRenewal(t *testing.T) {
	w := newTestShard(t)
	asked := func() int {
		t.Helper()
		var header metadata.MD
		if _, err := w.ListGroups(t.Context(), &nstancev1.ListGroupsRequest{}, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		return len(header.Get(operatorapi.RenewHeader))
	}
	if asked() != 0 {
		t.Error("asked to renew without a rotation")
	}
	w.api.Issuer.Trust = "0123456789abcdef"
	w.Clock.Advance(5 * time.Minute) // the record is read again
	if asked() != 1 {
		t.Error("not asked to renew during a rotation")
	}
	if _, err := w.renew(t, w); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(5 * time.Minute)
	rec, _, err := w.state.GetOperator(t.Context(), "prod", w.id)
	if err != nil || rec.Certificate.Trust != w.api.Issuer.Trust {
		t.Errorf("the record says trust %q, %v", rec.Certificate.Trust, err)
	}
	if asked() != 0 {
		t.Error("asked to renew after the renewal")
	}
}
