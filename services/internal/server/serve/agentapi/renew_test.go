package agentapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/serve/agentapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

func TestRenewCertificate(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	same, err := c.renew()
	if err != nil || !bytes.Equal(same.GetCertificate(), authority.EncodeCertificate(c.cert.Leaf)) {
		t.Errorf("the young certificate again: %v", err)
	}
	w.Clock.Advance(5 * 24 * time.Hour)
	answer, err := c.renew()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(answer.GetCertificate())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := authority.ParseIdentity(cert)
	if err != nil || identity != w.Agent(c.id) || !cert.PublicKey.(ed25519.PublicKey).Equal(c.key.Public()) ||
		!cert.NotAfter.Equal(w.Clock.Now().Add(authority.AgentTTL)) ||
		!answer.GetNotAfter().AsTime().Equal(cert.NotAfter) || len(answer.GetCaBundle()) == 0 {
		t.Errorf("%v until %v (%v)", identity, cert.NotAfter, err)
	}
	stored := w.Stored(t, c.id)
	if stored.Certificate.Serial != authority.Serial(cert) || len(w.log(t)) != 1 || stored.State != record.Registered {
		t.Errorf("record %+v, log %v", stored, w.log(t))
	}
	// If the answer to a renewal was lost, a repeated renewal returns the same certificate.
	if again, err := c.renew(); err != nil || !bytes.Equal(again.GetCertificate(), answer.GetCertificate()) ||
		w.Stored(t, c.id).Revision != stored.Revision {
		t.Errorf("again: %v", err)
	}
}

// TestRenewalChangesTheKey checks that a renewal replaces the agent's key. Until the agent has used the new key, it can
// use the old key to repeat the renewal, and for nothing else.
func TestRenewalChangesTheKey(t *testing.T) {
	w := newTestLeader(t)
	old := w.agent(t)
	w.Clock.Advance(5 * 24 * time.Hour)
	next := transporttest.NewKey(t)
	renew := func(c *client, key ed25519.PublicKey) (*nstancev1.AgentServiceRenewCertificateResponse, error) {
		return c.RenewCertificate(t.Context(), &nstancev1.AgentServiceRenewCertificateRequest{InstanceId: c.id.String(),
			PublicKey: key})
	}
	answer, err := renew(old, transporttest.Public(next))
	if err != nil {
		t.Fatal(err)
	}
	again, err := renew(old, transporttest.Public(next))
	if err != nil || !bytes.Equal(again.GetCertificate(), answer.GetCertificate()) {
		t.Errorf("the answer was lost: %v", err)
	}
	_, err = renew(old, transporttest.Public(transporttest.NewKey(t)))
	wants(t, "the replaced key for another key", err, codes.PermissionDenied, "registered with another key")
	wants(t, "another call with the replaced key", old.submit("node.pub", pkixOf(t, transporttest.NewKey(t))),
		codes.PermissionDenied, "registered with another key")
	_, err = renew(old, []byte("short"))
	wants(t, "a bad key", err, codes.InvalidArgument, "public_key")

	block, _ := pem.Decode(answer.GetCertificate())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.PublicKey.(ed25519.PublicKey).Equal(next.Public()) {
		t.Error("the certificate is for another key")
	}
	w.connect(t, old.id, next, &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: next}).reports()
	eventually(t, "the replaced key is forgotten", func() bool { return len(w.Stored(t, old.id).PreviousKey) == 0 })
	_, err = renew(old, transporttest.Public(next))
	wants(t, "the replaced key after the new one was used", err, codes.PermissionDenied, "registered with another key")
}

