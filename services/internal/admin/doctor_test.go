package admin

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// patient is a shard that tests examine with the command `doctor`. The shard has no running leader. All times are real,
// because the bucket's clock shows the real time.
type patient struct {
	*bucket
	lock     record.Lock
	free     uint64
	consoles []infra.Console
	denied   error // of the cloud
	extra    []string
}

// newPatient makes a shard in which the command `doctor` finds no problem.
func newPatient(t *testing.T, provider string) *patient {
	t.Helper()
	b := newBucket(t, provider)
	b.later = time.Since(fleettest.Now)
	b.init(t)
	b.must(t, b.args("config", "push", exampleConfig(t))...)
	p := &patient{bucket: b, free: 1 << 40, lock: record.Lock{LeaderID: "server-1", Incarnation: "i", Term: 7,
		Revision: 1, LeaseMS: 10_000, RenewMS: 1_000, RenewedAt: time.Now(),
		Heir:      record.LockHeir{ID: "server-2", Incarnation: "j"},
		Addresses: record.LockAddresses{Operator: servePort(t, time.Now().Add(time.Hour))}}}
	p.putLock(t)
	p.putJournal(t, 6, "server server-2, version 1.2.3")
	p.putJournal(t, 7, "server server-1, version 1.2.3")
	return p
}

func (p *patient) put(t *testing.T, key string, body []byte, err error) {
	t.Helper()
	if err == nil {
		_, err = p.store.Put(t.Context(), key, body, objstore.Always())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *patient) putLock(t *testing.T) {
	t.Helper()
	body, err := record.EncodeLock(p.lock)
	p.put(t, keys.Leader("dev-1"), body, err)
}

func (p *patient) putJournal(t *testing.T, term uint64, message string) {
	t.Helper()
	body, err := record.EncodeEvents([]record.Event{{Term: term, Sequence: 1, At: time.Now(),
		Kind: record.EventLeaderStarted, Message: message}})
	p.put(t, keys.Journal("dev-1", time.Now(), term, 1), body, err)
}

// putEnd writes events to the bucket as the second part of the journal of the last leader's term.
func (p *patient) putEnd(t *testing.T, events ...record.Event) {
	t.Helper()
	for n := range events {
		events[n].Term, events[n].Sequence, events[n].At = p.lock.Term, uint64(n+2), time.Now()
	}
	body, err := record.EncodeEvents(events)
	p.put(t, keys.Journal("dev-1", time.Now(), p.lock.Term, 2), body, err)
}

func (p *patient) putReport(t *testing.T, problem string) {
	t.Helper()
	report := record.ServerReport{Schema: record.ServerReportSchema, Generation: "a", Machine: "i-1", Problem: problem,
		ReportedAt: time.Now()}
	if err := clusterstate.New(clusterstate.Options{Cluster: p.store, Shard: p.store, ShardID: "dev-1"}).
		WriteServerReport(t.Context(), report); err != nil {
		t.Fatal(err)
	}
}

// examine runs the command doctor and returns its findings.
func (p *patient) examine(t *testing.T) ([]finding, error) {
	t.Helper()
	var out bytes.Buffer
	a := newApp("1.2.3", Environment{Stdout: &out, Stderr: &bytes.Buffer{}, Stdin: strings.NewReader(""),
		Getenv: func(name string) string { return p.env[name] }, Rand: fleettest.Rand(1),
		Now: func() time.Time { return fleettest.Now.Add(p.later) }, Clouds: []infra.Cloud{{
			Config: cloud.Block{Name: "tmux"},
			Consoles: func(context.Context, *config.Shard) ([]infra.Console, error) {
				return p.consoles, p.denied
			},
		}}})
	a.freeSpace = func(string) (uint64, error) { return p.free, nil }
	cmd := a.command()
	args := p.args("doctor", "--shard", "dev-1", "--cache-dir", "/var/cache/nstance", "-o", "json")
	cmd.SetArgs(append(args, p.extra...))
	err := cmd.ExecuteContext(t.Context())
	return parse[diagnosis](t, out.String()).Findings, err
}

// servePort serves TLS with a certificate that expires at the time `end`, and refuses every client.
func servePort(t *testing.T, end time.Time) (addr string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-24 * time.Hour), NotAfter: end}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{ClientAuth: tls.RequireAnyClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(context.Background()) // fails: the client has no certificate
			conn.Close()
		}
	}()
	return listener.Addr().String()
}

