package system

import (
	"context"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

var prometheusFlag = flag.String("prometheus", "", "path of Prometheus, for scaling")

// TestScaling scales two groups by the length of a queue: one by the answer of the queue's server, and one by a query to
// a real Prometheus that scrapes it. The queue's server wants TLS and a token. The groups grow from zero, follow the
// queue, keep their size while the queue cannot be read, and shrink to zero.
func TestScaling(t *testing.T) {
	q := &queue{}
	q.token.Store("first")
	q.server = httptest.NewTLSServer(q)
	defer q.server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: q.server.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	trial := local.Trial{Environment: func(string) []string { return []string{"SSL_CERT_FILE=" + ca} }}
	runShard(t, "scripts/test.sh scaling", trial, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("timeout after 10 minutes"))
		defer cancel()
		return q.run(ctx, stack, ca)
	})
}

// queue serves the length of a queue as JSON, and as a metric for Prometheus.
type queue struct {
	server *httptest.Server
	length atomic.Int64
	token  atomic.Value // the accepted one of nstance-server; that of Prometheus does not change
}

func (q *queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch authorization := r.Header.Get("Authorization"); {
	case r.URL.Path == "/metrics" && authorization == "Bearer scrape":
		_, _ = fmt.Fprintf(w, "queue_waiting{queue=\"a\"} %d\nqueue_waiting{queue=\"b\"} 0\n", q.length.Load())
	case r.URL.Path == "/status" && authorization == fmt.Sprint("Bearer ", q.token.Load()):
		_, _ = fmt.Fprintf(w, `{"queue": {"waiting": %d}}`, q.length.Load())
	default:
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// followers is the group that scales by a query.
const followers = "followers"

func (q *queue) run(ctx context.Context, stack *local.Stack, ca string) error {
	if _, err := stack.StartStore(ctx); err != nil {
		return err
	}
	address, prometheus, err := q.startPrometheus(ctx, stack, ca)
	if err != nil {
		return err
	}
	defer func() { _ = prometheus.Kill() }() // the end of the stack only stops its own programs
	err = stack.PutConfig(ctx, func(shard *config.Shard) {
		useShortTimes(shard, 0)
		window := config.Duration(15 * time.Second)
		scaling := func(m config.ScalingMetric) *config.Scaling {
			return &config.Scaling{Min: new(int), Max: 4, Metrics: []config.ScalingMetric{m},
				Up: config.ScaleUp{MaxStep: "4"}, Down: config.ScaleDown{Stabilization: &window, MaxStep: "4"}}
		}
		spec := shard.Groups[local.Tenant][group]
		spec.Scaling = scaling(config.ScalingMetric{URL: &config.ScalingURL{Name: "waiting", JSON: "/queue/waiting",
			URL: q.server.URL + "/status", Target: 10, Token: &config.TokenSource{Kind: "secret", Source: "queue"}}})
		shard.Groups[local.Tenant][group] = spec
		spec.Scaling = scaling(config.ScalingMetric{Query: &config.ScalingQuery{Prometheus: "http://" + address,
			Query: "sum(queue_waiting)", Target: 10}})
		shard.Groups[local.Tenant][followers] = spec
		shard.Cluster.Secrets.CacheTTL = duration(0)
	})
	if err != nil {
		return err
	}
	if _, err := stack.StartServer(ctx, 1); err != nil {
		return err
	}
	if _, err := stack.AwaitLine(ctx, "serving as leader", 0); err != nil { // the first leader makes the cluster
		return err
	}
	if err := q.setSecret(ctx, stack, "first"); err != nil {
		return err
	}
	operator, err := stack.Connect(ctx)
	if err != nil {
		return err
	}
	defer operator.Close()
	follow := func(length int64, size int) error {
		q.length.Store(length)
		if _, err := operator.AwaitHealthy(ctx, 2*size); err != nil {
			return fmt.Errorf("with a queue of %d: %w", length, err)
		}
		for _, name := range []string{group, followers} {
			if err := awaitScaled(ctx, operator, name, func(s scaledGroup) bool { return s.size == size }); err != nil {
				return fmt.Errorf("with a queue of %d: %w", length, err)
			}
		}
		fmt.Printf("scaling: %d instances in each group for a queue of %d\n", size, length)
		return nil
	}
	if err := follow(25, 3); err != nil {
		return err
	}
	if err := follow(400, 4); err != nil { // at most max
		return err
	}

	q.token.Store("second")
	if err := awaitScaled(ctx, operator, group, func(s scaledGroup) bool {
		return s.size == 4 && strings.Contains(s.problem, `"401 Unauthorized": the secret queue must hold a token`) &&
			!strings.Contains(s.problem, "first")
	}); err != nil {
		return err
	}
	fmt.Println("scaling: the size stays while the token is wrong")
	if err := q.setSecret(ctx, stack, "second"); err != nil {
		return err
	}
	if err := follow(11, 2); err != nil {
		return err
	}
	return follow(0, 0)
}

// startPrometheus starts a Prometheus that scrapes the queue, and returns its address.
func (q *queue) startPrometheus(ctx context.Context, stack *local.Stack, ca string) (address string,
	started *local.Process, err error) {
	ports, release, err := local.ReservePorts(ctx, 1)
	if err != nil {
		return "", nil, err
	}
	address = local.Address(ports.Store)
	release()
	target, err := url.Parse(q.server.URL)
	if err != nil {
		return "", nil, err
	}
	file := filepath.Join(stack.Dir, "prometheus.yaml")
	err = os.WriteFile(file, fmt.Appendf(nil, `global: {scrape_interval: 1s}
scrape_configs:
  - job_name: queue
    scheme: https
    tls_config: {ca_file: %q}
    authorization: {credentials: scrape}
    static_configs: [{targets: [%q]}]
`, ca, target.Host), 0o600)
	if err != nil {
		return "", nil, err
	}
	started, err = stack.Start("prometheus", *prometheusFlag, "--config.file="+file, "--web.listen-address="+address,
		"--storage.tsdb.path="+filepath.Join(stack.Dir, "prometheus"))
	return address, started, err
}

func (q *queue) setSecret(ctx context.Context, stack *local.Stack, token string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(stack.Bin, "nstance-admin"), "cluster", "secret", "set", "queue",
		"--storage-bucket", local.Bucket)
	cmd.Env, cmd.Stdin = stack.Env(), strings.NewReader(token)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("set a secret: %w\n%s", err, out)
	}
	return nil
}

type scaledGroup struct {
	size    int
	problem string
}

// awaitScaled waits until a group is as wanted.
func awaitScaled(ctx context.Context, operator *local.Operator, name string, wanted func(scaledGroup) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, convergeTimeout, fmt.Errorf("timeout after %s", convergeTimeout))
	defer cancel()
	for {
		groups, err := operator.Groups(ctx)
		if err != nil {
			return err
		}
		var have scaledGroup
		for _, g := range groups {
			if g.GetGroup() == name {
				have = scaledGroup{int(g.GetSize()), g.GetScaling().GetProblem()}
			}
		}
		if wanted(have) {
			return nil
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("group %s: %+v: %w", name, have, err)
		}
	}
}
