package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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
)

// secretsOf contains secrets. Each key describes the place where a test plants the secret.
type secretsOf map[string]string

// add makes a secret of letters and digits, and records that the caller plants it at the place `where`.
func (s secretsOf) add(where string) string {
	digest := sha256.Sum256([]byte(where))
	s[where] = "Pl4nt" + hex.EncodeToString(digest[:8])
	return s[where]
}

// addLetters is like add, but makes a secret of letters only.
func (s secretsOf) addLetters(where string) string {
	digest := sha256.Sum256([]byte(where))
	s[where] = strings.Map(func(r rune) rune { return 'g' + r%16 }, hex.EncodeToString(digest[:8]))
	return s[where]
}

// find returns the places of all secrets that a text contains: verbatim, escaped, in hexadecimal, or in base64 at any
// offset. It also looks for each long line of a secret.
func (s secretsOf) find(text string) (found []string) {
	lower := strings.ToLower(text)
	for where, secret := range s {
		for line := range strings.SplitSeq(secret, "\n") {
			if len(line) < 12 || strings.HasPrefix(line, "-----") {
				continue
			}
			forms := []string{line, url.QueryEscape(line), strings.Trim(fmt.Sprintf("%q", line), `"`)}
			for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				for offset := range 3 {
					encoded := encoding.EncodeToString([]byte(strings.Repeat("x", offset) + line))
					// A few characters at both ends also depend on the bytes before and after the line. So leave them
					// out.
					forms = append(forms, encoded[2*offset:len(encoded)-2])
				}
			}
			if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) }) ||
				strings.Contains(lower, hex.EncodeToString([]byte(line))) {
				found = append(found, where)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// TestFindSecrets checks the search itself.
func TestFindSecrets(t *testing.T) {
	s := secretsOf{}
	secret := s.add("x")
	for _, text := range []string{secret, hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString(
		[]byte("ab" + secret))), base64.StdEncoding.EncodeToString([]byte("before" + secret + "after")),
		base64.URLEncoding.EncodeToString([]byte("befor" + secret)), base64.StdEncoding.EncodeToString(
			[]byte("befo" + secret + "x"))} {
		if found := s.find("text " + text + " text"); len(found) != 1 {
			t.Errorf("it is not found in %s", text)
		}
	}
	if found := s.find("text"); found != nil {
		t.Error(found)
	}
}

