package filegen

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// secrets is a read-only secretstore.Store that counts reads.
type secrets struct {
	secretstore.Store
	values map[string]string
	reads  atomic.Int32
}

func (s *secrets) Get(_ context.Context, name string) (secretstore.Secret, error) {
	s.reads.Add(1)
	value, ok := s.values[name]
	if !ok {
		return secretstore.Secret{}, secretstore.ErrNotFound
	}
	return secretstore.Secret{Name: name, Value: secretstore.NewValue([]byte(value))}, nil
}

// testGenerator is a Generator with its dependencies.
type testGenerator struct {
	*Generator
	now            time.Time
	secrets        *secrets
	objects        map[string]string
	reads          atomic.Int32
	ca, workloadCA authority.CA
	group          config.Group
	rec            record.Instance
}

func newTestGenerator(t testing.TB) *testGenerator {
	t.Helper()
	w := &testGenerator{now: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), secrets: &secrets{
		values: map[string]string{"db.password": "hunter2"}},
		objects: map[string]string{"motd-workers": "hello",
			"boot.sh": "#!/bin/sh\n# {{ .Instance.ID }} {{ .Nonce }}\n"}}
	var err error
	if w.ca, err = authority.CreateCA("example", rand.Reader, w.now); err != nil {
		t.Fatal(err)
	}
	if w.workloadCA, err = authority.CreateWorkloadCA("example", rand.Reader, w.now); err != nil {
		t.Fatal(err)
	}
	nonceKey, err := authority.CreateNonceKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.Generator = New(Options{CA: w.ca, WorkloadCAs: authority.WorkloadCAs{w.workloadCA},
		NonceKey: nonceKey, Secrets: w.secrets, CacheTTL: 5 * time.Minute,
		Rand: rand.Reader,
		Now:  func() time.Time { return w.now },
		ReadFile: func(_ context.Context, name string) ([]byte, error) {
			w.reads.Add(1)
			if text, ok := w.objects[name]; ok {
				return []byte(text), nil
			}
			return nil, objstore.ErrNotFound
		}})
	w.Configure(Shard{
		Cluster: render.Cluster{ID: "example", CACert: string(authority.EncodeCertificate(w.ca.Certificate())),
			WorkloadCACert: string(authority.EncodeCertificate(w.workloadCA.Certificate()))},
		Server:   render.Server{Shard: "a", RegistrationAddr: "10.0.0.1:8992", AgentAddr: "10.0.0.1:8994"},
		Provider: render.Provider{Kind: "mock", Region: "r", Zone: "z"},
		Image:    map[string]string{"debian": "ami-1", "other": "ami-2"},
		Certificates: map[string]config.Certificate{
			"server": {Kind: "server", CN: "kubelet", Organization: []string{"{{ .Instance.Tenant }}"},
				DNS: []string{"{{ .Instance.Hostname }}"},
				IP:  []string{"{{ .Instance.IP4 }}", "{{ .Instance.IP6 }}"}, TTL: 30},
			"client": {Kind: "client", CN: "{{ .Vars.role }}", TTL: 300},
		},
		NonceTTL: 5 * time.Minute,
	})
	w.group = config.Group{
		GroupKey: config.GroupKey{Tenant: "prod", Group: "workers"}, Template: "worker", Kind: "knd", Arch: "arm64",
		RuntimeHash: "r1", InfraHash: "i1",
		Vars: map[string]string{"role": "worker", "mode": "a b"},
		Args: map[string]any{"ImageId": "{{ .Image.debian }}", "Tags": []any{"{{ .Instance.Group }}", 1.0, true, nil},
			"Deep": map[string]any{"x": "y"}},
		Userdata: config.Userdata{Source: "inline", Encoding: "plain",
			Content: "#!/bin/sh\necho {{ .Instance.ID }} {{ .Vars.role }} {{ .Server.AgentAddr }}\ncat > nonce " +
				"<<E\n{{ .Nonce }}\nE\n"},
		Files: map[string]config.File{
			"kubelet.crt": {Kind: "certificate", Template: "server", Key: &config.FileKey{Source: "agent",
				Name: "kubelet.pub"}},
			"client.crt": {Kind: "certificate", Template: "client", Key: &config.FileKey{Source: "agent",
				Name: "client.pub", Algorithm: "ecdsa-p256"}},
			"db.key":   {Kind: "secret", Source: "db.password"},
			"motd.txt": {Kind: "storage", Source: "files/motd-{{ .Instance.Group }}"},
			"worker.env": {Kind: "env", Vars: map[string]string{"MODE": "{{ .Vars.mode }}",
				"ID": "{{ .Instance.ID }}"}},
			"worker.json": {Kind: "json", JSON: map[string]any{"host": "{{ .Instance.Hostname }}", "n": 1.0}},
			"ca.crt":      {Kind: "string", Content: "{{ .Cluster.CACert }}"},
			"work-ca.crt": {Kind: "string", Content: "{{ .Cluster.WorkloadCACert }}"},
		},
	}
	id, err := ident.NewID("knd", w.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.rec = record.Instance{ID: id, Tenant: "prod", Group: "workers", Kind: "knd", InstanceType: "t4g.medium",
		InfraHash: "i1"}
	return w
}

