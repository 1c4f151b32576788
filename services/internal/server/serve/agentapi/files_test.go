package agentapi_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/agentapi"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

func TestFilesAndKeys(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files, keys := c.reports(), c.files(), c.keyRequests()
	request, err := keys.Recv()
	if err != nil || len(request.GetKeys()) != 1 || request.GetKeys()[0].GetName() != "node.pub" ||
		request.GetKeys()[0].GetAlgorithm() != nstancev1.KeyAlgorithm_KEY_ALGORITHM_ED25519 {
		t.Fatalf("%v %v", request, err)
	}
	r.send(nil)
	// The agent has not submitted its key yet. So the batch lacks the certificate for that key, and has no hash.
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	first := receive(t, files)
	if diff := cmp.Diff([]string{"node.env", "secret.key"}, first.names()); diff != "" ||
		first.commit.GetRuntimeHash() != "" {
		t.Errorf("hash %q %s", first.commit.GetRuntimeHash(), diff)
	}
	if diff := cmp.Diff([]string{"node.crt", "node.env", "secret.key"}, first.commit.GetNames()); diff != "" {
		t.Error(diff)
	}
	if string(first.files["node.env"].GetContent()) != "ROLE=worker\n" || first.files["node.env"].GetKind() != "env" ||
		string(first.files["secret.key"].GetContent()) != "hunter2" {
		t.Errorf("%v", first.files)
	}
	if request, err = keys.Recv(); err != nil || request.GetKeys()[0].GetName() != "node.pub" {
		t.Errorf("asked again for %v (%v)", request, err)
	}
	// After the agent submits the key, the server sends only the certificate.
	key := transporttest.NewKey(t)
	if err := c.submit("node.pub", pkixOf(t, key)); err != nil {
		t.Fatal(err)
	}
	second := receive(t, files)
	if diff := cmp.Diff([]string{"node.crt"}, second.names()); diff != "" || second.commit.GetRuntimeHash() != "r1" {
		t.Errorf("hash %q %s", second.commit.GetRuntimeHash(), diff)
	}
	block, _ := pem.Decode(second.files["node.crt"].GetContent())
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !cert.PublicKey.(ed25519.PublicKey).Equal(key.Public()) || cert.DNSNames[0] != "node-1" ||
		cert.IPAddresses[0].String() != "10.1.2.3" {
		t.Errorf("certificate %+v (%v)", cert, err)
	}
	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 2)
	entries := w.log(t)
	want := []record.Issued{{Name: "node.crt", Kind: record.CertServer, Serial: authority.Serial(cert),
		NotAfter: cert.NotAfter}}
	if len(entries) != 1 || entries[0].Instance != c.id || cmp.Diff(want, entries[0].Issued) != "" {
		t.Errorf("log %+v", entries)
	}
	if view, _ := w.State.Instance(c.id); view.Plan.FilesSent != "r1" {
		t.Errorf("files sent %q", view.Plan.FilesSent)
	}

	// The instance has all its files, so another push sends nothing.
	r.send(func(m *nstancev1.ReportHealthRequest) {
		m.RuntimeHash, m.Files, m.Keys = "r1", states(first, second), keyState(pkixOf(t, key))
	})
	if err := c.push(); err != nil || w.Events(c.id, shardstate.EventFilesPushed) != 2 {
		t.Errorf("%v, %d events", err, w.Events(c.id, shardstate.EventFilesPushed))
	}
	// After a change of the configuration, the server sends only the files that are different.
	w.group.RuntimeHash, w.group.Vars = "r2", map[string]string{"role": "master"}
	w.Configure(w.group)
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	third := receive(t, files)
	if diff := cmp.Diff([]string{"node.env"}, third.names()); diff != "" || third.commit.GetRuntimeHash() != "r2" {
		t.Errorf("hash %q %s", third.commit.GetRuntimeHash(), diff)
	}
	if len(w.log(t)) != 1 {
		t.Error("another certificate was issued")
	}
}

// TestKeyRequestsWithFiles checks what an agent receives if it asks for key requests on the stream of files. It
// receives a request before the first batch, and after each batch that lacks a key. The header of ReportHealth tells
// the agent that the server sends requests on that stream.
func TestKeyRequestsWithFiles(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	c.keysWithFiles = true
	r, files := c.reports(), c.files()
	if header, err := r.Header(); err != nil || !slices.Equal(header.Get(agentapi.KeyRequestsHeader),
		[]string{"with-files"}) {
		t.Errorf("header %v (%v)", header, err)
	}
	awaitRequest := func() {
		t.Helper()
		message, err := files.Recv()
		if keys := message.GetKeyRequests().GetKeys(); err != nil || len(keys) != 1 || keys[0].GetName() != "node.pub" {
			t.Fatalf("%v (%v), want a request for node.pub", message, err)
		}
	}
	awaitRequest()
	r.send(nil)
	if err := c.push(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"node.env", "secret.key"}, receive(t, files).names()); diff != "" {
		t.Error(diff)
	}
	awaitRequest()
	if err := c.submit("node.pub", pkixOf(t, transporttest.NewKey(t))); err != nil {
		t.Fatal(err)
	}
	if b := receive(t, files); len(b.files) != 1 || b.commit.GetRuntimeHash() != "r1" {
		t.Errorf("%v %v, want the certificate", b.names(), b.commit)
	}
}

