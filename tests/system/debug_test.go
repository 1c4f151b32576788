package system

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

var promtoolFlag = flag.String("promtool", "", "promtool, for debug")

// TestDebugStory injects the faults of docs/how-to/debug.md into a shard of real servers and agents, one after the
// other. It runs every command of the page. After each fault, all means of observation must show the same cause and
// time: the events, the log, explain, doctor, the metrics, the alert rules and the web page.
func TestDebugStory(t *testing.T) {
	trial := local.Trial{MaxVMs: storyRoom}
	runShard(t, "scripts/test.sh debug", trial, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 8*time.Minute, errors.New("timeout after 8 minutes"))
		defer cancel()
		s := &story{refused: refused{stack: stack}, sick: stack.Dir + "/sick"}
		s.adapt = s.adaptGroup
		if err := os.WriteFile(s.sick, nil, 0o600); err != nil {
			return err
		}
		if err := s.start(ctx); err != nil {
			return err
		}
		defer s.operator.Close()
		return s.play(ctx)
	})
}

const (
	// storyRoom is the number of VMs for which the provider has capacity.
	storyRoom = 4
	// tooMany is a group size for which the provider lacks capacity.
	tooMany = storyRoom + 1
	diskOut = "the disk is broken"
)

// story is one run of TestDebugStory.
type story struct {
	refused
	// sick is the path of a file with the ID of an instance. The health check of that instance fails.
	sick    string
	scraped samples // the metrics before the present fault
}

// adaptGroup gives the group a health check and a rollout that begins with one canary. It also shortens some intervals.
func (s *story) adaptGroup(c *config.Shard) {
	c.Server.GarbageCollection.Interval = duration(2 * time.Second)
	c.Server.DefaultDrainTimeout = duration(time.Second)
	spec := c.Groups[local.Tenant][group]
	spec.Rollout = &config.Rollout{Canary: 1, HaltOnFailures: 1}
	c.Groups[local.Tenant][group] = spec
	// The environment of a health check lacks the instance ID. But the parent process of the check is the agent, whose
	// environment has the ID.
	script := fmt.Sprintf("if ps eww -p $PPID | grep -q -F -f %s; then echo %s; exit 1; fi", s.sick, diskOut)
	template := c.Templates["worker"]
	two := 2
	template.HealthChecks = map[string]config.HealthCheck{"disk": {Exec: []string{"/bin/sh", "-c", script},
		Interval: duration(3 * time.Second), Timeout: duration(3 * time.Second), FailureThreshold: &two}}
	c.Templates["worker"] = template
}

// expectation tells what one command of the page must print, on standard output or standard error.
type expectation struct {
	command string // beginning of the command line
	fails   bool
	texts   []string
}

// chapter is a section of the page about one fault.
type chapter struct {
	heading string
	// inject causes the fault. It returns the instance that the fault is about, if any.
	inject   func(context.Context) (instance string, err error)
	settle   func(context.Context) error
	commands []expectation
	told     told
	mend     func(context.Context) error
}

func (s *story) play(ctx context.Context) error {
	page, err := os.ReadFile("docs/how-to/debug.md")
	if err != nil {
		return err
	}
	sections := strings.Split(string(page), "\n## ")[1:]
	chapters := append(s.instanceChapters(), s.leaderChapters()...)
	if len(sections) != len(chapters) {
		return fmt.Errorf("the page has %d sections, want %d", len(sections), len(chapters))
	}
	if _, err := s.stack.StartPage(ctx, s.file("identity")); err != nil {
		return err
	}
	if _, _, err := awaitLeaderWithHeir(ctx, s.stack); err != nil {
		return err
	}
	for n, c := range chapters {
		if heading, _, _ := strings.Cut(sections[n], "\n"); heading != c.heading {
			return fmt.Errorf("section %q, want %q", heading, c.heading)
		}
		if err := s.tell(ctx, c, sections[n]); err != nil {
			return fmt.Errorf("%s: %w", c.heading, err)
		}
	}
	return nil
}