// TestRenewalToTheKeyOfAnotherInstance checks that a key to which one agent has renewed can never become the key of
// another one. That agent can use another key.
func TestRenewalToTheKeyOfAnotherInstance(t *testing.T) {
	w := newTestLeader(t)
	first, second := w.agent(t), w.agent(t)
	w.Clock.Advance(5 * 24 * time.Hour)
	renew := func(c *client, key ed25519.PublicKey) error {
		_, err := c.RenewCertificate(t.Context(), &nstancev1.AgentServiceRenewCertificateRequest{
			InstanceId: c.id.String(), PublicKey: key})
		return err
	}
	next := transporttest.Public(transporttest.NewKey(t))
	if err := renew(first, next); err != nil {
		t.Fatal(err)
	}
	w.Delete(t, first.id, true)
	wants(t, "the key of a deleted instance", renew(second, next), codes.AlreadyExists,
		"is the key of instance "+first.id.String())
	if rec := w.Stored(t, second.id); bytes.Equal(rec.PublicKey, next) {
		t.Error("the record has the key of another instance")
	}
	if err := renew(second, transporttest.Public(transporttest.NewKey(t))); err != nil {
		t.Errorf("another key: %v", err)
	}
}

func TestRenewExpiredCertificate(t *testing.T) {
	w := newTestLeader(t)
	running, stopped, unknown, deleting := w.agent(t), w.agent(t), w.agent(t), w.agent(t)
	w.Delete(t, deleting.id, false)
	w.Clock.Advance(authority.AgentTTL + 24*time.Hour)
	w.State.Answered(stopped.id, infra.VM{ProviderID: "vm-" + stopped.id.String(), State: infra.Stopped}, w.Clock.Now())
	fresh := shardstate.New(shardstate.Options{Term: w.Term(), Now: w.Clock.Now,
		Wake: func() {}})
	w.State.PutRecord(w.Stored(t, unknown.id), "")

	if err := running.submit("node.pub", pkixOf(t, transporttest.NewKey(t))); status.Code(
		err) != codes.Unauthenticated {
		t.Errorf("another call with an expired certificate: %v", err)
	}
	answer, err := running.renew()
	if err != nil || !answer.GetNotAfter().AsTime().Equal(w.Clock.Now().Add(authority.AgentTTL)) {
		t.Errorf("%v %v", answer.GetNotAfter().AsTime(), err)
	}
	_, err = stopped.renew()
	wants(t, "stopped", err, codes.PermissionDenied, "does not run")
	_, err = deleting.renew()
	wants(t, "deleting", err, codes.PermissionDenied, "is being deleted")

	// The provider has not yet told the leader whether the instance's VM runs.
	rec, token, err := w.Bucket.GetInstance(t.Context(), "prod", unknown.id)
	if err != nil {
		t.Fatal(err)
	}
	fresh.PutRecord(rec, token)
	leader := *w.leader.Load()
	leader.State = fresh
	w.leader.Store(&leader)
	_, err = unknown.renew()
	wants(t, "not asked yet", err, codes.Unavailable, "has not answered yet")
}

// TestCertificateThatExpiredLongAgo checks that an agent whose VM was off for too long learns why it gets no
// certificate, and that the leader knows it for the alert and for explain.
func TestCertificateThatExpiredLongAgo(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	w.Clock.Advance(authority.AgentTTL + transport.RenewalGrace - time.Minute)
	late := c.again()
	wants(t, "another call", late.submit("node.pub", pkixOf(t, transporttest.NewKey(t))), codes.Unauthenticated,
		"expired at")
	w.Clock.Advance(2 * time.Minute)
	for name, client := range map[string]*client{"connected before": late, "connected now": c.again()} {
		_, err := client.renew()
		wants(t, name, err, codes.Unauthenticated, "expired at")
		wants(t, name, err, codes.Unauthenticated, "can be renewed for 30 days only")
		if view, _ := w.State.Instance(c.id); !strings.Contains(view.Plan.Refused, "can be renewed for 30 days only") {
			t.Errorf("%s: the leader knows the refusal as %q", name, view.Plan.Refused)
		}
	}
	wants(t, "another call", c.again().submit("node.pub", pkixOf(t, transporttest.NewKey(t))), codes.Unauthenticated,
		"expired at")
}

// hookedStore calls a hook before it appends an entry.
type hookedStore struct {
	agentapi.Store
	before func()
}