func TestRefusedKeys(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	_, err := c.SubmitPublicKeys(t.Context(), &nstancev1.SubmitPublicKeysRequest{InstanceId: c.id.String()})
	wants(t, "none", err, codes.InvalidArgument, "keys: 0 of them")
	wants(t, "not needed", c.submit("other.pub", pkixOf(t, transporttest.NewKey(t))), codes.InvalidArgument,
		"keys[0].name")
	wants(t, "no key", c.submit("node.pub", []byte("x")), codes.InvalidArgument, "keys[0].pkix")
	if keys, err := w.cache.Keys(t.Context(), c.id); err != nil || len(keys) != 0 {
		t.Errorf("keys %v (%v)", keys, err)
	}
}

// complete brings an instance to the state in which it has all its files.
func (c *client) complete() (r *reports, files filesStream, all batch, keys []*nstancev1.KeyState) {
	c.t.Helper()
	r, files = c.reports(), c.files()
	pkix := pkixOf(c.t, transporttest.NewKey(c.t))
	keys = keyState(pkix)
	if err := c.submit("node.pub", pkix); err != nil {
		c.t.Fatal(err)
	}
	all = receive(c.t, files)
	if len(all.files) != 3 || all.commit.GetRuntimeHash() != "r1" {
		c.t.Fatalf("%v %v", all.names(), all.commit)
	}
	r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", states(all), keys })
	return r, files, all, keys
}

func TestCertificatesAreRenewed(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files, all, keys := c.complete()
	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 1)
	w.Clock.Advance(19 * time.Hour)
	unchanged := func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Unchanged = "r1", true }
	r.send(unchanged)
	if n := w.Events(c.id, shardstate.EventFilesPushed); n != 1 {
		t.Errorf("%d batches", n)
	}
	w.Clock.Advance(2 * time.Hour) // two thirds of 30 h
	r.send(unchanged)
	b := receive(t, files)
	if diff := cmp.Diff([]string{"node.crt"}, b.names()); diff != "" || b.commit.GetRuntimeHash() != "r1" {
		t.Errorf("%v %s", b.commit, diff)
	}
	if bytes.Equal(b.files["node.crt"].GetContent(), all.files["node.crt"].GetContent()) || len(w.log(t)) != 2 {
		t.Error("not renewed")
	}

	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 2)
	// A new leader calculates from the agent's report when the certificate is due for renewal. It gets the submitted
	// key from the server's cache.
	leader := *w.leader.Load()
	w.leader.Store(&leader)
	c = c.again()
	r, files = c.reports(), c.files()
	r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", states(all, b), keys })
	w.Clock.Advance(21 * time.Hour)
	r.send(unchanged)
	if again := receive(t, files); len(again.files) != 1 || len(w.log(t)) != 3 {
		t.Errorf("%v", again.names())
	}
}

// TestFilesAreRechecked covers an agent whose report contains an outdated file. A leader with RecheckFiles sends the
// file once. A leader without RecheckFiles does not send it, because the configuration is the same.
func TestFilesAreRechecked(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	_, _, all, keys := c.complete()
	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 1)
	older := states(all)
	for _, f := range older {
		if f.GetName() == "node.env" {
			f.Sha256 = strings.Repeat("0", len(f.GetSha256()))
		}
	}
	pushed := 1
	for _, recheck := range []bool{false, true} {
		leader := *w.leader.Load()
		leader.RecheckFiles = recheck
		w.leader.Store(&leader)
		c = c.again()
		r, files := c.reports(), c.files()
		r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", older, keys })
		have := older
		if recheck {
			b := receive(t, files)
			if diff := cmp.Diff([]string{"node.env"}, b.names()); diff != "" {
				t.Error(diff)
			}
			pushed++
			w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, pushed)
			have = states(all, b)
		}
		for range 2 {
			w.Clock.Advance(time.Hour)
			r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", have, keys })
		}
		if n := w.Events(c.id, shardstate.EventFilesPushed); n != pushed {
			t.Errorf("recheck %t: %d batches, want %d", recheck, n, pushed)
		}
	}
}

