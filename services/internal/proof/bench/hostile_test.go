package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/keyring"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// ends are the allowed outcomes of an attack. At least one attempt must have an outcome in proper. Other attempts may
// also have an outcome in excused.
type ends struct{ proper, excused []string }

func must(proper ...string) ends { return ends{proper: proper} }

func (e ends) or(excused ...string) ends { return ends{e.proper, excused} }

var (
	// cut lists the outcomes of attacks with too many connections from one address or with one certificate: the server
	// refuses further connections or closes some.
	cut = []string{"Unavailable", "closed", "refused"}
	// limited lists the outcomes of attacks with too many registrations from one source address. The server checks
	// their rate before it checks the nonce.
	limited = []string{"Unavailable", "ResourceExhausted"}
	// endured has the outcomes of attacks that the server may process in full. The number of bytes that such an attack
	// sends limits the work that it causes.
	endured = must("taken", "closed", "open").or("refused")
)

// mayEnd maps a kind of attack, or a kind and port, to its allowed outcomes.
var mayEnd = map[string]ends{
	"silent":       must("closed").or("refused"),
	"slow":         must("closed"),
	"noise":        must("closed").or("refused"),
	"noise in TLS": must("closed").or("refused"),
	"TLS 1.2":      must("closed").or("refused"),

	"nonce: replayed":                    must("PermissionDenied").or(limited...),
	"nonce: flood of consumed ones":      must("PermissionDenied", "ResourceExhausted").or(limited...),
	"nonce: expired":                     must("Unauthenticated").or(limited...),
	"nonce: another tenant":              must("PermissionDenied").or(limited...),
	"nonce: another shard":               must("PermissionDenied").or(limited...),
	"nonce: another cluster":             must("PermissionDenied").or(limited...),
	"nonce: another cluster's key":       must("Unauthenticated").or(limited...),
	"nonce: instance without a record":   must("NotFound").or(limited...),
	"nonce: an operator's for an agent":  must("PermissionDenied").or(limited...),
	"nonce: of an agent for an operator": must("PermissionDenied").or(limited...),
	"nonce: forged signature":            must("Unauthenticated").or(limited...),
	"nonce: tampered":                    must("Unauthenticated").or(limited...),
	"nonce: alg none":                    must("InvalidArgument").or(limited...),
	"nonce: alg HS256":                   must("InvalidArgument").or(limited...),
	"nonce: garbage":                     must("InvalidArgument").or(limited...),

	"malformed registration":    must("Internal").or(limited...),
	"malformed agents":          must("Internal").or(cut...),
	"malformed operators":       must("Internal").or(cut...),
	"malformed election":        must("PermissionDenied").or(cut...),
	"oversized registration":    must("ResourceExhausted").or(limited...),
	"oversized agents":          must("ResourceExhausted").or(cut...),
	"oversized operators":       must("ResourceExhausted").or(cut...),
	"oversized election":        must("PermissionDenied").or(cut...),
	"another's name":            must("PermissionDenied").or("Aborted", "Unavailable"),
	"oversized report":          must("ResourceExhausted").or("Aborted", "Unavailable"),
	"report of nonsense":        must("InvalidArgument").or("Aborted", "Unavailable"),
	"another tenant's instance": must("NotFound").or(cut...),

	"certificate":                             must("PermissionDenied").or(cut...), // except for the following
	"certificate agents deleted":              must("NotFound").or(cut...),
	"certificate agents none":                 must("Unavailable"),
	"certificate operators none":              must("Unavailable"),
	"certificate election none":               must("Unavailable"),
	"certificate agents another authority":    must("Unavailable"),
	"certificate operators another authority": must("Unavailable"),
	"certificate election another authority":  must("Unavailable"),
	"certificate agents expired agent":        must("Unauthenticated").or(cut...),
	"certificate operators expired operator":  must("Unauthenticated").or(cut...),
	"certificate agents another cluster":      must("Unauthenticated").or(cut...),
	"certificate operators another cluster":   must("Unauthenticated").or(cut...),
	"certificate election another cluster":    must("Unauthenticated").or(cut...),

	"rapid reset":        endured,
	"settings flood":     endured,
	"window flood":       endured,
	"continuation flood": must("closed", "GOAWAY PROTOCOL_ERROR", "GOAWAY COMPRESSION_ERROR").or("refused"),
	"huge headers":       must("closed", "RST FRAME_SIZE_ERROR").or("refused"),
	"ping flood":         must("GOAWAY ENHANCE_YOUR_CALM", "closed").or("refused"),
	"streams left":       must("left", "closed").or("refused"),
	"slow body":          must("left", "closed").or("refused"),
	"no window":          must("left", "closed").or("refused"),
}