func pkix(t testing.TB, algorithm string) []byte {
	t.Helper()
	var public crypto.PublicKey
	var err error
	if algorithm == ECDSAP256 {
		var key *ecdsa.PrivateKey
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
			public = key.Public()
		}
	} else {
		public, _, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (g *testGenerator) input() Input {
	return Input{Group: g.group, Record: g.rec, Address: Address{IPv4: "10.1.2.3", Hostname: "node-1"}}
}

func (g *testGenerator) generate(t testing.TB, in Input) Result {
	t.Helper()
	result, err := g.Generate(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func names(files []File) []string {
	out := []string{}
	for _, f := range files {
		out = append(out, f.Name)
	}
	return out
}

// took returns a copy of `in`, changed as if the instance had stored the files of result.
func took(in Input, result Result) Input {
	have := map[string]Have{}
	for name, h := range in.Have {
		have[name] = h
	}
	for _, f := range result.Files {
		have[f.Name] = Have{SHA256: f.SHA256, NotBefore: f.NotBefore, NotAfter: f.NotAfter, Basis: f.Basis}
	}
	in.Have, in.RuntimeHash = have, result.Hash
	return in
}

func TestFilesOfEveryKind(t *testing.T) {
	w := newTestGenerator(t)
	in := w.input()
	first := w.generate(t, in)
	all := []string{"ca.crt", "client.crt", "db.key", "kubelet.crt", "motd.txt", "work-ca.crt",
		"worker.env", "worker.json"}
	if diff := cmp.Diff(all, first.Names); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"ca.crt", "db.key", "motd.txt", "work-ca.crt", "worker.env", "worker.json"},
		names(first.Files)); diff != "" {
		t.Error(diff)
	}
	want := []KeyRequest{{"client.pub", ECDSAP256}, {"kubelet.pub", Ed25519}}
	if diff := cmp.Diff(want, first.Missing); diff != "" {
		t.Error(diff)
	}
	if first.Hash != "" {
		t.Errorf("hash %q although keys are missing", first.Hash)
	}
	requests, err := w.Keys(w.group)
	if diff := cmp.Diff(want, requests); err != nil || diff != "" {
		t.Error(err, diff)
	}

	in.Keys = map[string][]byte{"kubelet.pub": pkix(t, Ed25519), "client.pub": pkix(t, ECDSAP256)}
	result := w.generate(t, in)
	if diff := cmp.Diff(all, names(result.Files)); diff != "" {
		t.Error(diff)
	}
	if result.Hash != "r1" || len(result.Missing) > 0 {
		t.Errorf("hash %q, missing %v", result.Hash, result.Missing)
	}
	content := map[string]string{}
	for _, f := range result.Files {
		content[f.Name] = string(f.Content)
		if sum := sha256.Sum256(f.Content); hex.EncodeToString(sum[:]) != f.SHA256 {
			t.Errorf("%s: wrong sum", f.Name)
		}
		if f.Kind != w.group.Files[f.Name].Kind {
			t.Errorf("%s: kind %s", f.Name, f.Kind)
		}
	}
	for name, text := range map[string]string{
		"ca.crt": string(authority.EncodeCertificate(w.ca.Certificate())) +
			string(authority.EncodeCertificate(w.workloadCA.Certificate())),
		"work-ca.crt": string(authority.EncodeCertificate(w.workloadCA.Certificate())),
		"db.key":      "hunter2", "motd.txt": "hello",
		"worker.env":  "ID=" + w.rec.ID.String() + "\nMODE=\"a b\"\n",
		"worker.json": "{\n  \"host\": \"node-1\",\n  \"n\": 1\n}\n",
	} {
		if content[name] != text {
			t.Errorf("%s: %q, want %q", name, content[name], text)
		}
	}

	block, _ := pem.Decode([]byte(content["kubelet.crt"]))
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := cert.CheckSignatureFrom(w.ca.Certificate()); err == nil {
		t.Error("the cluster's CA, which authenticates agents, operators and servers, signed a file")
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.workloadCA.Certificate())
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: w.now, DNSName: "node-1"}); err != nil {
		t.Error(err)
	}
	if cert.Subject.CommonName != "kubelet" || cert.Subject.Organization[0] != "prod" || len(cert.IPAddresses) != 1 ||
		cert.IPAddresses[0].String() != "10.1.2.3" {
		t.Errorf("certificate of %v for %v", cert.Subject, cert.IPAddresses)
	}
	if der, err := x509.MarshalPKIXPublicKey(cert.PublicKey); err != nil || !bytes.Equal(der, in.Keys["kubelet.pub"]) {
		t.Error("the certificate is for another key")
	}
	wantIssued := []record.Issued{{Name: "client.crt", Kind: record.CertClient, NotAfter: w.now.Add(300 * time.Hour)},
		{Name: "kubelet.crt", Kind: record.CertServer, Serial: authority.Serial(cert),
			NotAfter: w.now.Add(30 * time.Hour)}}
	wantIssued[0].Serial = result.Issued[0].Serial
	if diff := cmp.Diff(wantIssued, result.Issued); diff != "" {
		t.Error(diff)
	}
	if !result.RenewAt.Equal(Due(cert.NotBefore, cert.NotAfter)) {
		t.Errorf("renew at %v", result.RenewAt)
	}

	// Files that the instance already has are not sent again.
	in = took(in, result)
	if again := w.generate(t, in); len(again.Files) > 0 || again.Hash != "r1" || len(again.Issued) > 0 ||
		!again.RenewAt.Equal(result.RenewAt) {
		t.Errorf("sent again: %v, hash %q", names(again.Files), again.Hash)
	}
}

