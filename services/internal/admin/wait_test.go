package admin

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

var portOf = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)

// TestWait waits for a change in two shards. Meanwhile one of the shards changes in steps: it loses its leader, or its
// group grows.
func TestWait(t *testing.T) {
	for name, test := range map[string]struct {
		args  string
		steps []func(*fleettest.Shard)
		want  string // what the command prints about the second shard
		fails string
	}{
		"scale": {"group scale workers 4 --all-shards --per-shard --wait", []func(*fleettest.Shard){
			func(s *fleettest.Shard) { s.Groups[0].BlockedReason, s.Groups[0].Wait = "", nil },
			func(s *fleettest.Shard) {
				s.Before = func(string) error { return status.Error(codes.Unavailable, "no leader") }
			},
			func(s *fleettest.Shard) {
				s.Before = nil
				s.Groups[0].ActualSize, s.Groups[0].Healthy, s.Groups[0].Outdated = 4, 4, 1
			},
			func(*fleettest.Shard) {},
			func(s *fleettest.Shard) { s.Groups[0].Outdated = 0 },
		}, `us-b: group workers: size 4, 2 there, 1 healthy, 0 outdated: 1 more instance at 10:00:04: no capacity
us-b: group workers: size 4, 2 there, 1 healthy, 0 outdated
us-b: 127.0.0.1: no leader
us-b: group workers: size 4, 4 there, 4 healthy, 1 outdated
us-b: group workers: size 4, 4 there, 4 healthy, 0 outdated
`, ""},
		"time is over": {"group wait workers --shard us-b --timeout 1ms", nil, "",
			"after 1ms it has not happened in 1 of 1 shard"},
		"looks once": {"group wait workers --shard us-b --timeout 0", nil,
			"us-b: group workers: size 3, 2 there, 1 healthy, 0 outdated: 1 more instance at 10:00:04: no capacity\n",
			"it has not happened in 1 of 1 shard"},
		"without a limit": {"instance delete " + firstID + " --shard us-b --wait --yes --timeout -1s",
			[]func(*fleettest.Shard){func(s *fleettest.Shard) { s.Instances = nil }},
			"us-b: instance " + firstID + " is deleting, the provider says running\n" +
				"us-b: instance " + firstID + " is not there\n", ""},
		"no answer in the whole time": {"group wait workers --shard us-b --timeout 500ms", []func(*fleettest.Shard){
			func(s *fleettest.Shard) {
				s.Before = func(string) error { return status.Error(codes.Unavailable, "no leader") }
			},
			func(*fleettest.Shard) {},
		}, "us-b: group workers: size 3, 2 there, 1 healthy, 0 outdated: 1 more instance at 10:00:04: no capacity\n" +
			"us-b: 127.0.0.1: no leader\n", "after 500ms shard us-b: 127.0.0.1"},
		"group is deleted": {"group roll workers --shard us-b --wait --yes", []func(*fleettest.Shard){
			func(s *fleettest.Shard) { s.Groups = nil },
		}, "us-b: group workers: size 3, 2 there, 1 healthy, 2 outdated: 1 more instance at 10:00:04: no capacity\n",
			"shard us-b: group: there is no group workers"},
		"instance is gone": {"instance delete " + firstID + " --shard us-b --wait --yes", []func(*fleettest.Shard){
			func(s *fleettest.Shard) { s.Instances[1].ProviderState = "stopping" },
			func(s *fleettest.Shard) { s.Instances = nil },
		}, "us-b: instance " + firstID + " is deleting, the provider says running\n" +
			"us-b: instance " + firstID + " is deleting, the provider says stopping\n" +
			"us-b: instance " + firstID + " is not there\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cli, a, b, _ := shards(t)
			a.Groups[0].ActualSize, a.Groups[0].Healthy, a.Groups[0].BlockedReason = 4, 4, ""
			a.Groups[0].Wait = nil
			var notes, out bytes.Buffer
			app := newApp("1", Environment{Stdout: &out, Stderr: &notes, Stdin: strings.NewReader(""),
				Getenv: func(name string) string { return cli.env[name] }, Now: fleettest.Clock,
				Rand: fleettest.Rand(1)})
			step := 0
			app.sleep = func(ctx context.Context, _ time.Duration) error {
				if step == len(test.steps) {
					<-ctx.Done()
					return ctx.Err()
				}
				b.Do(func() { test.steps[step](b) })
				step++
				return nil
			}
			cmd := app.command()
			cmd.SetArgs(strings.Fields(test.args))
			err := cmd.ExecuteContext(t.Context())
			var got strings.Builder
			for line := range strings.Lines(notes.String()) {
				line = portOf.ReplaceAllString(line, "127.0.0.1")
				if strings.HasPrefix(line, "us-b") && test.want != "" {
					got.WriteString(line)
				}
			}
			if got.String() != test.want || step != len(test.steps) {
				t.Errorf("after %d steps:\n%s\nwant:\n%s", step, got.String(), test.want)
			}
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("%v, want %q", err, test.fails)
			}
		})
	}
}

// TestTimeoutsAreNamedAsInKubectl checks that --timeout limits the wait of each command that waits, and that
// --request-timeout limits a single call.
func TestTimeoutsAreNamedAsInKubectl(t *testing.T) {
	app := newApp("1", Environment{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }})
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		timeout, waits := cmd.Flags().Lookup("timeout"), cmd.Flags().Lookup("wait") != nil || cmd.Name() == "wait"
		if waits && (timeout == nil || timeout.DefValue != "15m0s") {
			t.Errorf("%s waits, and its --timeout is %v", cmd.CommandPath(), timeout)
		}
		if timeout != nil && !strings.Contains(timeout.Usage, "wait") {
			t.Errorf("%s --timeout: %q is not the time of a wait", cmd.CommandPath(), timeout.Usage)
		}
	}
	check(app.command())
}