// endsOf returns the allowed outcomes of an attack. It looks for the attack's full name first, and then for its kind.
func endsOf(name string) ends {
	if e, ok := mayEnd[name]; ok {
		return e
	}
	if strings.HasPrefix(name, "certificate ") {
		return mayEnd["certificate"]
	}
	kind, _ := cutLast(name)
	return mayEnd[kind]
}

func cutLast(name string) (before, after string) {
	at := strings.LastIndexByte(name, ' ')
	return name[:max(at, 0)], name[at+1:]
}

// judge fails the test if an attack had an outcome that is not allowed. If kinds are given, there must be attacks of
// each of these kinds, and each attack must have had at least one proper outcome.
func judge(t testing.TB, seen map[string]map[string]int, kinds []string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%-44s %v", name, seen[name])
		may, proper := endsOf(name), 0
		for outcome, count := range seen[name] {
			switch {
			case slices.Contains(may.proper, outcome):
				proper += count
			case !slices.Contains(may.excused, outcome):
				t.Errorf("%s: %d times %s, want %v or %v", name, count, outcome, may.proper, may.excused)
			}
		}
		if proper == 0 && kinds != nil {
			t.Errorf("%s: never ended as it has to: %v, want %v", name, seen[name], may.proper)
		}
	}
	for _, kind := range kinds {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(name string) bool {
			return strings.HasPrefix(name, kind)
		}) {
			t.Errorf("%s: did not happen", kind)
		}
	}
}

// prey is the stack that is attacked. It has extra instances for the attackers and for the visitors.
type prey struct {
	*stack
	targets  target
	visitors []visitor
}

// visitor is an instance whose agent connects repeatedly. The benchmark uses many visitors in turn, because a real
// agent does not connect every second.
type visitor struct {
	id   string
	cert tls.Certificate
}

func newPrey(b testing.TB, agents int) *prey {
	b.Helper()
	const each = 4
	p := &prey{stack: newStack(b, agents+each*groups, 0, true)}
	p.fill(agents / groups)
	var spare []entered
	for _, creates := range p.creates {
		for range each {
			spare = append(spare, <-creates)
		}
	}
	hostile := spare[0].req
	// Besides `hostile`, the attackers own two more instances. They need three connections, and an instance may have
	// only one.
	reporter, caller := spare[1].req, spare[2].req
	p.targets = target{CA: p.caBundle(), ID: hostile.Tags.Instance.String(), Reporter: reporter.Tags.Instance.String(),
		Other: p.members[0][0], Nonces: map[string]string{"replayed": string(hostile.Userdata)},
		Ports: map[string]string{registrationPort: p.ports[2], agentPort: p.ports[4], operatorPort: p.ports[3],
			electionPort: p.ports[1], healthPort: p.ports[0]}}
	for _, honest := range spare[3:] {
		p.visitors = append(p.visitors, visitor{honest.req.Tags.Instance.String(),
			p.register(string(honest.req.Userdata))})
	}
	p.forge(hostile.Tags.Instance, caller.Tags.Instance)
	for name, req := range map[string]infra.CreateRequest{"agent": hostile, "reporter": reporter, "caller": caller} {
		p.targets.Papers[name] = paperOf(b, p.register(string(req.Userdata)))
	}
	return p
}

// register registers an agent with a nonce, and returns its certificate.
func (p *prey) register(nonce string) tls.Certificate {
	p.b.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		p.b.Fatal(err)
	}
	conn := p.dial(p.ports[2], nil)
	defer conn.Close()
	resp, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(context.Background(),
		&nstancev1.RegisterAgentRequest{Nonce: nonce, PublicKey: public, Ipv4: "10.0.0.1"})
	if err != nil {
		p.b.Fatal(err)
	}
	block, _ := pem.Decode(resp.GetCertificate())
	return tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: private}
}