// plantConfig returns a configuration with a secret in every field that may hold one.
func plantConfig(t *testing.T, s secretsOf, document, health string) []byte {
	t.Helper()
	text, err := os.ReadFile(exampleConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	shard, problems := config.ParseStored("config", text)
	if shard == nil {
		t.Fatal(problems)
	}
	add := func(where string) string { return s.add(document + " " + where) }
	shard.Server.Advertise.Health = health
	shard.Server.Provider.Options["command"] = "run --token " + add("provider option")
	shard.Cluster.Storage = &config.Storage{Provider: "s3", Bucket: "dev",
		Endpoint: "https://alice:" + add("endpoint") + "@store.example"}
	shard.Cluster.Secrets.EncryptionKey.Source = add("key source")
	shard.Defaults.Vars["DB_PASSWORD"] = add("default variable")
	shard.Defaults.Args = map[string]any{"env": map[string]any{"TOKEN": add("default argument")}}
	shard.Defaults.Userdata.Content += "export API_KEY=" + add("boot script") + "\n# " +
		s.addLetters(document+" boot script, letters") + "\n"
	template := shard.Templates["worker"]
	template.Vars["secret"] = add("variable of a template")
	template.Args = map[string]any{"UserData": add("user data"), "env": map[string]any{"X": add("argument")}}
	template.Userdata = &config.Userdata{Content: "#!/bin/sh\ncurl -u admin:" + add("boot script of a template")}
	template.Files["plain.json"] = config.File{Kind: "string", Content: add("content of a file")}
	template.Files["app.json"] = config.File{Kind: "json", JSON: map[string]any{"nested": []any{add("JSON file")}}}
	template.Files["app.env"] = config.File{Kind: "env", Vars: map[string]string{"PASSWORD": add("environment file")}}
	template.HealthChecks = map[string]config.HealthCheck{
		"command": {Exec: []string{"/bin/check", "--password", add("health check")}},
		"request": {HTTP: &config.HealthRequest{Port: 80, Path: "/health?token=" + add("path of a health check")}}}
	template.Drain = &config.DrainHook{Exec: []string{"/bin/drain", "--token", add("drain hook")}}
	shard.Templates["worker"] = template
	group := shard.Groups["default"]["workers"]
	group.Vars = map[string]string{"K": add("variable of a group")}
	group.Args = map[string]any{"env": map[string]any{"Y": add("argument of a group")}}
	group.Rollout = &config.Rollout{Revision: add("revision")}
	shard.Groups["default"]["workers"] = group
	body := string(config.Encode(shard))
	if document == "in force" { // the other one is refused
		if _, problems := config.ParseApplied("config", []byte(body)); problems.Err() != nil {
			t.Fatal(problems)
		}
	} else {
		body = strings.Replace(body, "{", `{"unknown": {"password": "`+add("unknown field")+`"},`, 1)
	}
	return []byte("// " + add("comment") + "\n" + body)
}

// TestSupportLeaksNothing plants a secret in every place where a cluster, its leader and this machine can have one. It
// also plants secrets in texts such as error messages. It checks that no bundle contains a secret: with a leader,
// without a leader, and without the bucket.
func TestSupportLeaksNothing(t *testing.T) {
	b := newBucket(t, "s3")
	rec := b.populate(t)
	s := secretsOf{}
	s.plantBucket(t, b, rec)
	metrics := s.serveMetrics(t)
	b.put(t, keys.Config("dev-1"), plantConfig(t, s, "newest", metrics))
	if err := b.state(t, encryptionKey).WriteApplied(t.Context(), plantConfig(t, s, "in force", metrics), "other",
		2); err != nil {
		t.Fatal(err)
	}
	leader := fixture("dev-1")
	s.plantLeader(leader)
	c := fleettest.NewCluster(t, "example")
	addr, _ := c.Serve(t, "dev-1", leader)
	identity := c.Identity(t, "default", fleettest.Now, 30*24*time.Hour)
	key, err := os.ReadFile(filepath.Join(identity, "identity.key"))
	if err != nil {
		t.Fatal(err)
	}
	s["key of the identity"] = string(key)
	endpoint, err := url.Parse(os.Getenv("AWS_ENDPOINT_URL"))
	if err != nil {
		t.Fatal(err)
	}
	endpoint.User = url.UserPassword(s.add("user of the endpoint"), s.add("password of the endpoint"))
	t.Setenv("AWS_ENDPOINT_URL", endpoint.String())
	t.Setenv("AWS_SECRET_ACCESS_KEY", s.add("secret access key"))
	console := "cloud-init: export PASSWORD=" + s.add("console")

	for name, test := range map[string]struct {
		servers, endpoint string
		files             []string
		unread            []string
	}{
		"with a leader": {"dev-1=" + addr, endpoint.String(), []string{"objects.json", "doctor.json", "lock.json",
			"server-report.json", "config-newest.json", "config-in-force.json", "dynamic-groups.json", "status.json",
			"groups.json", "explanations.json", "events.json", "metrics.txt"}, nil},
		"without a leader": {"dev-1=" + closedPort(t), endpoint.String(), []string{"objects.json", "doctor.json",
			"lock.json", "config-newest.json", "config-in-force.json", "events.json"},
			[]string{"leader of shard dev-1: shard dev-1: 127.0.0.1:"}},
		"without a bucket": {"dev-1=" + addr, "http://alice:" + s["password of the endpoint"] + "@" + closedPort(t),
			[]string{"doctor.json", "status.json", "groups.json", "events.json"}, []string{"list of the objects:",
				"lock of shard dev-1:", "connection refused"}},
		"with nothing": {"", "http://" + closedPort(t), []string{"README.txt"}, []string{"leaders: no shard's address",
			"shards: no configuration"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ENDPOINT_URL", test.endpoint)
			t.Setenv("AWS_MAX_ATTEMPTS", "1")
			path := filepath.Join(t.TempDir(), "bundle.tar.gz")
			var out bytes.Buffer
			clouds := []infra.Cloud{{Config: cloud.Block{Name: "tmux"},
				Consoles: func(context.Context, *config.Shard) ([]infra.Console, error) {
					return []infra.Console{{Machine: "i-1", Output: console}}, nil
				}}}
			code := Run(t.Context(), b.args("support", "--output", path), "1.2.3", Environment{Stdout: &out,
				Stderr: &out, Stdin: strings.NewReader(""), Now: fleettest.Clock, Rand: fleettest.Rand(1),
				Clouds: clouds, Getenv: func(name string) string {
					return map[string]string{envServers: test.servers, envIdentity: identity}[name]
				}})
			if code != exitOK {
				t.Fatal(code, out.String())
			}
			entries := readTar(t, path)
			text := ""
			for _, e := range entries {
				text += e.name + "\n" + string(e.body) + "\n"
			}
			if found := s.find(text + out.String()); found != nil {
				t.Errorf("leaked: %q", found)
			}
			for _, file := range test.files {
				if !slices.ContainsFunc(entries, func(e tarEntry) bool { return strings.HasSuffix(e.name, "/"+file) }) {
					t.Errorf("there is no %s", file)
				}
			}
			readme := string(entries[0].body)
			for _, part := range test.unread {
				if !strings.Contains(readme, part) || !strings.Contains(out.String(), "Not read:") {
					t.Errorf("%q is not in\n%s", part, readme)
				}
			}
			if test.unread == nil && !strings.Contains(readme, "Not read:\n  nothing\n") {
				t.Error(readme)
			}
			checkUseful(t, name, entries)
		})
	}
}

// plantBucket adds objects with secrets to a bucket.
func (s secretsOf) plantBucket(t *testing.T, b *bucket, rec record.Instance) {
	t.Helper()
	b.stdin = s.add("secret of a user")
	b.must(t, b.args("cluster", "secret", "set", "db.password")...)
	s["encryption key"] = encryptionKey
	nonce := b.must(t, b.args("cluster", "nonce")...)
	s["nonce"] = nonce
	for _, name := range []string{"ca.key", "registration-nonce.key"} {
		s[name] = b.must(t, b.args("cluster", "secret", "get", name)...)
		if block, _ := pem.Decode([]byte(s[name])); block == nil {
			t.Fatalf("%s is not in PEM", name)
		}
		s["sealed "+name] = string(mustGet(t, b.store, keys.ClusterSecret(name)))
	}
	b.put(t, keys.File("settings.json"), []byte(s.add("object for files")))
	b.put(t, "backup/"+s.add("foreign key"), []byte(s.add("foreign object")))
	rec.Vars = map[string]string{"TOKEN": s.add("variable of an instance")}
	rec.Revision++
	body, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.Instance("dev-1", "default", rec.ID.Storage()), body)
	b.put(t, keys.Groups("dev-1"), fmt.Appendf(nil, `{"$version": 1, "$term": 1, "$revision": 2, "default": {"batch":
		{"template": "worker", "vars": {"X": %q}, "args": {"env": {"Z": %q}}}}}`, s.add("variable of a dynamic group"),
		s.add("argument of a dynamic group")))
	p := &patient{bucket: b}
	p.putReport(t, "open "+s.add("problem of a server")+": exit status 1: "+s.addLetters("problem, letters"))
	events, err := record.EncodeEvents([]record.Event{{Term: 1, Sequence: 1, At: time.Now(), Group: "workers",
		Kind: record.EventAlertRaised, Message: "the nonce " + nonce + " is refused; " + s.add("event in the bucket")}})
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, keys.Journal("dev-1", time.Now(), 1, 1), events)
}

