package operatorclient_test

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

const month = 30 * 24 * time.Hour

type shard struct {
	*fleettest.Shard
	addr string
	stop func()
}

// serve starts a server of a shard. before is called before each call of its API.
func serve(t *testing.T, c *fleettest.Cluster, name string, before func(string) error) *shard {
	t.Helper()
	s := &shard{Shard: &fleettest.Shard{Before: before}}
	s.addr, s.stop = c.Serve(t, name, s.Shard)
	return s
}

// standby returns an answer of a standby that names a leader.
func standby(leader *string) func(string) error {
	return func(string) error { return fleettest.NotLeader("a", "other", *leader) }
}

func newClient(t *testing.T, dir string, addrs ...string) *operatorclient.Client {
	t.Helper()
	client := operatorclient.New(operatorclient.Options{Addresses: addrs, TLS: func() (*tls.Config, error) {
		identity, err := operatorclient.LoadIdentity(dir)
		if err != nil {
			return nil, err
		}
		return identity.Config("a", fleettest.Clock)
	}})
	t.Cleanup(client.Close)
	return client
}

func list(t *testing.T, client *operatorclient.Client) error {
	t.Helper()
	_, err := client.API().ListGroups(t.Context(), &nstancev1.ListGroupsRequest{})
	return err
}