func TestFilesToSendAgain(t *testing.T) {
	w := newTestGenerator(t)
	base := w.input()
	base.Keys = map[string][]byte{"kubelet.pub": pkix(t, Ed25519), "client.pub": pkix(t, ECDSAP256)}
	sums := map[string]string{}
	for name, key := range base.Keys {
		sum := sha256.Sum256(key)
		sums[name] = hex.EncodeToString(sum[:])
	}
	base.KeySums = sums
	base = took(base, w.generate(t, base))
	issued := w.now
	for _, test := range []struct {
		name    string
		change  func(in *Input)
		want    []string
		missing []string
	}{
		{"nothing", func(*Input) {}, []string{}, nil},
		{"a file is missing", func(in *Input) { delete(in.Have, "db.key") }, []string{"db.key"}, nil},
		{"a file failed", func(in *Input) {
			in.Have["worker.env"] = Have{Error: "disk full"}
		}, []string{"worker.env"}, nil},
		{"a file was altered", func(in *Input) {
			in.Have["worker.env"] = Have{SHA256: "00"}
		}, []string{"worker.env"}, nil},
		{"a certificate failed", func(in *Input) {
			in.Have["kubelet.crt"] = Have{Error: "gone"}
		}, []string{"kubelet.crt"}, nil},
		{"a certificate is due", func(in *Input) { w.now = issued.Add(20 * time.Hour) }, []string{"kubelet.crt"}, nil},
		{"a certificate is not quite due", func(in *Input) {
			w.now = issued.Add(19*time.Hour + 54*time.Minute)
		}, []string{}, nil},
		{"another address", func(in *Input) { in.Address.IPv4 = "10.9.9.9" }, []string{"kubelet.crt"}, nil},
		{"another runtime configuration of other files", func(in *Input) { in.RuntimeHash = "r0" }, []string{}, nil},
		{"a new leader, same configuration", func(in *Input) { forget(in); in.Keys = nil }, []string{}, nil},
		{"a new leader, another configuration", func(in *Input) {
			forget(in)
			in.RuntimeHash = "r0"
		}, []string{"client.crt", "kubelet.crt"}, nil},
		{"a new leader, due, no key", func(in *Input) {
			forget(in)
			in.Keys = nil
			w.now = issued.Add(21 * time.Hour)
		}, []string{}, []string{"kubelet.pub"}},
		{"a new key", func(in *Input) {
			in.Keys["kubelet.pub"] = pkix(t, Ed25519)
			delete(in.KeySums, "kubelet.pub")
		}, []string{"kubelet.crt"}, nil},
		{"the agent has another key than it handed in", func(in *Input) {
			in.KeySums["kubelet.pub"] = "00"
		}, []string{}, []string{"kubelet.pub"}},
		{"the agent lost its key", func(in *Input) {
			delete(in.KeySums, "kubelet.pub")
			delete(in.Keys, "kubelet.pub")
		}, []string{}, []string{"kubelet.pub"}},
		{"a key of another algorithm", func(in *Input) {
			in.Keys["client.pub"] = pkix(t, Ed25519)
			in.KeySums = nil
		}, []string{}, []string{"client.pub"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.now = issued
			in := base
			in.Have, in.Keys, in.KeySums = clone(base.Have), clone(base.Keys), clone(base.KeySums)
			test.change(&in)
			result := w.generate(t, in)
			if diff := cmp.Diff(test.want, names(result.Files)); diff != "" {
				t.Error(diff)
			}
			var missing []string
			for _, request := range result.Missing {
				missing = append(missing, request.Name)
			}
			if diff := cmp.Diff(test.missing, missing); diff != "" {
				t.Error(diff)
			}
			if complete := len(missing) == 0; complete != (result.Hash == "r1") {
				t.Errorf("hash %q", result.Hash)
			}
			if len(result.Issued) != len(slices.DeleteFunc(names(result.Files), func(n string) bool {
				return w.group.Files[n].Kind != "certificate"
			})) {
				t.Errorf("issued %v", result.Issued)
			}
		})
	}
}