func (p *prey) dial(addr string, certs []tls.Certificate) *grpc.ClientConn {
	p.b.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(p.caBundle()))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithNoProxy(), grpc.WithDisableRetry(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: certs,
			MinVersion: tls.VersionTLS13})))
	if err != nil {
		p.b.Fatal(err)
	}
	return conn
}

// forge makes certificates and nonces that attackers might have. Some are signed with the cluster's keys, and others
// come from outside the cluster.
func (p *prey) forge(id, caller ident.ID) {
	b, now := p.b, time.Now()
	b.Helper()
	ctx := context.Background()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	key, err := keyring.Parse([]byte(encryptionKey))
	must(err)
	state := clusterstate.New(clusterstate.Options{Cluster: p.bucket, Shard: p.bucket, ClusterID: "bench",
		ShardID: "bench",
		Secrets: secretstore.NewObjects(secretstore.Options{Bucket: p.bucket, Cluster: "bench",
			Ring: keyring.Ring{Current: key}, Rand: rand.Reader})})
	ca, err := state.LoadCA(ctx)
	must(err)
	nonceKey, err := state.LoadNonceKey(ctx)
	must(err)
	foreignCA, err := authority.CreateCA("bench", rand.Reader, now)
	must(err)
	foreignKey, err := authority.CreateNonceKey(rand.Reader)
	must(err)

	newID := func(prefix string) ident.ID {
		id, err := ident.NewID(prefix, now, rand.Reader)
		must(err)
		return id
	}
	issue := func(ca authority.CA, i authority.Identity, ttl time.Duration) paper {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		must(err)
		cert, err := ca.IssueClient(authority.ClientSpec{Identity: i, PublicKey: public, TTL: ttl}, rand.Reader, now)
		must(err)
		return paperOf(b, tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: private})
	}
	agent := authority.Identity{Role: authority.RoleAgent, Cluster: "bench", Tenant: "default", ID: id}
	operator := authority.Identity{Role: authority.RoleOperator, Cluster: "bench", Tenant: "rival",
		ID: newID(ident.OperatorPrefix)}
	stranger, rival, elsewhere := operator, agent, agent
	stranger.ID, rival.Tenant, elsewhere.Cluster = newID(ident.OperatorPrefix), "rival", "elsewhere"
	deleted, other := agent, agent
	deleted.ID, other.ID = p.delete(), caller
	p.targets.Papers = map[string]paper{
		"operator": issue(ca, operator, 0), "expired agent": issue(ca, other, time.Second),
		"expired operator": issue(ca, operator, time.Second),
		"deleted":          issue(ca, deleted, 0), "another tenant": issue(ca, rival, 0),
		"another key":      issue(ca, other, 0),
		"unknown operator": issue(ca, stranger, 0),
		"another cluster":  issue(ca, elsewhere, 0), "another authority": issue(foreignCA, agent, 0),
	}
	leaf, err := x509.ParseCertificate(p.targets.Papers["operator"].Cert)
	must(err)
	_, err = state.PutOperator(ctx, record.Operator{Schema: record.OperatorSchema, Revision: 1, ID: operator.ID,
		Cluster: "bench", Tenant: "rival", Writer: "bench",
		PublicKey: leaf.PublicKey.(ed25519.PublicKey), Certificate: record.CertificateRef{
			Serial: authority.Serial(leaf), NotAfter: leaf.NotAfter},
		CreatedAt: now.UTC(), NonceExpires: now.UTC().Add(time.Hour)}, "")
	must(err)

	nonce := func(kind string, key authority.NonceKey, change func(*authority.NonceSpec)) {
		spec := authority.NonceSpec{Role: authority.RoleAgent, Cluster: "bench", Tenant: "default", ID: id,
			Shard: "bench", Group: "g0"}
		change(&spec)
		made, _, err := authority.MintNonce(key, spec, rand.Reader, now)
		must(err)
		p.targets.Nonces[kind] = made.Reveal()
	}
	fresh := newID("bnc")
	nonce("expired", nonceKey, func(s *authority.NonceSpec) { s.ID, s.TTL = fresh, time.Second })
	nonce("instance without a record", nonceKey, func(s *authority.NonceSpec) { s.ID = fresh })
	nonce("another tenant", nonceKey, func(s *authority.NonceSpec) { s.Tenant = "rival" })
	nonce("another shard", nonceKey, func(s *authority.NonceSpec) { s.Shard = "elsewhere" })
	nonce("another cluster", nonceKey, func(s *authority.NonceSpec) { s.Cluster = "elsewhere" })
	nonce("another cluster's key", foreignKey, func(*authority.NonceSpec) {})
	nonce("an operator's for an agent", nonceKey, func(s *authority.NonceSpec) {
		*s = authority.NonceSpec{Role: authority.RoleOperator, Cluster: "bench", Tenant: "rival"}
	})
	<-time.After(2 * time.Second) // until expired credentials have expired
}