func TestCallFindsTheLeader(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	me := c.Identity(t, "prod", fleettest.Now, month)
	leader := serve(t, c, "a", nil)
	nobody, wrong := "", "127.0.0.1:1"
	for name, addrs := range map[string][]string{
		"the leader":               {leader.addr},
		"a standby names it":       {serve(t, c, "a", standby(&leader.addr)).addr},
		"a standby, then it":       {serve(t, c, "a", standby(&nobody)).addr, leader.addr},
		"no server, then it":       {wrong, leader.addr},
		"a standby errs on it":     {serve(t, c, "a", standby(&wrong)).addr, leader.addr},
		"another shard's, then it": {serve(t, c, "b", nil).addr, leader.addr},
	} {
		client := newClient(t, me, addrs...)
		leader.Do(func() { leader.Calls = nil })
		for range 2 {
			if err := list(t, client); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		leader.Do(func() {
			if len(leader.Calls) != 2 {
				t.Errorf("%s: %d calls of the leader", name, len(leader.Calls))
			}
		})
	}
}

// TestLeaderIsRemembered checks that a client asks the last leader first, until another server leads.
func TestLeaderIsRemembered(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	one, two := serve(t, c, "a", nil), serve(t, c, "a", nil)
	one.Before = standby(&two.addr)
	client := newClient(t, c.Identity(t, "prod", fleettest.Now, month), one.addr)
	for range 3 {
		if err := list(t, client); err != nil {
			t.Fatal(err)
		}
	}
	if len(one.Calls) != 1 || len(two.Calls) != 3 {
		t.Errorf("%d and %d calls", len(one.Calls), len(two.Calls))
	}
	two.Do(func() { two.Before = standby(&one.addr) })
	one.Do(func() { one.Before = nil })
	if err := list(t, client); err != nil {
		t.Error("after a change of the leader:", err)
	}
	two.stop()
	if err := list(t, client); err != nil {
		t.Error("without the former leader:", err)
	}
}

// TestCallsAreBounded checks that servers that name each other as the leader are asked once each.
func TestCallsAreBounded(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	me := c.Identity(t, "prod", fleettest.Now, month)
	one, two := serve(t, c, "a", nil), serve(t, c, "a", nil)
	one.Before, two.Before = standby(&two.addr), standby(&one.addr)
	err := list(t, newClient(t, me, one.addr))
	var failed *operatorclient.Error
	if status.Code(err) != codes.Unavailable || !errors.As(err, &failed) || failed.Addr != two.addr ||
		len(failed.Tried) != 2 || len(one.Calls) != 1 || len(two.Calls) != 1 {
		t.Errorf("%+v, %d and %d calls", err, len(one.Calls), len(two.Calls))
	}
	itself := serve(t, c, "a", nil)
	itself.Before = standby(&itself.addr)
	if err := list(t, newClient(t, me, itself.addr)); status.Code(err) != codes.Unavailable || len(itself.Calls) != 1 {
		t.Errorf("%v, %d calls", err, len(itself.Calls))
	}
	if err := list(t, newClient(t, me)); status.Code(err) != codes.Unavailable {
		t.Errorf("without addresses: %v", err)
	}
}

// TestErrorNamesTheCause checks the address, the code and the message of errors.
func TestErrorNamesTheCause(t *testing.T) {
	c, other := fleettest.NewCluster(t, "example"), fleettest.NewCluster(t, "other")
	foreign := fleettest.NewCluster(t, "foreign")
	foreign.CA = c.CA
	me := c.Identity(t, "prod", fleettest.Now, month)
	refusing := serve(t, c, "a", func(string) error { return status.Error(codes.NotFound, "there is no such") })
	for name, test := range map[string]struct {
		identity, addr string
		code           codes.Code
		text           string
	}{
		"another shard":      {me, serve(t, c, "b", nil).addr, codes.Unavailable, "a server of shard b, want shard a"},
		"another cluster":    {me, serve(t, other, "a", nil).addr, codes.Unavailable, "certificate signed by unknown"},
		"cluster of our CA":  {me, serve(t, foreign, "a", nil).addr, codes.Unavailable, "a server of cluster foreign"},
		"nothing listens":    {me, "127.0.0.1:1", codes.Unavailable, "connection refused"},
		"no identity":        {t.TempDir(), refusing.addr, codes.Unavailable, "no identity: ca.crt is missing"},
		"no directory":       {"", refusing.addr, codes.Unavailable, "no directory is named"},
		"answer of a leader": {me, refusing.addr, codes.NotFound, "there is no such"},
		"expired": {c.Identity(t, "prod", fleettest.Now.Add(-2*month), month), refusing.addr, codes.Unavailable,
			"ended at 2026-06-28T10:00:00Z"},
	} {
		err := list(t, newClient(t, test.identity, test.addr))
		var failed *operatorclient.Error
		if !errors.As(err, &failed) || failed.Addr != test.addr || status.Code(err) != test.code ||
			!strings.Contains(err.Error(), test.text) || !strings.HasPrefix(err.Error(), test.addr+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Of several servers, the error names all. The cause is the last one's, unless another one named a leader.
	nobody := ""
	silent := serve(t, c, "a", standby(&nobody))
	err := list(t, newClient(t, me, "127.0.0.1:1", silent.addr))
	var failed *operatorclient.Error
	if !errors.As(err, &failed) || failed.Addr != silent.addr || !strings.Contains(err.Error(), "127.0.0.1:1: ") ||
		!strings.Contains(err.Error(), silent.addr+": ") {
		t.Errorf("%v", err)
	}
}

// TestSuspendedServerIsAskedLast checks that a call that timed out makes the next call begin with another server.
func TestSuspendedServerIsAskedLast(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	release := make(chan struct{})
	suspended := serve(t, c, "a", func(string) error { <-release; return nil })
	defer close(release)
	client := newClient(t, c.Identity(t, "prod", fleettest.Now, month), suspended.addr, serve(t, c, "a", nil).addr)
	limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := client.API().ListGroups(limited, &nstancev1.ListGroupsRequest{}); status.Code(
		err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	if err := list(t, client); err != nil {
		t.Error(err)
	}
}

// TestCallsShareAConnection checks that calls share a connection, and that the failure of one of them does not end the
// others. After it, calls use a new connection.
func TestCallsShareAConnection(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	s := serve(t, c, "a", nil)
	client := newClient(t, c.Identity(t, "prod", fleettest.Now, month), s.addr)
	list := func(ctx context.Context, to *grpc.ClientConn) error {
		_, err := nstancev1.NewOperatorServiceClient(to).ListGroups(ctx, &nstancev1.ListGroupsRequest{})
		return err
	}
	var first *grpc.ClientConn
	if err := client.Call(t.Context(), func(ctx context.Context, to *grpc.ClientConn) error {
		first = to
		if err := client.Call(ctx, func(_ context.Context, same *grpc.ClientConn) error {
			if same != to {
				t.Error("a second connection")
			}
			return status.Error(codes.Unavailable, "lost")
		}); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		return list(ctx, to)
	}); err != nil {
		t.Error("the other call:", err)
	}
	if err := client.Call(t.Context(), func(ctx context.Context, to *grpc.ClientConn) error {
		if to == first || list(ctx, first) == nil {
			t.Error("the unavailable connection is still open")
		}
		return list(ctx, to)
	}); err != nil {
		t.Error(err)
	}
}