// TestCertificateOfALongerTTL checks that new certificates last at most 90 days. A certificate with a longer lifetime,
// which a former version issued, stays until it is due for renewal.
func TestCertificateOfALongerTTL(t *testing.T) {
	w := newTestGenerator(t)
	shard := *w.shard.Load()
	template := shard.Certificates["server"]
	template.TTL = 365 * 24
	shard.Certificates = map[string]config.Certificate{"server": template}
	w.Configure(shard)
	w.group.Files = map[string]config.File{"kubelet.crt": w.group.Files["kubelet.crt"]}
	in := w.input()
	in.Keys = map[string][]byte{"kubelet.pub": pkix(t, Ed25519)}
	result := w.generate(t, in)
	if got := result.Files[0].NotAfter; !got.Equal(w.now.Add(90 * 24 * time.Hour)) {
		t.Errorf("valid until %s", got)
	}
	in = took(in, result)
	old := in.Have["kubelet.crt"]
	old.NotAfter = w.now.Add(365 * 24 * time.Hour)
	spec, err := w.files["r1"].files[0].cert.spec(data(&shard, &in.Group, &in.Record, in.Address))
	if err != nil {
		t.Fatal(err)
	}
	old.Basis = basis(&spec, in.Keys["kubelet.pub"])
	in.Have["kubelet.crt"] = old
	if again := w.generate(t, in); len(again.Files) > 0 || !again.RenewAt.Equal(Due(old.NotBefore, old.NotAfter)) {
		t.Errorf("sent again: %v, next renewal %s", names(again.Files), again.RenewAt)
	}
}

