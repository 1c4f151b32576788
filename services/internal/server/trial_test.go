package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// configRefused is a metric that is 1 while the newest configuration is refused.
const configRefused = `nstance_config_refused{cluster="test",shard="a"}`

// severedStore fails every request after it is severed. This simulates a killed process.
type severedStore struct {
	objstore.Store
	severed atomic.Bool
}

var errSevered = errors.New("the process was killed")

func (s *severedStore) Get(ctx context.Context, key string) (objstore.Object, error) {
	if s.severed.Load() {
		return objstore.Object{}, errSevered
	}
	return s.Store.Get(ctx, key)
}

func (s *severedStore) Put(ctx context.Context, key string, body []byte, cond objstore.Condition) (objstore.Token,
	error) {
	if s.severed.Load() {
		return "", errSevered
	}
	return s.Store.Put(ctx, key, body, cond)
}

// startKillable starts a server. kill ends it without a release of the lock.
func (r *testShard) startKillable(key string) (p *run, kill func()) {
	shared := r.bucket
	defer func() { r.bucket = shared }()
	own := &severedStore{Store: shared}
	r.bucket = own
	p = r.start(key)
	return p, func() {
		own.severed.Store(true)
		_ = p.end()
	}
}

// replaceOne stops a VM and waits for its replacement.
func (p *run) replaceOne() {
	p.testShard.t.Helper()
	p.await("two VMs", func() bool { return p.testShard.running() == 2 })
	before := map[string]bool{}
	stopped := false
	for _, vm := range p.testShard.provider.VMs() {
		before[vm.ProviderID] = true
		if vm.State.Alive() && !stopped {
			if err := p.testShard.provider.Terminate(vm.ProviderID); err != nil {
				p.testShard.t.Fatal(err)
			}
			stopped = true
		}
	}
	p.await("a replacement of a VM that was lost", func() bool {
		for _, vm := range p.testShard.provider.VMs() {
			if vm.State.Alive() && !before[vm.ProviderID] {
				return p.testShard.running() == 2
			}
		}
		return false
	})
}

// TestConfigurationThatCannotRunIsNotApplied checks that a configuration that this server cannot run is reported and
// never recorded as applied. The shard continues with the previous configuration. This also holds after the leader was
// killed, for its successor and for a server on a new machine.
func TestConfigurationThatCannotRunIsNotApplied(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "missing"))
	elsewhere := filepath.Join(t.TempDir(), "bucket")
	type object = map[string]any
	cluster := func(doc object) object { return doc["cluster"].(object) }
	secrets := func(doc object) object { return cluster(doc)["secrets"].(object) }
	for name, tc := range map[string]struct {
		change func(doc object)
		want   string
	}{
		"provider that the build lacks": {func(doc object) {
			doc["server"].(object)["provider"] = object{"kind": "tmux"}
		}, "tmux"},
		"secrets store that cannot be opened": {func(doc object) {
			secrets(doc)["provider"], secrets(doc)["project_id"] = "google-secret-manager", "p"
		}, "find Google credentials"},
		"key source that the build lacks": {func(doc object) {
			secrets(doc)["encryption_key"] = object{"provider": "aws-secrets-manager", "source": "key"}
		}, "aws-secrets-manager"},
		"encryption key that opens nothing": {func(doc object) {
			secrets(doc)["encryption_key"] = object{"provider": "file", "source": "other"}
		}, "sealed with another encryption key"},
		"cluster storage that cannot be opened": {func(doc object) {
			cluster(doc)["storage"] = object{"provider": "file", "bucket": filepath.Join(file, "bucket")}
		}, "cluster.storage"},
		"cluster storage without credentials": {func(doc object) {
			cluster(doc)["storage"] = object{"provider": "gcs", "bucket": "b"}
		}, "find Google credentials"},
		"cluster storage without the CA": {func(doc object) {
			cluster(doc)["storage"] = object{"provider": "file", "bucket": elsewhere}
		}, "the CA's key is missing although the cluster is in use"},
		"an address of another machine": {func(doc object) {
			doc["server"].(object)["bind"].(object)["agent_addr"] = "192.0.2.1:8994"
		}, "listen for server.bind.agent_addr"},
		"another shard": {func(doc object) { doc["server"].(object)["shard"] = "b" }, `of shard "b"`},
		"an argument that the provider refuses": {func(doc object) {
			doc["defaults"].(object)["args"] = object{"Bad": 1}
		}, "Bad"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestShard(t)
			r.set = refuseBadArgs
			good := func(doc object) {
				doc["server"].(object)["garbage_collection"] = object{"interval": "100ms"}
				doc["server"].(object)["leader_election"] = object{"lease_duration": "2s", "renew_interval": "500ms",
					"peer_lease": "0s"}
			}
			r.configure(good)
			p, kill := r.startKillable(testKey)
			p.await("a leader", func() bool { return p.server.leading.Load() != nil })
			p.replaceOne()
			applied := r.applied()

			r.configure(func(doc object) { good(doc); tc.change(doc) })
			result, problems, err := p.server.leading.Load().operator.Refresh(t.Context())
			if err != nil || result != shardconfig.Invalid || !strings.Contains(problems.Error(), tc.want) {
				t.Fatalf("the refresh answers %d, %v, %v; want a refusal about %q", result, problems, err, tc.want)
			}
			if p.metric(configRefused) != "1" {
				t.Error("nstance_config_refused is not 1")
			}
			if !bytes.Equal(r.applied(), applied) {
				t.Error("it was recorded as applied")
			}
			p.replaceOne()
			if name == "provider that the build lacks" {
				kill() // The successor waits for the end of the lease, so one case is enough.
			} else {
				_ = p.end()
			}

			next := r.start(testKey) // with a separate cache
			next.await("the next leader", func() bool { return next.server.leading.Load() != nil })
			if !strings.Contains(next.log.String(), "the newest configuration is refused") {
				t.Error("the next leader does not say in its log that it goes on with the configuration before")
			}
			next.replaceOne()
			status := next.server.manager.Status()
			if !strings.Contains(status.Problems.Error(), tc.want) || status.RefusedETag == "" ||
				next.metric(configRefused) != "1" {
				t.Errorf("the next leader does not report the refusal: %+v", status)
			}
			if !bytes.Equal(r.applied(), applied) {
				t.Error("the next leader recorded it as applied")
			}

			// The corrected configuration is applied without a restart.
			r.configure(good)
			result, problems, err = next.server.leading.Load().operator.Refresh(t.Context())
			if err != nil || result == shardconfig.Invalid || result == shardconfig.Restart {
				t.Errorf("the corrected configuration: %d, %v, %v", result, problems, err)
			}
			next.await("no refusal", func() bool { return next.metric(configRefused) == "0" })
		})
	}
}

// applied returns the body of the recorded applied configuration.
func (r *testShard) applied() []byte {
	r.t.Helper()
	obj, err := r.bucket.Get(r.t.Context(), keys.Applied("a"))
	if err != nil {
		r.t.Fatal(err)
	}
	content, err := authority.UnverifiedContent(obj.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	_, body, _ := bytes.Cut(content, []byte("\n"))
	return body
}
