package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/dev/local"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

// TestKeyFiles runs a shard on this machine whose cluster has its bucket in a cloud, which the server reaches with a
// key file, as docs/start/multi-cloud.md says. The server must lead, and an agent must register. With a bad key file,
// the server must say what is wrong with which file.
func TestKeyFiles(t *testing.T) {
	t.Run("aws", func(t *testing.T) { keyFilesOf(t, onS3) })
	t.Run("gcp", func(t *testing.T) { keyFilesOf(t, onGCS) })
}

// clusterBucket is a cluster's bucket that a key file opens.
type clusterBucket struct {
	storage config.Storage
	// key is the content of the server's key file.
	key string
	// environment has the variables of the server.
	environment []string
	// wrong maps contents of the key file to texts of the server's errors. The file does not exist if the content is
	// "missing", and is a directory if the content is "directory", which not even root can read.
	wrong map[string][]string
}

// keyFilesOf runs a shard whose cluster's bucket the function "open" makes. "open" gets the path of the key file.
func keyFilesOf(t *testing.T, open func(context.Context, *testing.T, *local.Stack, string) (clusterBucket, error)) {
	var environment []string
	trial := local.Trial{Environment: func(name string) []string {
		if name != local.ServerName(1) {
			return nil
		}
		return environment
	}}
	runShard(t, "scripts/test.sh copied", trial, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("timeout after 3 minutes"))
		defer cancel()
		if _, err := stack.StartStore(ctx); err != nil {
			return err
		}
		file := filepath.Join(stack.Dir, "key-file")
		bucket, err := open(ctx, t, stack, file)
		if err != nil {
			return err
		}
		environment = bucket.environment
		if err := stack.PutConfig(ctx, func(shard *config.Shard) {
			useShortTimes(shard, 1)
			shard.Cluster.Storage = &bucket.storage
		}); err != nil {
			return err
		}
		for content, texts := range bucket.wrong {
			if err := refusesKeyFile(ctx, stack, file, content, texts); err != nil {
				return fmt.Errorf("key file %q: %w", content, err)
			}
		}
		if err := os.WriteFile(file, []byte(bucket.key), 0o600); err != nil {
			return err
		}
		if _, err := stack.StartServer(ctx, 1); err != nil {
			return err
		}
		if _, err := stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
			return err
		}
		return awaitRegistered(ctx, stack)
	})
}

// awaitRegistered waits until an agent has registered, and checks that the shard's own bucket has nothing of the
// cluster.
func awaitRegistered(ctx context.Context, stack *local.Stack) error {
	state, err := stack.State(ctx)
	if err != nil {
		return err
	}
	for registered := false; !registered; {
		err := state.LoadInstances(ctx, func(i record.Instance, _ objstore.Token) {
			registered = registered || i.State == record.Registered
		})
		if ended := local.Pause(ctx, 100*time.Millisecond); ended != nil {
			return fmt.Errorf("no agent registers: %w", errors.Join(ended, err))
		}
	}
	objects, err := stack.Objects()
	if err != nil {
		return err
	}
	for _, key := range objects {
		if strings.HasPrefix(key, "cluster/") {
			return fmt.Errorf("the shard's own bucket has %s", key)
		}
	}
	return nil
}

// refusesKeyFile starts a server with a bad key file. Its log must contain the texts.
func refusesKeyFile(ctx context.Context, stack *local.Stack, file, content string, texts []string) (err error) {
	if err := os.RemoveAll(file); err != nil {
		return err
	}
	switch content {
	case "missing":
	case "directory":
		err = os.Mkdir(file, 0o700)
	default:
		err = os.WriteFile(file, []byte(content), 0o600)
	}
	if err != nil {
		return err
	}
	log := stack.LogFile(local.ServerName(1))
	if err := os.RemoveAll(log); err != nil {
		return err
	}
	process, err := stack.Start(local.ServerName(1), "nstance-server", "--id", local.ServerName(1), "--shard",
		local.Shard, "--storage", "s3", "--bucket", local.Bucket, "--cachedir", stack.CacheDir(1), "--instance", "1",
		"--health-addr", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Kill(), os.RemoveAll(file)) }()
	for {
		text, readErr := os.ReadFile(log)
		lacks := ""
		for _, want := range texts {
			if !bytes.Contains(text, []byte(strings.ReplaceAll(want, "FILE", file))) {
				lacks = want
			}
		}
		if readErr == nil && lacks == "" {
			return nil
		}
		if ended := local.Pause(ctx, 100*time.Millisecond); ended != nil {
			return fmt.Errorf("the log lacks %q: %w\n%s", lacks, errors.Join(ended, readErr), text)
		}
	}
}