// TestAgentsTrustTheClustersCAOnly checks that the boot script contains no workload CA. The agent would trust it like
// every CA in the boot script.
func TestAgentsTrustTheClustersCAOnly(t *testing.T) {
	w := newTestGenerator(t)
	w.group.Userdata.Content = "{{ .Nonce }}\n{{ .Cluster.CACert }}"
	machine, err := w.Render(t.Context(), w.group, w.rec)
	if err != nil {
		t.Fatal(err)
	}
	_, trusted, _ := strings.Cut(string(machine.Userdata), "\n")
	if trusted != string(authority.EncodeCertificate(w.ca.Certificate())) {
		t.Errorf("the boot script has the CAs\n%s", trusted)
	}
}

// TestWorkloadCAStarts adds the first workload CA to a cluster that already has certificates. The CA is announced
// before it signs certificates. Certificates that the cluster's CA signed stay until they are due for renewal.
func TestWorkloadCAStarts(t *testing.T) {
	w := newTestGenerator(t)
	notice := 240 * time.Hour
	next, err := authority.CreateWorkloadCA("example", rand.Reader, w.now.Add(notice))
	if err != nil {
		t.Fatal(err)
	}
	options := w.options
	options.WorkloadCAs = authority.WorkloadCAs{next}
	shard := *w.shard.Load()
	shard.Cluster.WorkloadCACert = string(authority.EncodeCertificate(next.Certificate()))
	w.Generator = New(options)
	w.Configure(shard)
	w.group.Files = map[string]config.File{"client.crt": w.group.Files["client.crt"], "ca.crt": w.group.Files["ca.crt"]}
	in := w.input()
	in.Keys = map[string][]byte{"client.pub": pkix(t, ECDSAP256)}
	signedBy := func(result Result, ca authority.CA) {
		t.Helper()
		for _, file := range result.Files {
			if file.Name != "client.crt" {
				continue
			}
			block, _ := pem.Decode(file.Content)
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if err := cert.CheckSignatureFrom(ca.Certificate()); err != nil {
				t.Errorf("at %s: not signed by %s: %v", w.now, ca, err)
			}
			return
		}
		t.Errorf("at %s: no certificate", w.now)
	}
	w.now = w.now.Add(notice - time.Hour)
	first := w.generate(t, in)
	signedBy(first, w.ca)
	if bundle, err := authority.ParseBundle(first.Files[0].Content); err != nil || len(bundle) != 2 {
		t.Errorf("the bundle before the start: %v (%v)", bundle, err)
	}
	fresh := in
	in = took(in, first)
	w.now = w.now.Add(2 * time.Hour)
	if again := w.generate(t, in); len(again.Files) > 0 {
		t.Errorf("sent again when the workload CA started: %v", names(again.Files))
	}
	signedBy(w.generate(t, fresh), next) // of a new instance
	w.now = first.RenewAt
	signedBy(w.generate(t, in), next)
}

