package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/dev/local"
)

var terraformFlag = flag.String("terraform", "", "path of tofu or terraform, for paused")

// TestPausedLeader starts a cluster like `make up`: it applies examples/local and runs two servers on one machine. Then
// it pauses the leader (SIGSTOP). The standby must lead, and the agents must report to the standby. A killed VM must be
// replaced, but no other VM. When the first leader continues, it must become a follower.
func TestPausedLeader(t *testing.T) {
	runShard(t, "scripts/test.sh paused", local.Trial{}, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("timeout after 3 minutes"))
		defer cancel()
		return pauseLeader(ctx, stack)
	})
}

func pauseLeader(ctx context.Context, stack *local.Stack) error {
	const size = 2 // of examples/local
	if _, err := stack.StartStore(ctx); err != nil {
		return err
	}
	tf, err := stack.Terraform(*terraformFlag)
	if err != nil {
		return err
	}
	if err := tf.Apply(ctx, stack.Variables()); err != nil {
		return err
	}
	var processes [servers + 1]*local.Process
	for n := 1; n <= servers; n++ {
		if processes[n], err = stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	operator, err := stack.Connect(ctx)
	if err != nil {
		return err
	}
	defer operator.Close()
	if _, err := operator.AwaitHealthy(ctx, size); err != nil {
		return err
	}
	leader, term, err := awaitLeaderWithHeir(ctx, stack)
	if err != nil {
		return err
	}
	paused := processes[leader]
	began := time.Now()
	if err := syscall.Kill(paused.PID, syscall.SIGSTOP); err != nil {
		return err
	}
	serving, err := stack.AwaitLine(ctx, "serving as leader", term)
	if err != nil {
		return err
	}
	fmt.Printf("paused: the standby serves %v after SIGSTOP of the leader\n",
		serving.Time.Sub(began).Round(time.Millisecond))

	lostVM, err := killVM(ctx, stack, rand.New(rand.NewPCG(1, 1)))
	if err != nil {
		return err
	}
	killed := time.Now()
	before, err := stack.VMs()
	if err != nil {
		return err
	}
	if err := awaitReplaced(ctx, operator, lostVM, size); err != nil {
		return err
	}
	fmt.Printf("paused: the killed VM is replaced %v after its end\n", time.Since(killed).Round(time.Millisecond))
	if err := awaitReports(ctx, operator, serving.Time); err != nil {
		return err
	}
	fmt.Printf("paused: every agent reports to the new leader %v after SIGSTOP\n",
		time.Since(began).Round(time.Millisecond))
	for _, vm := range before {
		now, err := stack.VM(vm.Instance)
		if err != nil {
			return err
		}
		if vm.Instance != lostVM && !now.DeletedAt.IsZero() {
			return fmt.Errorf("%s was deleted although it runs", vm.Instance)
		}
	}

	if err := syscall.Kill(paused.PID, syscall.SIGCONT); err != nil {
		return err
	}
	if err := awaitPage(ctx, stack, leader, "follower "); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if !processes[n].Running() {
			return fmt.Errorf("%s has ended", local.ServerName(n))
		}
	}
	return awaitConverged(ctx, stack, operator, size)
}

// awaitReports waits until the last report of every instance is later than the given time.
func awaitReports(ctx context.Context, operator *local.Operator, after time.Time) error {
	for {
		instances, err := operator.Instances(ctx)
		if err != nil {
			return err
		}
		missing := ""
		for _, i := range instances {
			if i.GetState() != "deleted" && !i.GetLastReportAt().AsTime().After(after) {
				missing = i.GetInstanceId()
			}
		}
		if missing == "" {
			return nil
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the agent of %s does not report to the new leader: %w", missing, err)
		}
	}
}

// page returns a page from the health port of a server.
func page(ctx context.Context, stack *local.Stack, n int, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // a paused server accepts connections and does not answer
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, stack.URL(n, path), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return string(body), err
}

// awaitPage waits until the /leader page of a server begins with the prefix.
func awaitPage(ctx context.Context, stack *local.Stack, n int, prefix string) error {
	for {
		text, err := page(ctx, stack, n, "/leader")
		if err == nil && strings.HasPrefix(text, prefix) {
			return nil
		}
		if ended := local.Pause(ctx, 50*time.Millisecond); ended != nil {
			return fmt.Errorf("/leader of %s is %q, want %q: %w", local.ServerName(n), text, prefix, ended)
		}
	}
}

// awaitLeaderWithHeir waits for a leader that has the other server as its heir. It returns the number of the leader and
// its term.
func awaitLeaderWithHeir(ctx context.Context, stack *local.Stack) (leader int, term uint64, err error) {
	for {
		for n := 1; n <= servers; n++ {
			text, err := page(ctx, stack, n, "/leader")
			if err != nil || !strings.HasPrefix(text, "leader term=") {
				continue
			}
			if _, err := fmt.Sscanf(text, "leader term=%d", &term); err != nil {
				return 0, 0, fmt.Errorf("%q: %w", text, err)
			}
			if strings.Contains(text, "heir="+local.ServerName(servers+1-n)) {
				return n, term, nil
			}
		}
		if err := local.Pause(ctx, 50*time.Millisecond); err != nil {
			return 0, 0, fmt.Errorf("no leader with an heir: %w", err)
		}
	}
}