func (s hookedStore) AppendCertLog(ctx context.Context, entry record.CertLog) error {
	s.before()
	return s.Store.AppendCertLog(ctx, entry)
}

// An authorized renewal is rejected if the record changes before the renewal is written.
func TestRenewalOfAnInstanceThatChanges(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(t *testing.T, w *testLeader, id ident.ID)
		code    codes.Code
		message string
	}{
		"registered with another key": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Change(t, id, func(r *record.Instance) { r.PublicKey = transporttest.Public(transporttest.NewKey(t)) })
		}, codes.PermissionDenied, "registered with another key"},
		"being deleted": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Delete(t, id, false)
		}, codes.PermissionDenied, "is being deleted"},
		"deleted": {func(t *testing.T, w *testLeader, id ident.ID) {
			w.Delete(t, id, true)
		}, codes.NotFound, "is deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestLeader(t)
			c := w.agent(t)
			w.Clock.Advance(5 * 24 * time.Hour)
			leader := *w.leader.Load()
			leader.Store = hookedStore{leader.Store, func() { test.change(t, w, c.id) }}
			w.leader.Store(&leader)
			_, err := c.renew()
			wants(t, name, err, test.code, test.message)
			if ref := w.Stored(t, c.id).Certificate; ref != nil && ref.Serial != authority.Serial(c.cert.Leaf) {
				t.Error("the record refers to the certificate of a client that no longer speaks for the instance")
			}
		})
	}
}

func TestRenewalThatCannotBeRecorded(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	w.Clock.Advance(5 * 24 * time.Hour)
	for failing := 1; failing <= 2; failing++ {
		puts := 0
		w.Fault(func(req mem.Request) mem.Fault {
			if req.Op == mem.Put {
				if puts++; puts == failing {
					return mem.Fault{Err: errors.New("disk on fire")}
				}
			}
			return mem.Fault{}
		})
		_, err := c.renew()
		wants(t, "a failing put", err, codes.Unavailable, "try again")
		if w.Stored(t, c.id).Certificate.Serial != authority.Serial(c.cert.Leaf) {
			t.Error("recorded all the same")
		}
	}
	w.Fault(nil)
	if _, err := c.renew(); err != nil {
		t.Error(err)
	}
}

// TestRotationAsksForRenewal checks that the server asks an agent to renew its certificate while the CA is rotated. The
// renewal returns a new certificate. After the renewal, the server no longer asks this agent.
func TestRotationAsksForRenewal(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	asked := func(c *client) []string {
		t.Helper()
		header, err := c.reports().Header()
		if err != nil {
			t.Fatal(err)
		}
		return header.Get(agentapi.RenewHeader)
	}
	if got := asked(c); len(got) > 0 {
		t.Errorf("asked to renew within %v without a rotation", got)
	}
	rotating := *w.leader.Load()
	rotating.Issuer.Trust = "0123456789abcdef"
	rotating.RenewWithin = time.Second
	w.leader.Store(&rotating)
	c = c.again()
	if got := asked(c); len(got) != 1 || got[0] != "1s" {
		t.Errorf("asked to renew within %v, want 1s", got)
	}
	answer, err := c.renew()
	if err != nil || bytes.Equal(answer.GetCertificate(), authority.EncodeCertificate(c.cert.Leaf)) {
		t.Errorf("the renewal returns the certificate of before, %v", err)
	}
	if got := w.Stored(t, c.id).Certificate.Trust; got != rotating.Issuer.Trust {
		t.Errorf("the record says trust %q", got)
	}
	if got := asked(c.again()); len(got) > 0 {
		t.Errorf("asked to renew within %v after the renewal", got)
	}
	w.Change(t, c.id, func(r *record.Instance) {
		r.State, r.DeletingAt, r.DeleteReason = record.Deleting, w.Clock.Now(), "scale_down"
		r.DeleteDeadline = w.Clock.Now().Add(time.Hour)
		r.Certificate.Trust = ""
	})
	if got := asked(c.again()); len(got) > 0 {
		t.Errorf("an instance that is being deleted is asked to renew within %v", got)
	}
}