// serveMetrics serves metrics with a secret in a comment, in a label and as a value. It returns the address.
func (s secretsOf) serveMetrics(t *testing.T) string {
	t.Helper()
	text := fmt.Sprintf("# HELP nstance_x %s\nnstance_x{error=\"password %s!\"} 1\nnstance_y %s\ngo_goroutines 12\n",
		s.add("help of a metric"), s.add("label of a metric"), s.add("value of a metric"))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// plantLeader puts secrets into all texts that a leader returns: new secrets, and all secrets planted before.
func (s secretsOf) plantLeader(leader *fleettest.Shard) {
	quoted := ""
	for _, where := range slices.Sorted(maps.Keys(s)) {
		quoted += strings.ToValidUTF8(s[where], "?") + " (" +
			base64.StdEncoding.EncodeToString([]byte(s[where])) + "), "
	}
	tell := func(where string) string {
		return "no capacity: " + s.add(where) + " and " + s.addLetters(where+", letters") + "; password: " +
			s.addLetters(where+", password") + "\n" + quoted
	}
	leader.Status.Errors = []*nstancev1.ErrorEvent{{Kind: "provider", Group: "workers", Message: tell("alert")}}
	leader.Status.RefusedEtag = s.add("token of the refused configuration")
	leader.Status.Problems = []*nstancev1.ConfigProblem{{Path: "templates." + s.add("path of a problem"), Line: 3,
		Message: tell("problem of the configuration")}}
	group := leader.Groups[0]
	group.BlockedReason, group.RolloutWaits = tell("reason of a block"), tell("reason of a rollout")
	group.Wait = &nstancev1.Wait{Text: tell("sentence"), Parts: []*nstancev1.WaitPart{{Text: tell("part")}}}
	group.MergedJson = fmt.Sprintf(`{"instance_type": "t4g.medium", "args": {"UserData": %q, "more": {"deep": [%q]}},
		"vars": {"a": %q}}`,
		s.add("user data, by the leader"), s.add("argument, by the leader"), s.add("merged variable, by the leader"))
	group.SpecJson = fmt.Sprintf(`{"vars": {"a": %q}}`, s.add("specification, by the leader"))
	explanation := leader.Explanations["workers"]
	explanation.BlockedReason = tell("reason in an explanation")
	explanation.Wait = &nstancev1.Wait{Text: tell("sentence in an explanation")}
	explanation.Instances[0].Wait = tell("sentence about an instance")
	explanation.Actions[0].Reason = tell("reason of an action")
	explanation.Errors[0].Message = tell("alert in an explanation")
	leader.History[0].Message, leader.History[0].Actor = tell("event"), s.add("actor")
}

// checkUseful checks that a bundle still contains what a person needs.
func checkUseful(t *testing.T, name string, entries []tarEntry) {
	t.Helper()
	parts := map[string][]string{
		"status.json": {`"leader_id": "dev-1-server"`, `"refused_etag": "[redacted]"`,
			"no capacity: [redacted]"},
		"groups.json":          {`"group": "workers"`, `"instance_type": "t4g.medium"`, `"UserData": "[redacted]"`},
		"explanations.json":    {`"rule_name": "drifted"`, "no capacity: [redacted]"},
		"config-in-force.json": {`"DB_PASSWORD": "[redacted]"`, `"endpoint": "https://store.example"`, `"size": 2`},
		"lock.json":            {`"leader_id": "a"`, `"term": 1`},
		"objects.json":         {`"key": "cluster/secret/ca.key"`, `"foreign_key": "backup/`},
		"doctor.json":          {`"check": "encryption key"`, `"shard": "dev-1"`},
		"metrics.txt":          {"go_goroutines 12\n"},
	}
	if strings.HasPrefix(name, "without a bucket") {
		parts["doctor.json"] = []string{"connection refused"}
	}
	for _, e := range entries {
		file := e.name[strings.LastIndex(e.name, "/")+1:]
		for _, part := range parts[file] {
			if !strings.Contains(string(e.body), part) && part != `"foreign_key": "backup/` {
				t.Errorf("%s: there is no %q in %s:\n%s", name, part, file, e.body)
			}
		}
		if strings.HasSuffix(file, ".json") && !json.Valid(e.body) {
			t.Errorf("%s is no JSON: %s", file, e.body)
		}
	}
}

// TestSupportCommand checks the default name of the bundle's file, that no file is replaced, and that wrong command
// lines are refused.
func TestSupportCommand(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	t.Chdir(t.TempDir())
	out := b.must(t, b.args("support")...)
	const name = "nstance-support-example-dev-1-20260728T100000Z.tar.gz"
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(out, name+": ") ||
		!strings.Contains(out, "Left out, or shown as") || !strings.Contains(out, "doctor.json") {
		t.Error(info, err, out)
	}
	for _, e := range readTar(t, name) {
		if !strings.HasPrefix(e.name, strings.TrimSuffix(name, ".tar.gz")+"/") {
			t.Error(e.name)
		}
	}
	b.fails(t, exitFailure, "exists already", b.args("support", "--output", name)...)
	b.fails(t, exitFailure, "exists already", b.args("support")...)
	b.fails(t, exitUsage, "--storage-bucket is missing", "support")
	b.fails(t, exitUsage, "--shard", b.args("support", "--shard", "A B")...)
	b.fails(t, exitUsage, "--since", b.args("support", "--since", "0s")...)
	b.fails(t, exitUsage, "server", b.args("support", "--servers", "dev-1")...)
	b.put(t, keys.Config("dev-2"), []byte("{"))
	out = b.must(t, b.args("support")...)
	if !strings.Contains(out, "nstance-support-example-all-") || !strings.Contains(out, "shards/dev-2/doctor.json") ||
		!strings.Contains(out, "newest configuration of shard dev-2") {
		t.Error(out)
	}
}

// TestSupportKeepsReadableEvents checks that a damaged part of the journal hides no events of other parts.
func TestSupportKeepsReadableEvents(t *testing.T) {
	b := newBucket(t, "file")
	b.populate(t)
	now := fleettest.Now
	put := func(term uint64, message string) {
		events, err := record.EncodeEvents([]record.Event{{Term: term, Sequence: 1, At: now.Add(-time.Minute),
			Group: "workers", Kind: record.EventAlertRaised, Message: message}})
		if err != nil {
			t.Fatal(err)
		}
		b.put(t, keys.Journal("dev-1", now, term, 1), events)
	}
	put(1, "the first leader")
	put(3, "the third leader")
	damaged := keys.Journal("dev-1", now, 2, 1)
	b.put(t, damaged, []byte("{\n"))
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	b.must(t, b.args("support", "--output", path)...)
	text := ""
	for _, e := range readTar(t, path) {
		if strings.HasSuffix(e.name, "/events.json") || strings.HasSuffix(e.name, "/README.txt") {
			text += string(e.body)
		}
	}
	for _, part := range []string{"the first leader", "the third leader", damaged} {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q in\n%s", part, text)
		}
	}
}