// TestWorkloadCARotation replaces the workload CA. Every day, an external client can verify the instance's certificate
// with the instance's CA file, and also with the CA file of the day before.
func TestWorkloadCARotation(t *testing.T) {
	w := newTestGenerator(t)
	const day = 24 * time.Hour
	notice := 30 * day
	next, err := authority.CreateWorkloadCA("example", rand.Reader, w.now.Add(notice))
	if err != nil {
		t.Fatal(err)
	}
	w.group.Files = map[string]config.File{"client.crt": w.group.Files["client.crt"], "ca.crt": w.group.Files["ca.crt"]}
	in := w.input()
	in.Keys = map[string][]byte{"client.pub": pkix(t, ECDSAP256)}
	start, files := w.now, map[string][]byte{}
	use := func(cas authority.WorkloadCAs) {
		options, shard := w.options, *w.shard.Load()
		options.WorkloadCAs = cas
		shard.Cluster.WorkloadCACert = string(cas.EncodeCertificates())
		w.Generator = New(options)
		w.Configure(shard)
	}
	trusted := func() *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(files["ca.crt"])
		return pool
	}
	old := authority.WorkloadCAs{w.workloadCA}
	both := authority.WorkloadCAs{w.workloadCA, next}
	issued := map[bool]int{}
	for n := 0; n <= 150; n++ {
		w.now = start.Add(time.Duration(n) * day)
		switch n {
		case 0:
			use(old)
		case 2:
			use(both)
		case 120: // 90 days after the new CA started
			use(authority.WorkloadCAs{next})
		}
		earlier := trusted()
		result := w.generate(t, in)
		in = took(in, result)
		for _, file := range result.Files {
			files[file.Name] = file.Content
		}
		block, _ := pem.Decode(files["client.crt"])
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		issued[cert.CheckSignatureFrom(next.Certificate()) == nil]++
		for name, roots := range map[string]*x509.CertPool{"its file": trusted(),
			"the file of the day before": earlier} {
			if n == 0 && name != "its file" {
				continue
			}
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: w.now,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Errorf("day %d: a client with %s: %v", n, name, err)
			}
		}
	}
	if issued[false] < 30 || issued[true] < 30 {
		t.Errorf("days with a certificate of the old CA: %d, of the new one: %d", issued[false], issued[true])
	}
}

func forget(in *Input) {
	for name, have := range in.Have {
		have.Basis = ""
		in.Have[name] = have
	}
}