// onS3 makes a bucket in a store with another access key than that of the shard's bucket.
func onS3(ctx context.Context, _ *testing.T, stack *local.Stack, file string) (clusterBucket, error) {
	const key = "AKIACLUSTER"
	accepted := filepath.Join(stack.Dir, "cluster-key")
	if err := os.WriteFile(accepted, []byte(key), 0o600); err != nil {
		return clusterBucket{}, err
	}
	ports, release, err := local.ReservePorts(ctx, 1)
	if err != nil {
		return clusterBucket{}, err
	}
	address := local.Address(ports.Store)
	release()
	if _, err := stack.Start("cluster-s3", "dev-s3", "--addr", address, "--dir", filepath.Join(stack.Dir, "cluster"),
		"--bucket", "cluster", "--access-key-file", accepted); err != nil {
		return clusterBucket{}, err
	}
	profile := func(name, id string) string {
		return "[profile " + name + "]\naws_access_key_id = " + id + "\naws_secret_access_key = secret\n"
	}
	storage := config.Storage{Provider: "s3", Bucket: "cluster", Region: "us-east-1", Endpoint: "http://" + address,
		Identity: &config.Identity{}}
	storage.Identity.Profile = "cluster"
	return clusterBucket{storage: storage, key: profile("cluster", key),
		environment: []string{"AWS_CONFIG_FILE=" + file},
		wrong: map[string][]string{
			"missing":                     {"open FILE: no such file", "add the section [profile cluster]"},
			"directory":                   {"read FILE: is a directory", "correct the file FILE"},
			profile("other", key):         {"FILE has no usable profile of this name"},
			profile("cluster", "AKIABAD"): {"InvalidAccessKeyId"},
		}}, nil
}

// onGCS makes a bucket in a fake of Google Cloud.
func onGCS(ctx context.Context, t *testing.T, _ *local.Stack, file string) (clusterBucket, error) {
	google, err := fakegcp.New("us-west1-a")
	if err != nil {
		return clusterBucket{}, err
	}
	server := httptest.NewServer(google)
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/storage/v1/b?project="+
		fakegcp.Project, strings.NewReader(`{"name": "cluster"}`))
	if err != nil {
		return clusterBucket{}, err
	}
	request.Header.Set("Authorization", "Bearer "+credentials.Token(credentials.Account))
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return clusterBucket{}, err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return clusterBucket{}, fmt.Errorf("make the bucket: %s", answer.Status)
	}
	key, err := os.ReadFile(credentials.Write(t, fakegcp.Project))
	if err != nil {
		return clusterBucket{}, err
	}
	environment := []string{"GOOGLE_APPLICATION_CREDENTIALS=" + file}
	for name, value := range fakegcp.Environment(server.URL) {
		environment = append(environment, name+"="+value)
	}
	return clusterBucket{storage: config.Storage{Provider: "gcs", Bucket: "cluster"}, key: string(key),
		environment: environment,
		wrong: map[string][]string{
			"missing":             {"open FILE: no such file", "GOOGLE_APPLICATION_CREDENTIALS", "put the key"},
			"directory":           {"read FILE: is a directory", "readable for the user"},
			"no JSON":             {"FILE, which GOOGLE_APPLICATION_CREDENTIALS names, is not the JSON key file"},
			`{"type": "unknown"}`: {"FILE, which GOOGLE_APPLICATION_CREDENTIALS names, is not the JSON key file"},
		}}, nil
}