func paperOf(b testing.TB, cert tls.Certificate) paper {
	b.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		b.Fatal(err)
	}
	return paper{cert.Certificate[0], key}
}

// delete makes one instance power off, so that the server replaces it. It returns the ID of that instance.
func (p *prey) delete() ident.ID {
	id, err := ident.ParseID(p.members[groups-1][0])
	if err != nil {
		p.b.Fatal(err)
	}
	p.members[groups-1] = p.members[groups-1][1:]
	p.fleet.orders <- order{Op: "power_off", ID: id.String()}
	p.startAgent(groups-1, <-p.creates[groups-1])
	return id
}

// attack starts the attackers, and returns when their silent connections are open. stop ends the attackers and returns
// the outcomes of their attacks.
func (p *prey) attack(silent, slow int, kinds ...string) (stop func() map[string]map[string]int) {
	p.b.Helper()
	in, out, wait := startSelf(p.b, attackersEnv)
	targets := p.targets
	targets.Silent, targets.Slow, targets.Kinds = silent, slow, kinds
	if err := json.NewEncoder(in).Encode(targets); err != nil {
		p.b.Fatal(err)
	}
	decoder := json.NewDecoder(out)
	var waiting int
	if err := decoder.Decode(&waiting); err != nil {
		p.b.Fatalf("attackers: %v", err)
	}
	if (len(kinds) == 0 || slices.Contains(kinds, "silent")) && waiting < silent/2 {
		p.b.Errorf("only %d of %d silent connections are open", waiting, silent)
	}
	return sync.OnceValue(func() (seen map[string]map[string]int) {
		_ = in.Close()
		if err := decoder.Decode(&seen); err != nil {
			p.b.Errorf("attackers: %v", err)
		}
		_, _ = io.Copy(io.Discard, out)
		if err := wait(); err != nil {
			p.b.Errorf("attackers: %v", err)
		}
		return seen
	})
}

// visits connects as one visitor after another until the channel is closed. For each visitor, it measures the time for
// the connection, the handshake and one call.
func (p *prey) visits(until <-chan struct{}) (took []time.Duration) {
	for n := 0; ; n++ {
		who := p.visitors[n%len(p.visitors)]
		select {
		case <-until:
			return took
		case <-time.After(20 * time.Millisecond):
		}
		began := time.Now()
		conn := p.dial(p.ports[4], []tls.Certificate{who.cert})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, err := nstancev1.NewAgentServiceClient(conn).RenewCertificate(ctx,
			&nstancev1.AgentServiceRenewCertificateRequest{InstanceId: who.id})
		cancel()
		_ = conn.Close()
		if err != nil {
			p.b.Errorf("a good agent that comes: %v", err)
		}
		took = append(took, time.Since(began))
	}
}

// both measures losses and visits at the same time.
func (p *prey) both(rounds int) (losses, visits []time.Duration) {
	until := make(chan struct{})
	var side sync.WaitGroup
	side.Go(func() { visits = p.visits(until) })
	losses = p.losses("power_off", rounds, false)
	close(until)
	side.Wait()
	return losses, visits
}