// tell plays one chapter.
func (s *story) tell(ctx context.Context, c chapter, section string) (err error) {
	began := time.Now()
	if s.scraped, err = s.scrape(ctx); err != nil {
		return err
	}
	instance, err := c.inject(ctx)
	if err != nil {
		return err
	}
	c.told.instance = instance
	// Until the group is settled, an alert may be resolved and raised again.
	for range 2 {
		if err := s.awaitEvent(ctx, &c.told); err != nil {
			return err
		}
		if err := c.settle(ctx); err != nil {
			return err
		}
	}
	if err := s.check(ctx, c.told); err != nil {
		return err
	}
	if err := s.runPage(ctx, section, instance, c.commands); err != nil {
		return err
	}
	if c.mend != nil {
		if err := c.mend(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("debug: %s: told in %v\n", c.heading, time.Since(began).Round(time.Second))
	return nil
}

// settled waits until the group has its configured size and all its instances are healthy.
func (s *story) settled(ctx context.Context) error {
	_, err := s.operator.AwaitHealthy(ctx, refusedSize)
	return err
}

// changed applies a change to a copy of the configuration that is in force, and returns the copy as text.
func (s *story) changed(change func(*config.Shard)) (string, error) {
	shard, problems := config.ParseStored("config", []byte(s.document))
	if err := problems.Err(); err != nil {
		return "", err
	}
	change(shard)
	return string(config.Encode(shard)), nil
}

func (s *story) killVM(context.Context) (string, error) {
	killed, err := killVM(context.Background(), s.stack, rand.New(rand.NewPCG(1, 1)))
	return killed.String(), err
}

// failCheck makes the health check of one instance fail until the instance is replaced.
func (s *story) failCheck(ctx context.Context) (string, error) {
	instances, err := s.operator.AwaitHealthy(ctx, refusedSize)
	if err != nil {
		return "", err
	}
	id := instances[0].GetInstanceId()
	return id, os.WriteFile(s.sick, []byte(id+"\n"), 0o600)
}

// writeBad writes a configuration with an encryption key that the servers do not have. The leader must refuse it.
func (s *story) writeBad(ctx context.Context) (string, error) {
	bad, err := replaceOnce(s.document, `"source": "NSTANCE_ENCRYPTION_KEY"`, `"source": "NO_SUCH_KEY"`)
	if err != nil {
		return "", err
	}
	if err := s.write(ctx, bad); err == nil {
		return "", errors.New("the leader does not refuse it")
	}
	return "", nil
}

func (s *story) writeGood(ctx context.Context) error {
	if err := s.write(ctx, s.document); err != nil {
		return err
	}
	return s.awaitNoErrors(ctx)
}

// rollBad replaces the boot script by one that fails. After this change, the leader begins to replace the group's
// instances.
func (s *story) rollBad(ctx context.Context) (string, error) {
	bad, err := s.changed(func(c *config.Shard) {
		c.Defaults.Userdata.Content = "#!/bin/sh\necho the new boot script does not work\nexit 1\n"
	})
	if err != nil {
		return "", err
	}
	return "", s.write(ctx, bad)
}

// awaitNoErrors waits until no alert is active and the group is settled.
func (s *story) awaitNoErrors(ctx context.Context) error {
	for {
		standing, err := s.standing(ctx, "status")
		if err == nil && len(standing) == 0 {
			return s.settled(ctx)
		}
		if err := local.Pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("alerts are active: %w: %+v", err, standing)
		}
	}
}

// killLeader kills the leader and waits until its heir leads.
func (s *story) killLeader(ctx context.Context) (string, error) {
	leader, term, err := awaitLeaderWithHeir(ctx, s.stack)
	if err != nil {
		return "", err
	}
	if err := s.servers[leader].Kill(); err != nil {
		return "", err
	}
	_, err = s.stack.AwaitLine(ctx, "serving as leader", term)
	return "", err
}

func (s *story) killServers(context.Context) (string, error) {
	for n := 1; n <= servers; n++ {
		if !s.servers[n].Running() {
			continue
		}
		if err := s.servers[n].Kill(); err != nil {
			return "", err
		}
	}
	return "", nil
}

// env returns the environment for the commands on the page.
func (s *story) env(instance string) []string {
	return append(s.stack.Env(), "PATH="+s.stack.Bin+":"+os.Getenv("PATH"), "INSTANCE="+instance,
		"NSTANCE_ADMIN_SERVERS="+s.stack.AdminServers(), "NSTANCE_ADMIN_IDENTITY_DIR="+s.file("identity"))
}

// runPage runs all commands in a section's blocks of shell code. They must be the commands in "want", in the same
// order.
func (s *story) runPage(ctx context.Context, section, instance string, want []expectation) error {
	var commands []string
	for _, code := range blocks(section, "sh") {
		commands = append(commands, strings.Split(strings.TrimSpace(code), "\n")...)
	}
	if len(commands) != len(want) {
		return fmt.Errorf("the section has %d commands, want %d: %q", len(commands), len(want), commands)
	}
	// $END is the part of the ID that tables of events show.
	names := strings.NewReplacer("$INSTANCE", instance, "$END", instance[max(0, len(instance)-5):])
	for n, command := range commands {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Env = s.env(instance)
		output, err := cmd.CombinedOutput()
		fmt.Printf("$ %s\n%s\n", command, output)
		if !strings.HasPrefix(command, "nstance-admin "+want[n].command) || (err != nil) != want[n].fails {
			return fmt.Errorf("%s: %w: want %q, failing: %t", command, err, want[n].command, want[n].fails)
		}
		for _, text := range want[n].texts {
			if !strings.Contains(string(output), names.Replace(text)) {
				return fmt.Errorf("%s: %q is not in its output", command, text)
			}
		}
	}
	return nil
}
