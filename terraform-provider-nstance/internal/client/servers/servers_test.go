package servers_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-kit/nstance/services/api/notleader"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/bucket"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/servers"
)

const (
	cluster = "example"
	shard   = "a"
)

func newCA(t testing.TB, name string) authority.CA {
	t.Helper()
	ca, err := authority.CreateCA(name, rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// identity returns the identity of an operator or agent. Its certificate is valid for one hour from `issued`.
func identity(t testing.TB, ca authority.CA, role authority.Role, issued time.Time) servers.Settings {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	prefix := "wrk"
	if role == authority.RoleOperator {
		prefix = ident.OperatorPrefix
	}
	id, err := ident.NewID(prefix, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	who := authority.Identity{Role: role, Cluster: cluster, Tenant: "prod", ID: id}
	cert, err := ca.IssueClient(authority.ClientSpec{Identity: who, PublicKey: public, TTL: time.Hour}, rand.Reader,
		issued)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return servers.Settings{
		CA: string(authority.EncodeCertificate(ca.Certificate())), Certificate: string(
			authority.EncodeCertificate(cert)),
		PrivateKey: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	}
}

// api is a fake operator API. It answers as a leader, or as a standby with the address of a leader.
type api struct {
	nstancev1.UnimplementedOperatorServiceServer
	calls  int
	leader *string
}

func (a *api) ListGroups(context.Context, *nstancev1.ListGroupsRequest) (*nstancev1.ListGroupsResponse, error) {
	a.calls++
	if a.leader == nil {
		return &nstancev1.ListGroupsResponse{Groups: []*nstancev1.GroupStatus{{Group: "workers"}}}, nil
	}
	return nil, notleader.Error("not the leader", &nstancev1.NotLeader{Shard: shard, LeaderId: "other",
		OperatorAddr: *a.leader})
}

// serve starts a server with a certificate for the given identity, and returns its address. The server stops when the
// test ends.
func serve(t *testing.T, ca authority.CA, of authority.Identity, a *api) (addr string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.IssueServer(authority.ServerSpec{Identity: of, PublicKey: public, Hosts: []string{"127.0.0.1"}},
		rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: private}},
	})))
	nstancev1.RegisterOperatorServiceServer(server, a)
	go func() { _ = server.Serve(listener) }() // returns after Stop
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func server(name string) authority.Identity {
	return authority.Identity{Role: authority.RoleServer, Cluster: cluster, Shard: shard, Server: name}
}

func groups(t *testing.T, s servers.Settings, addrs ...string) ([]*nstancev1.GroupStatus, error) {
	t.Helper()
	s.Addresses = map[string][]string{shard: addrs}
	var out []*nstancev1.GroupStatus
	err := servers.New(s, bucket.New(bucket.Settings{})).Call(t.Context(), shard,
		func(ctx context.Context, c servers.Client) error {
			answer, err := c.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
			out = answer.GetGroups()
			return err
		})
	return out, err
}