// TestHostileClients checks that attacks are refused as required, and that good agents can meanwhile connect and report
// losses. BenchmarkHostile measures the delays.
func TestHostileClients(t *testing.T) {
	if testing.Short() {
		t.Log("attacks are left out of a short run")
		return
	}
	p := newPrey(t, 50)
	// Use several source addresses, so that attacks do not exhaust the limit of one address. Try each attack ten times:
	// if there were only a few attempts, the server might cut off all of them.
	p.targets.Addresses, p.targets.Least = 16, 10
	stop := p.attack(1000, 100)
	p.both(4)
	judge(t, stop(), slices.Collect(maps.Keys(mayEnd)))
}

// waves are the attacks that are measured one after the other. A wave without kinds makes all kinds of attacks. 10,000
// silent connections are half of a common limit of file descriptors. The server closes connections beyond its own
// limit, and the attackers immediately open new ones. So silent connections also cause a flood of new connections. All
// attacks come from one address, except in the last wave, which uses sixteen addresses.
var waves = []struct {
	name         string
	silent, slow int
	kinds        []string
}{
	{"silent-10000", 9600, 0, []string{"silent"}},
	{"slow-2000", 0, 2000, []string{"slow"}},
	{"handshakes", 0, 0, []string{"noise", "noise in TLS", "TLS 1.2", "certificate"}},
	{"nonces", 0, 0, nonceKinds()},
	{"messages", 0, 0, []string{"malformed", "oversized", "another's name", "oversized report", "report of nonsense",
		"another tenant's instance"}},
	{"rapid-reset", 0, 0, []string{"rapid reset"}},
	{"headers", 0, 0, []string{"continuation flood", "huge headers"}},
	{"settings", 0, 0, []string{"settings flood"}},
	{"pings", 0, 0, []string{"ping flood", "window flood"}},
	{"left", 0, 0, []string{"streams left", "slow body", "no window"}},
	{"everything", 9000, 200, nil},
	{"everywhere", 9000, 200, nil},
}

func nonceKinds() (kinds []string) {
	for kind := range mayEnd {
		if strings.HasPrefix(kind, "nonce") {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// BenchmarkHostile repeats BenchmarkPowerOff without an attack and during each wave of attacks. It also measures how
// long an agent takes for a connection, a handshake and one call. Each wave is a sub-benchmark, so you can run one wave
// alone: Hostile/settings.
func BenchmarkHostile(b *testing.B) {
	p := newPrey(b, 1000)
	// Real attackers would run on other machines and take no CPU time from the server, except for the work that they
	// cause. So these attackers use only CPU time that no other process needs.
	p.targets.Idle = true
	measure := func(name string, silent, slow int, kinds ...string) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				stop := func() map[string]map[string]int { return nil }
				p.targets.Addresses = 0
				if name == "everywhere" {
					p.targets.Addresses = 16
				}
				if kinds != nil || silent > 0 {
					stop = p.attack(silent, slow, kinds...)
				}
				began, before, late := time.Now(), strainNow(), []string{}
				profiled := profileCPU(b, "hostile-"+name)
				losses, visits := p.both(60)
				profiled()
				b.Logf("%s", strainNow().since(before))
				for n, took := range losses {
					if took > 10*time.Millisecond {
						late = append(late, fmt.Sprintf("%d:%s", n, took.Round(time.Millisecond)))
					}
				}
				percentiles(b, "loss", losses)
				percentiles(b, "visit", visits)
				b.Logf("%d losses, p50 %s, p99 %s; %d visits, p50 %s, p99 %s; in %s from %s; late %v", len(losses),
					losses[len(losses)/2], losses[len(losses)*99/100],
					len(visits), visits[len(visits)/2], visits[len(visits)*99/100],
					time.Since(began).Round(time.Second), began.Format(time.TimeOnly), late)
				judge(b, stop(), nil)
			}
		})
	}
	measure("quiet", 0, 0)
	for _, wave := range waves {
		measure(wave.name, wave.silent, wave.slow, wave.kinds...)
	}
	measure("quiet-again", 0, 0)
}