func TestFailedFilesAreSentAgain(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files, all, keys := c.complete()
	pushed := 1
	awaited := func() { // the batch is complete, so the clock may advance
		w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, pushed)
		pushed++
	}
	awaited()
	broken := states(all)
	broken[1] = &nstancev1.FileState{Name: "node.env", Error: "disk full"}
	w.Clock.Advance(time.Minute)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Files, m.Keys = broken, keys })
	b := receive(t, files)
	if diff := cmp.Diff([]string{"node.env"}, b.names()); diff != "" || b.commit.GetRuntimeHash() != "r1" {
		t.Errorf("%v %s", b.commit, diff)
	}
	awaited()
	// If the agent again cannot store the file, the server waits before it sends the file once more. After the wait,
	// even a report without changes makes the server send the file.
	sent := func() int { return w.Events(c.id, shardstate.EventFilesPushed) }
	before := sent()
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Files, m.Keys = broken, keys })
	if sent() != before {
		t.Error("sent again immediately")
	}
	w.Clock.Advance(time.Minute)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Unchanged = true })
	b = receive(t, files)
	if diff := cmp.Diff([]string{"node.env"}, b.names()); diff != "" {
		t.Error(diff)
	}
	awaited()
	// If a file was changed or removed on the VM, the server sends the file again.
	altered := states(all)
	altered[2].Sha256 = strings.Repeat("0", 64)
	w.Clock.Advance(time.Hour)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.RuntimeHash, m.Files, m.Keys = "r1", altered, keys })
	b = receive(t, files)
	if diff := cmp.Diff([]string{"secret.key"}, b.names()); diff != "" {
		t.Error(diff)
	}
}

// A certificate is sent only after it is in the durable log.
func TestCertificateIsLoggedBeforeItIsSent(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, files := c.reports(), c.files()
	r.send(nil)
	w.Fault(func(req mem.Request) mem.Fault {
		if req.Op == mem.Put {
			return mem.Fault{Err: errors.New("disk on fire")}
		}
		return mem.Fault{}
	})
	if err := c.submit("node.pub", pkixOf(t, transporttest.NewKey(t))); err != nil {
		t.Fatal(err)
	}
	if err := c.push(); err != nil {
		t.Error(err)
	}
	logFails := func() bool {
		return slices.ContainsFunc(w.State.Standing("prod"), func(e shardstate.ErrorEvent) bool {
			return e.Instance == c.id && strings.Contains(e.Message, "log certificates")
		})
	}
	eventually(t, "the failure is raised", logFails)
	w.Fault(nil)
	if w.Events(c.id, shardstate.EventFilesPushed) != 0 {
		t.Error("something was sent")
	}
	w.Clock.Advance(time.Minute)
	r.send(func(m *nstancev1.ReportHealthRequest) { m.Unchanged = true })
	if b := receive(t, files); len(b.files) != 3 || len(w.log(t)) != 1 {
		t.Errorf("%v", b.names())
	}
}

// Pushes share the executor's slots with terminations. An agent that reads no files must not occupy a slot.
func TestPushDoesNotWaitForTheAgent(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	began := time.Now()
	for range 5 {
		if err := c.push(); err != nil {
			t.Errorf("push without a stream: %v, want the push to be enqueued", err)
		}
	}
	if view, _ := w.State.Instance(c.id); view.Plan.FilesSent != "r1" {
		t.Errorf("the planner would push again: files sent are of %q, want r1", view.Plan.FilesSent)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("five pushes took %s: Push waits for the agent", took)
	}
	// The server collects the files of all pushes in one batch. It sends the batch when the stream opens.
	if b := receive(t, c.files()); len(b.files) != 2 {
		t.Errorf("the batch has the files %v, want the two that need no key", b.names())
	}
	w.AwaitEvent(t, c.id, shardstate.EventFilesPushed, 1)
}

func TestAgentThatDoesNotRead(t *testing.T) {
	w := newTestLeader(t)
	w.service.SetSendTimeout(2 * time.Second)
	w.group.RuntimeHash, w.group.Files = "big", map[string]config.File{}
	for _, name := range []string{"a", "b", "c"} {
		w.group.Files[name] = config.File{Kind: "string", Content: strings.Repeat(name, 200<<10)}
	}
	w.Configure(w.group)
	stuck := w.agent(t)
	stuck.files() // the agent never reads, and its window is 64 KiB
	good := w.agent(t)
	goodFiles := good.files()
	if err := errors.Join(stuck.push(), good.push()); err != nil {
		t.Error(err)
	}
	if b := receive(t, goodFiles); len(b.files) != 3 {
		t.Errorf("an agent that reads received %v, want three files", b.names())
	}
	eventually(t, "the connection is closed", func() bool { return stuck.conn.GetState().String() != "READY" })
	if w.Events(stuck.id, shardstate.EventFilesPushed) != 0 {
		t.Error("an agent that does not read counts as one that has its files")
	}
}

// If the cache is lost, the leader still has the public keys in memory. A new leader requests them again.
func TestLostCache(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	w.cache.Close()
	c.complete()
	leader := *w.leader.Load()
	w.leader.Store(&leader)
	keys := c.again().keyRequests()
	if request, err := keys.Recv(); err != nil || request.GetKeys()[0].GetName() != "node.pub" {
		t.Errorf("%v %v", request, err)
	}
}