func clone[V any](m map[string]V) map[string]V {
	out := map[string]V{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

func TestOneBadFileLeavesTheOthers(t *testing.T) {
	w := newTestGenerator(t)
	for name, file := range map[string]config.File{
		"missing secret": {Kind: "secret", Source: "nothing"},
		"the CA's key":   {Kind: "secret", Source: secretstore.CAKey},
		"nonce key":      {Kind: "secret", Source: secretstore.NonceKey},
		"missing object": {Kind: "storage", Source: "files/nothing"},
		"other object":   {Kind: "storage", Source: "shard/a/leader.json"},
		"escape":         {Kind: "storage", Source: "files/../shard/a/leader.json"},
		"too large":      {Kind: "storage", Source: "files/large"},
		"missing var":    {Kind: "env", Vars: map[string]string{"A": "{{ .Vars.nothing }}"}},
	} {
		w.objects["large"] = strings.Repeat("x", MaxFile+1)
		w.group.RuntimeHash = name
		w.group.Files = map[string]config.File{"bad": file, "good": {Kind: "string", Content: "good"}}
		result, err := w.Generate(context.Background(), w.input())
		if err == nil || !strings.Contains(err.Error(), "file bad") {
			t.Errorf("%s: error %v", name, err)
		}
		if diff := cmp.Diff([]string{"good"}, names(result.Files)); diff != "" || result.Hash != "" {
			t.Errorf("%s: hash %q %s", name, result.Hash, diff)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error quotes a secret", name)
		}
	}
	if w.secrets.reads.Load() != 1 {
		t.Errorf("%d secrets were asked for, want the missing one alone", w.secrets.reads.Load())
	}
}

func TestReadsAreSharedAndRemembered(t *testing.T) {
	w := newTestGenerator(t)
	in := w.input()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := w.Generate(context.Background(), in); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s, o := w.secrets.reads.Load(), w.reads.Load(); s != 1 || o != 1 {
		t.Errorf("%d reads of a secret, %d of an object, want one each", s, o)
	}
	w.secrets.values["db.password"] = "changed"
	w.now = w.now.Add(4 * time.Minute)
	if got := secretOf(w.generate(t, in)); got != "hunter2" {
		t.Errorf("within the TTL: %q", got)
	}
	w.now = w.now.Add(2 * time.Minute)
	if got := secretOf(w.generate(t, in)); got != "changed" {
		t.Errorf("after the TTL: %q", got)
	}
	delete(w.secrets.values, "db.password")
	w.now = w.now.Add(10 * time.Minute)
	if _, err := w.Generate(context.Background(), in); !errors.Is(err, secretstore.ErrNotFound) {
		t.Errorf("a deleted secret: %v", err)
	}
}

func secretOf(result Result) string {
	for _, f := range result.Files {
		if f.Name == "db.key" {
			return string(f.Content)
		}
	}
	return ""
}

// TestSharedReadOutlivesItsFirstCaller ends the context of a caller that reads while other callers wait for the result.
// The other callers must not fail.
func TestSharedReadOutlivesItsFirstCaller(t *testing.T) {
	m := memory{ttl: time.Minute, now: time.Now, entries: map[string]*entry{}}
	ctx, cancel := context.WithCancel(context.Background())
	reading := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := m.get(ctx, "k", age{}, func(ctx context.Context) ([]byte, error) {
			close(reading)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	<-reading
	wg.Go(func() {
		got, err := m.get(context.Background(), "k", age{}, func(context.Context) ([]byte, error) {
			return []byte("v"), nil
		})
		if err != nil || string(got) != "v" {
			t.Error(string(got), err)
		}
	})
	cancel()
	wg.Wait()
}

func TestMachine(t *testing.T) {
	w := newTestGenerator(t)
	ctx := context.Background()
	m, err := w.Render(ctx, w.group, w.rec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"ImageId": "ami-1", "Tags": []any{"workers", 1.0, true, nil},
		"Deep": map[string]any{"x": "y"}}, m.Args); diff != "" {
		t.Error(diff)
	}
	if m.Image != "ami-1" || m.Hostname != w.rec.ID.String() {
		t.Errorf("image %q, host name %q", m.Image, m.Hostname)
	}
	for want, images := range map[string]map[string]string{"ami-1": {"debian": "ami-1", "other": "ami-2"},
		"": {"other": "ami-2"}} {
		if id, err := w.Image(w.group, images); id != want || err != nil {
			t.Errorf("the image of the group is %q of %v, want %q (%v)", id, images, want, err)
		}
	}
	text := string(m.Userdata)
	if !strings.HasPrefix(text, "#!/bin/sh\necho "+w.rec.ID.String()+" worker 10.0.0.1:8994\n") {
		t.Errorf("userdata %q", text)
	}
	nonce := strings.Split(text, "\n")[3]
	claims, err := authority.ParseNonce(w.options.NonceKey.Accepted(), "example", nonce, w.now, false)
	if err != nil {
		t.Fatal(err)
	}
	want := authority.NonceClaims{Role: authority.RoleAgent, Cluster: "example", Tenant: "prod", ID: w.rec.ID,
		Shard: "a", Group: "workers", ConfigHash: "i1",
		JTI: claims.JTI, IssuedAt: w.now, NotBefore: w.now.Add(-authority.Skew), ExpiresAt: w.now.Add(5 * time.Minute)}
	if diff := cmp.Diff(want, claims, cmp.AllowUnexported(ident.ID{}, ident.Batch{})); diff != "" {
		t.Error(diff)
	}

	// The same nonce gives the same arguments and userdata, even if the caller changed an earlier result.
	shard := w.shard.Load()
	one, err := w.render(ctx, shard, &w.group, &w.rec, "n")
	if err != nil {
		t.Fatal(err)
	}
	one.Args["Deep"].(map[string]any)["x"] = "changed"
	two, err := w.render(ctx, shard, &w.group, &w.rec, "n")
	if err != nil || two.Args["Deep"].(map[string]any)["x"] != "y" || !bytes.Equal(one.Userdata, two.Userdata) {
		t.Errorf("%v %v", two, err)
	}

	// The variables of an on-demand instance appear in its userdata. They must not change the variables of its group.
	rec := w.rec
	rec.OnDemand, rec.Vars = true, map[string]string{"role": "special"}
	m, err = w.Render(ctx, w.group, rec)
	if err != nil || !strings.Contains(string(m.Userdata), " special ") || w.group.Vars["role"] != "worker" {
		t.Errorf("%s %v", m.Userdata, err)
	}
}

func TestUserdataEncodings(t *testing.T) {
	w := newTestGenerator(t)
	w.group.Userdata = config.Userdata{Source: "inline", Content: "{{ .Instance.ID }}" + strings.Repeat("x", 1000)}
	for _, encoding := range []string{"", "plain", "base64", "gzip+base64"} {
		w.group.Userdata.Encoding, w.group.InfraHash = encoding, encoding+"!"
		m, err := w.render(context.Background(), w.shard.Load(), &w.group, &w.rec, "n")
		if err != nil {
			t.Fatal(err)
		}
		again, err := w.render(context.Background(), w.shard.Load(), &w.group, &w.rec, "n")
		if err != nil || !bytes.Equal(m.Userdata, again.Userdata) {
			t.Errorf("%s: not the same bytes again (%v)", encoding, err)
		}
		text := m.Userdata
		if strings.Contains(encoding, "base64") {
			if text, err = base64.StdEncoding.DecodeString(string(text)); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(encoding, "gzip") {
			reader, err := gzip.NewReader(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if text, err = io.ReadAll(reader); err != nil {
				t.Fatal(err)
			}
		}
		if string(text) != w.rec.ID.String()+strings.Repeat("x", 1000) {
			t.Errorf("%s: %q", encoding, text)
		}
	}
	w.group.Userdata.Encoding, w.group.InfraHash = "rot13", "i9"
	if _, err := w.Render(context.Background(), w.group, w.rec); err == nil {
		t.Error("an unknown encoding was taken")
	}
}

func TestUserdataFromTheBucket(t *testing.T) {
	w := newTestGenerator(t)
	w.group.Userdata = config.Userdata{Source: "storage", Content: "files/boot.sh"}
	groups := map[config.GroupKey]config.Group{w.group.GroupKey: w.group}
	if err := w.Warm(context.Background(), groups); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.now = w.now.Add(10 * time.Minute) // past the TTL: a create still does not read
		m, err := w.render(context.Background(), w.shard.Load(), &w.group, &w.rec, "NONCE")
		if err != nil || string(m.Userdata) != "#!/bin/sh\n# "+w.rec.ID.String()+" NONCE\n" {
			t.Errorf("%q %v", m.Userdata, err)
		}
	}
	if w.reads.Load() != 1 {
		t.Errorf("%d reads, want one", w.reads.Load())
	}
	w.objects["boot.sh"] = "{{ .Nope }}"
	if err := w.Reload(context.Background(), groups); err == nil {
		t.Error("a broken script in the bucket is not reported")
	}
	if _, err := w.Render(context.Background(), w.group, w.rec); err == nil || !strings.Contains(err.Error(), "Nope") {
		t.Errorf("a broken script: %v", err)
	}
	w.objects["boot.sh"] = "v2"
	if err := w.Reload(context.Background(), groups); err != nil {
		t.Fatal(err)
	}
	if m, err := w.Render(context.Background(), w.group, w.rec); err != nil || string(m.Userdata) != "v2" {
		t.Errorf("%q %v", m.Userdata, err)
	}
}

func TestUnconfigured(t *testing.T) {
	g := New(Options{Now: time.Now})
	_, err1 := g.Render(context.Background(), config.Group{}, record.Instance{})
	_, err2 := g.Generate(context.Background(), Input{})
	_, err3 := g.Keys(config.Group{})
	if err1 == nil || err2 == nil || err3 == nil || g.Warm(context.Background(), nil) == nil {
		t.Error("something was made of no configuration")
	}
}

func BenchmarkMachine(b *testing.B) {
	w := newTestGenerator(b)
	w.group.Userdata.Content += strings.Repeat("# a line of the boot script\n", 200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Render(context.Background(), w.group, w.rec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGenerate(b *testing.B) {
	w := newTestGenerator(b)
	in := w.input()
	in.Keys = map[string][]byte{"kubelet.pub": pkix(b, Ed25519), "client.pub": pkix(b, ECDSAP256)}
	result, err := w.Generate(context.Background(), in)
	if err != nil {
		b.Fatal(err)
	}
	for name, in := range map[string]Input{"everything": in, "nothing": took(in, result)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Generate(context.Background(), in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestDue(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if got := Due(at, at.Add(9*time.Hour)); !got.Equal(at.Add(6 * time.Hour)) {
		t.Error(got)
	}
	if got := fmt.Sprint(Due(time.Time{}, time.Time{})); got != fmt.Sprint(time.Time{}) {
		t.Error(got)
	}
}