func TestCallFindsTheLeader(t *testing.T) {
	ca := newCA(t, cluster)
	me := identity(t, ca, authority.RoleOperator, time.Now())
	leader := &api{}
	leading := serve(t, ca, server("leader"), leader)
	nobody, wrong := "", "127.0.0.1:1"
	elsewhere := server("elsewhere")
	elsewhere.Shard = "b"
	for name, addrs := range map[string][]string{
		"the leader":               {leading},
		"a standby names it":       {serve(t, ca, server("standby"), &api{leader: &leading})},
		"a standby, then it":       {serve(t, ca, server("standby"), &api{leader: &nobody}), leading},
		"no server, then it":       {wrong, leading},
		"a standby errs on it":     {serve(t, ca, server("standby"), &api{leader: &wrong}), leading},
		"another shard's, then it": {serve(t, ca, elsewhere, &api{}), leading},
	} {
		leader.calls = 0
		if found, err := groups(t, me, addrs...); err != nil || len(found) != 1 || leader.calls != 1 {
			t.Errorf("%s: %v, %v, %d calls", name, found, err, leader.calls)
		}
	}
	// A standby that names itself is not asked again.
	own := new(string)
	itself := &api{leader: own}
	*own = serve(t, ca, server("itself"), itself)
	if _, err := groups(t, me, *own); !errors.Is(err, servers.ErrUnreachable) || itself.calls != 1 {
		t.Errorf("%v, %d calls", err, itself.calls)
	}
	// Each of two standbys returns the other's address as the address of the leader. This must not cause an endless
	// loop.
	second := new(string)
	a, b := &api{leader: second}, &api{}
	first := serve(t, ca, server("one"), a)
	b.leader = &first
	*second = serve(t, ca, server("two"), b)
	if _, err := groups(t, me, first); !errors.Is(err, servers.ErrUnreachable) || a.calls != 1 || b.calls != 1 {
		t.Errorf("%v, %d and %d calls", err, a.calls, b.calls)
	}
}

func TestCallIgnoresOtherServersErrors(t *testing.T) {
	ca := newCA(t, cluster)
	me := identity(t, ca, authority.RoleOperator, time.Now())
	other := server("other")
	other.Shard = "b"
	foreign := server("foreign")
	foreign.Cluster = "foreign"
	for name, test := range map[string]struct {
		ca   authority.CA
		of   authority.Identity
		want string
	}{
		"another shard":               {ca, other, "server of shard b, want shard a"},
		"another cluster":             {ca, foreign, "server of cluster foreign, want cluster example"},
		"another CA of the same name": {newCA(t, cluster), server("fake"), "unknown authority"},
	} {
		a := &api{}
		_, err := groups(t, me, serve(t, test.ca, test.of, a))
		if !errors.Is(err, servers.ErrUnreachable) || !strings.Contains(err.Error(), test.want) || a.calls > 0 {
			t.Errorf("%s: %v, %d calls", name, err, a.calls)
		}
	}
}

// TestCallGoesThroughAWay calls a leader whose own address nothing answers. Its certificate is valid for that address.
func TestCallGoesThroughAWay(t *testing.T) {
	ca := newCA(t, cluster)
	me := identity(t, ca, authority.RoleOperator, time.Now())
	call := func(way string) error {
		var err error
		me.Via, err = tunnel.Parse(shard + "=" + way)
		if err != nil {
			t.Fatal(err)
		}
		_, err = groups(t, me, "127.0.0.1:1")
		return err
	}
	if err := call(serve(t, ca, server("leader"), &api{})); err != nil {
		t.Error(err)
	}
	elsewhere := server("elsewhere")
	elsewhere.Shard = "b"
	var peer *operatorclient.PeerError
	if err := call(serve(t, ca, elsewhere, &api{})); !errors.As(err, &peer) ||
		!strings.Contains(servers.Advice(err), "operator.via") {
		t.Error(err)
	}
	if err := call("127.0.0.1:2"); err == nil || !strings.Contains(err.Error(), "via 127.0.0.1:2") ||
		!strings.Contains(servers.Advice(err), "operator.via") {
		t.Errorf("%v: %s", err, servers.Advice(err))
	}
}