// closedPort returns the address of a port without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// denyMethod puts a proxy in front of the S3 server. If deny returns true for a request, the proxy answers "access
// denied", as S3 does if a policy does not permit the request.
func denyMethod(t *testing.T, deny func(*http.Request) bool) {
	t.Helper()
	target, err := url.Parse(os.Getenv("AWS_ENDPOINT_URL"))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if deny(r) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code>`+
				`<Message>Access Denied</Message></Error>`)
			return
		}
		r.Host = target.Host // as signed, which the server does not check
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_ENDPOINT_URL", server.URL)
}

// TestDoctorFindsFaults injects one fault at a time into a healthy shard. It checks that the command `doctor` names the
// fault and the next step, and reports nothing else.
func TestDoctorFindsFaults(t *testing.T) {
	for name, fault := range map[string]struct {
		provider string
		inject   func(*testing.T, *patient)
		checks   []string // the findings that are problems
		result   string
		next     string
	}{
		"nothing":       {"file", func(*testing.T, *patient) {}, nil, "", ""},
		"nothing in S3": {"s3", func(*testing.T, *patient) {}, nil, "", ""},
		"wrong key": {"file", func(t *testing.T, _ *patient) {
			t.Setenv("NSTANCE_ENCRYPTION_KEY", "another-32-byte-key-for-the-test")
		}, []string{"encryption key"}, "it is the wrong key", "NSTANCE_ENCRYPTION_KEY"},
		"unreachable bucket": {"s3", func(t *testing.T, _ *patient) {
			t.Setenv("AWS_ENDPOINT_URL", "http://"+closedPort(t))
		}, []string{"bucket"}, "connection refused", "nothing listens at that address"},
		"wrong bucket": {"s3", func(_ *testing.T, p *patient) {
			p.flags[slices.Index(p.flags, "dev")] = "other"
		}, []string{"bucket"}, "NoSuchBucket", "the name of the bucket"},
		"no directory": {"file", func(t *testing.T, p *patient) {
			if err := os.RemoveAll(p.location.Bucket); err != nil {
				t.Fatal(err)
			}
		}, []string{"bucket"}, "no such file", "--storage-bucket is a directory"},
		"no permission to write": {"s3", func(t *testing.T, _ *patient) {
			denyMethod(t, func(r *http.Request) bool { return r.Method == http.MethodPut })
		}, []string{"write to the bucket"}, "AccessDenied", "the right to do this with the bucket"},
		"no permission to list": {"s3", func(t *testing.T, _ *patient) {
			denyMethod(t, func(r *http.Request) bool { return r.URL.Query().Has("list-type") })
		}, []string{"list the bucket", "versions"}, "AccessDenied", "the right to do this with the bucket"},
		"no permission in the cloud": {"file", func(_ *testing.T, p *patient) {
			p.denied = fmt.Errorf("UnauthorizedOperation: not authorized to perform ec2:GetConsoleOutput")
		}, []string{"machines of servers"}, "not authorized", "permissions"},
		"clock of this machine": {"file", func(_ *testing.T, p *patient) { p.later -= 10 * time.Minute },
			[]string{"clock of this machine"}, "differs by 10m", "time synchronization"},
		"clock of the leader": {"file", func(t *testing.T, p *patient) {
			p.lock.RenewedAt = p.lock.RenewedAt.Add(-time.Hour)
			p.putLock(t)
		}, []string{"clock of server-1"}, "differs by 1h0m", "time synchronization"},
		"expired CA": {"file", func(t *testing.T, p *patient) {
			if err := os.RemoveAll(p.location.Bucket); err != nil {
				t.Fatal(err)
			}
			p.reopen(t)
			now := p.later
			p.later -= 11 * 365 * 24 * time.Hour
			p.init(t)
			p.must(t, p.args("config", "push", exampleConfig(t))...)
			p.later = now
			p.putLock(t)
			p.putJournal(t, 7, "server server-1, version 1.2.3")
		}, []string{"CA certificate"}, "it has expired", "cluster rotate-ca"},
		"expired certificate of the operator": {"file", func(t *testing.T, p *patient) {
			dir, now := t.TempDir(), p.later
			p.later -= 40 * 24 * time.Hour
			if err := os.RemoveAll(p.location.Bucket); err != nil {
				t.Fatal(err)
			}
			p.reopen(t)
			p.init(t)
			p.must(t, p.args("cluster", "register-operator", "--output-dir", dir)...)
			p.must(t, p.args("config", "push", exampleConfig(t))...)
			p.later = now
			p.putLock(t)
			p.extra = []string{"--identity-dir", dir}
		}, []string{"your certificate"}, "it has expired", "register-operator --output-dir"},
		"no certificate of the operator": {"file", func(t *testing.T, p *patient) {
			p.extra = []string{"--identity-dir", t.TempDir()}
		}, []string{"your certificate"}, "is missing in", "register-operator --output-dir"},
		"expired certificate of a server": {"file", func(t *testing.T, p *patient) {
			p.lock.Addresses.Operator = servePort(t, time.Now().Add(-time.Hour))
			p.putLock(t)
		}, []string{"operator port of server-1"}, "it has expired", "restart the server"},
		"closed port": {"file", func(t *testing.T, p *patient) {
			p.lock.Addresses.Agent = closedPort(t)
			p.putLock(t)
		}, []string{"agent port of server-1"}, "closed", "other ports of this server answer: a firewall"},
		"closed port in --servers": {"file", func(t *testing.T, p *patient) {
			p.extra = []string{"--servers", "dev-1=" + closedPort(t) + ",dev-2=127.0.0.1:1"}
		}, []string{"operator port in --servers"}, "connection refused", "journalctl -u nstance-server"},
		"closed ports of a server": {"file", func(t *testing.T, p *patient) {
			p.lock.Addresses = record.LockAddresses{Election: closedPort(t), Registration: closedPort(t),
				Operator: closedPort(t), Agent: closedPort(t)}
			p.putLock(t)
		}, []string{"leader"}, "no port answers: its process is probably not running", "--cache-dir"},
		"another program at the port": {"file", func(t *testing.T, p *patient) {
			server := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(server.Close)
			p.lock.Addresses.Agent = server.Listener.Addr().String()
			p.putLock(t)
		}, []string{"agent port of server-1"}, "does not answer with TLS", "its process hangs"},
		"stale lock": {"file", func(t *testing.T, p *patient) {
			p.lock.RenewedAt = p.lock.RenewedAt.Add(-time.Hour)
			p.putLock(t)
			path := filepath.Join(p.location.Bucket, p.location.Prefix, keys.Leader("dev-1"))
			if err := os.Chtimes(path, p.lock.RenewedAt, p.lock.RenewedAt); err != nil {
				t.Fatal(err)
			}
		}, []string{"leader"}, "the lock is stale: server-1 renewed it 1h0m", "consoles"},
		"no lock": {"file", func(t *testing.T, p *patient) {
			if err := p.store.Delete(t.Context(), keys.Leader("dev-1")); err != nil {
				t.Fatal(err)
			}
		}, []string{"leader"}, "no server has led the shard", "server_count"},
		"released lock": {"file", func(t *testing.T, p *patient) {
			p.lock.Released = true
			p.putLock(t)
		}, []string{"leader"}, "server-1 has released the lock", "consoles"},
		"damaged object": {"file", func(t *testing.T, p *patient) {
			p.lock.Released = true
			p.putLock(t)
			p.putEnd(t, record.Event{Kind: record.EventLeaderEnded, Actor: "leader",
				Message: "take over: read the records: shard/dev-1/instance/x: decode instance: no schema version"})
		}, []string{"leader"}, "decode instance: no schema version", "nstance-admin cluster verify names all damaged"},
		"leader that stepped down": {"file", func(t *testing.T, p *patient) {
			p.lock.Released = true
			p.putLock(t)
			p.putEnd(t, record.Event{Kind: record.EventLeaderStepsDown, Actor: "ada", Message: "the leader steps down"},
				record.Event{Kind: record.EventLeaderEnded, Actor: "leader"})
		}, []string{"leader"}, "has taken it; ada asked the leader to step down at ", "consoles"},
		"full disk on this machine": {"file", func(_ *testing.T, p *patient) { p.free = 1 << 20 },
			[]string{"disk of /var/cache/nstance"}, "it is full: 1 MiB", "free space"},
		"full disk of a server": {"file", func(t *testing.T, p *patient) {
			p.putReport(t, "open cache: write cache.db: no space left on device")
		}, []string{"newest server"}, "the disk of i-1 was full", "free space"},
		"full disk in a console": {"file", func(_ *testing.T, p *patient) {
			p.consoles = []infra.Console{{Machine: "i-1", Output: "systemd: write /var/log: no space left on device\n"}}
		}, []string{"disk of i-1"}, "no space left on device", "free space"},
		"server that did not start": {"file", func(t *testing.T, p *patient) { p.putReport(t, "connection refused") },
			[]string{"newest server"}, "i-1 did not become ready", "correct the image"},
		"old nstance-admin": {"file", func(t *testing.T, p *patient) {
			p.putJournal(t, 7, "server server-1, version 1.3.0")
			p.putJournal(t, 6, "server server-2, version 1.3.0")
		}, []string{"versions"}, "version skew: nstance-admin 1.2.3, server-1 1.3.0", "of version 1.3.0"},
		"old heir": {"file", func(t *testing.T, p *patient) { p.putJournal(t, 6, "server server-2, version 1.2.2") },
			[]string{"versions"}, "server-2 1.2.2", "upgrade the older server"},
		"newer documents": {"file", func(t *testing.T, p *patient) {
			p.put(t, keys.Leader("dev-1"), []byte(`{"schema": 99}`), nil)
		}, []string{"leader"}, "written by a newer version", "of the servers' version"},
		"invalid configuration": {"file", func(t *testing.T, p *patient) {
			p.put(t, keys.Config("dev-1"), []byte(`{"cluster": 1}`), nil)
		}, []string{"configuration"}, "cluster", "correct it"},
		"lost CA key": {"file", func(t *testing.T, p *patient) {
			p.must(t, p.args("cluster", "secret", "delete", "ca.key", "--force", "--yes")...)
		}, []string{"encryption key"}, "not found", "restores it from a backup"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t, fault.provider)
			fault.inject(t, p)
			findings, err := p.examine(t)
			var bad []finding
			for _, f := range findings {
				if f.Status == problem {
					bad = append(bad, f)
				}
			}
			if len(bad) != len(fault.checks) || (err != nil) != (len(bad) > 0) {
				t.Fatalf("%v, want problems of %q, there are:\n%+v", err, fault.checks, bad)
			}
			for i, f := range bad {
				if !strings.HasPrefix(f.Check, fault.checks[i]) || !strings.Contains(f.Result, fault.result) ||
					!strings.Contains(f.Next, fault.next) {
					t.Errorf("%+v\nwant %q, %q, next %q", f, fault.checks[i], fault.result, fault.next)
				}
			}
			if len(findings) < 10 && len(bad) > 0 && bad[0].Check != "bucket" {
				t.Errorf("only %d checks were made: %+v", len(findings), findings)
			}
		})
	}
}

// TestDoctorNamesAlerts checks that the command `doctor` names each active alert of a leader, with the runbook for it.
func TestDoctorNamesAlerts(t *testing.T) {
	p := newPatient(t, "file")
	c := fleettest.NewCluster(t, "example")
	shard := &fleettest.Shard{Status: &nstancev1.GetShardStatusResponse{}}
	addr, _ := c.Serve(t, "dev-1", shard)
	p.later = 0 // the certificates of c are of that time
	identity := c.Identity(t, "default", fleettest.Now, time.Hour)
	p.extra = []string{"--servers", "dev-1=" + addr, "--identity-dir", identity}
	alerts := func() (found []finding) {
		findings, _ := p.examine(t)
		for _, f := range findings {
			if strings.HasPrefix(f.Check, "alert") {
				found = append(found, f)
			}
		}
		return found
	}
	if found := alerts(); len(found) != 1 || found[0].Status != ok || found[0].Result != "none is active" {
		t.Errorf("without alerts: %+v", found)
	}
	shard.Do(func() {
		shard.Status.Errors = []*nstancev1.ErrorEvent{{Kind: "storage", Message: "denied"},
			{Kind: "backoff", Group: "web", Message: "no room (rule 25)"}}
	})
	if found := alerts(); len(found) != 2 || found[0].Status == ok || found[0].Check != "alert backoff of group web" ||
		!strings.HasPrefix(found[0].Result, "no room (rule 25)") || found[1].Check != "alert storage" ||
		found[1].Next != "see "+runbooks+"storage.md" {
		t.Errorf("with two alerts: %+v", found)
	}
	// One fault is one problem, although the leader and the command `doctor` both see it.
	shard.Do(func() { shard.Status.Errors = []*nstancev1.ErrorEvent{{Kind: "config", Message: "siez"}} })
	if found := alerts(); len(found) != 1 {
		t.Errorf("with a valid configuration in the bucket, which the leader refuses: %+v", found)
	}
	p.put(t, keys.Config("dev-1"), []byte(`{"siez": 2}`), nil)
	if found := alerts(); len(found) != 0 {
		t.Errorf("with a bad configuration in the bucket: %+v", found)
	}
}

func TestDoctorShowsConsoles(t *testing.T) {
	p := newPatient(t, "file")
	var out strings.Builder
	a := newApp("1", Environment{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" },
		Now: func() time.Time { return fleettest.Now }, Rand: fleettest.Rand(1), Clouds: []infra.Cloud{{
			Config: cloud.Block{Name: "tmux"},
			Consoles: func(context.Context, *config.Shard) ([]infra.Console, error) {
				return []infra.Console{{Machine: "i-1", State: "terminated",
					Output: "booting\r\nunknown flag: --x\r\n"},
					{Machine: "i-2", State: "pending"}}, nil
			},
		}}})
	cmd := a.command()
	cmd.SetArgs(p.args("doctor", "--shard", "dev-1", "--lines", "1"))
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.HasSuffix(out.String(),
		"\nConsole of i-1 (terminated):\n  unknown flag: --x\n\nConsole of i-2 (pending):\n"+
			"  (none yet: a cloud may need minutes)\n") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	p.fails(t, exitUsage, "--shard", p.args("doctor")...)
	p.fails(t, exitUsage, "--storage-bucket is missing", "doctor", "--shard", "dev-1")
	// Nothing listens on these ports.
	for _, env := range []map[string]string{{envServers: "dev-1=127.0.0.1:1"},
		{envServers: "dev-1=127.0.0.1:1,dev-2=127.0.0.1:2", envShard: "dev-1"}} {
		p.env = env
		p.fails(t, exitFailure, "of shard dev-1", p.args("doctor")...)
	}
}

// TestFreeSpace asks the system.
func TestFreeSpace(t *testing.T) {
	if free, err := freeSpace(t.TempDir()); err != nil || free == 0 {
		t.Error(free, err)
	}
	if _, err := freeSpace("/nonexistent"); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Error(err)
	}
}