func TestIdentity(t *testing.T) {
	ca := newCA(t, cluster)
	me := identity(t, ca, authority.RoleOperator, time.Now())
	dir := t.TempDir()
	for name, text := range map[string]string{"ca.crt": me.CA, "identity.crt": me.Certificate,
		"identity.key": me.PrivateKey} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, s := range map[string]servers.Settings{"texts": me, "directory": {IdentityDir: dir}} {
		if found, err := servers.New(s, nil).Identity(); err != nil || found.Who.Tenant != "prod" ||
			found.Who.Cluster != cluster {
			t.Errorf("%s: %+v, %v", name, found.Who, err)
		}
	}
	var none *servers.Connection
	if _, err := none.Identity(); !errors.Is(err, servers.ErrUnknown) || none.Known(shard) {
		t.Errorf("while Terraform only validates: %v", err)
	}
	otherKey := me
	otherKey.PrivateKey = identity(t, ca, authority.RoleOperator, time.Now()).PrivateKey
	noCA := me
	noCA.CA = "nothing"
	for name, test := range map[string]struct {
		settings servers.Settings
		want     error
		says     string
	}{
		"none":         {servers.Settings{}, servers.ErrNoIdentity, "no operator identity"},
		"unknown":      {servers.Settings{Unknown: true, CA: me.CA}, servers.ErrUnknown, "not applied yet"},
		"no directory": {servers.Settings{IdentityDir: dir + "/none"}, servers.ErrIdentity, "ca.crt"},
		"agent":        {identity(t, ca, authority.RoleAgent, time.Now()), servers.ErrIdentity, "role agent"},
		"expired": {identity(t, newAged(t), authority.RoleOperator, time.Now().Add(-2*time.Hour)),
			servers.ErrIdentity, "ended at"},
		"another's key": {otherKey, servers.ErrIdentity, "private key"},
		"no CA":         {noCA, servers.ErrIdentity, "CA certificate"},
	} {
		_, err := servers.New(test.settings, nil).Identity()
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: %v", name, err)
		}
		if servers.Advice(err) == "" {
			t.Errorf("%s: no advice", name)
		}
	}
}

// newAged returns a CA that was created a day ago.
func newAged(t *testing.T) authority.CA {
	t.Helper()
	ca, err := authority.CreateCA(cluster, rand.Reader, time.Now().Add(-24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// TestCopiedLockIsNotFollowed calls the leader of a shard from a copy of its bucket. The copied lock names the leader of
// the original, which must not be changed by who works on the copy.
func TestCopiedLockIsNotFollowed(t *testing.T) {
	ca := newCA(t, cluster)
	leader := &api{}
	at := objstore.Location{Provider: "file", Bucket: t.TempDir()}
	store, err := open.Open(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	home := record.Home{Schema: record.HomeSchema, Buckets: []record.Bucket{{Provider: "file", Name: "/original"}}}
	lock := record.Lock{LeaderID: "server-1", Incarnation: "incarnation-1", Term: 1, Revision: 1,
		LeaseMS: 4000, RenewMS: 1000,
		Addresses: record.LockAddresses{Operator: serve(t, ca, server("leader"), leader)}}
	call := func() error {
		return servers.New(identity(t, ca, authority.RoleOperator, time.Now()),
			bucket.New(bucket.Settings{Storage: &at})).Call(t.Context(), shard,
			func(ctx context.Context, c servers.Client) error {
				_, err := c.ListGroups(ctx, &nstancev1.ListGroupsRequest{})
				return err
			})
	}
	body, err := record.EncodeLock(lock)
	if err == nil {
		_, err = store.Put(t.Context(), keys.Leader(shard), body, objstore.IfAbsent())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := call(); err != nil || leader.calls != 1 {
		t.Fatalf("without a home: %v, %d calls", err, leader.calls)
	}
	if body, err = home.Encode(); err == nil {
		_, err = store.Put(t.Context(), keys.Home(shard), body, objstore.IfAbsent())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := call(); leader.calls != 1 || !errors.Is(err, servers.ErrNoAddress) ||
		!strings.Contains(err.Error(), "/original") || !strings.Contains(servers.Advice(err), "cluster restore") {
		t.Errorf("in a copy: %v, %d calls", err, leader.calls)
	}
}

func TestNoAddress(t *testing.T) {
	me := identity(t, newCA(t, cluster), authority.RoleOperator, time.Now())
	if _, err := groups(t, me); !errors.Is(err, servers.ErrNoAddress) || !errors.Is(err, bucket.ErrNotSet) {
		t.Errorf("%v", err)
	}
}
