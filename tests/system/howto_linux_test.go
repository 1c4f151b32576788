package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// TestHowTo runs the shell commands of pages in docs/how-to on a cluster of real servers and agents, in the order of
// the page. If the page describes a step in words, the test does that step too. It replaces names such as GROUP and
// my-bucket by those of the cluster.
func TestHowTo(t *testing.T) {
	var traces atomic.Int32
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/v1/traces" {
			traces.Add(1)
		}
	}))
	defer collector.Close()
	trial := local.Trial{Environment: func(string) []string { return tracing(t, collector.URL) }}
	runShard(t, "scripts/test.sh howto", trial, func(ctx context.Context, stack *local.Stack) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("timeout after 10 minutes"))
		defer cancel()
		h := &howTo{stack: stack, dir: filepath.Join(stack.Dir, "howto"), traces: &traces}
		if err := h.start(ctx); err != nil {
			return err
		}
		defer h.operator.Close()
		for _, page := range h.pages() {
			if err := h.follow(ctx, page); err != nil {
				return fmt.Errorf("docs/how-to/%s: %w", page.file, err)
			}
		}
		return nil
	})
}

// guide is a page of docs/how-to with a step for each block of shell commands.
type guide struct {
	file  string
	steps []step
	// check, if not nil, verifies the parts of the page that are not commands.
	check func(ctx context.Context, text string) error
}

// step is one block of shell commands.
type step struct {
	// before, if not nil, does what the page says before the commands.
	before func(context.Context) error
	// texts must be in the output of the commands. The names in texts, such as GROUP, are replaced like those in the
	// commands.
	texts []string
	// "until" is set for commands that run until they are interrupted. The test interrupts them when they have printed
	// this text.
	until string
	// after, if not nil, is called with the output of the commands.
	after func(ctx context.Context, output string) error
}

// howTo is one run of TestHowTo.
type howTo struct {
	stack    *local.Stack
	dir      string // working directory of the commands
	servers  [servers + 1]*local.Process
	operator *local.Operator
	document *config.Shard // as last pushed
	names    []string      // names of pages, each with its replacement
	key      string        // the encryption key, unless it is the stack's
	traces   *atomic.Int32
}

func (h *howTo) file(name string) string { return filepath.Join(h.dir, name) }

// start starts the servers and registers an admin.
func (h *howTo) start(ctx context.Context) (err error) {
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		return err
	}
	if _, err := h.stack.StartStore(ctx); err != nil {
		return err
	}
	if err := h.stack.PutConfig(ctx, func(c *config.Shard) {
		useShortTimes(c, 2)
		c.Server.DefaultDrainTimeout = duration(time.Second)
		h.document = c
	}); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if h.servers[n], err = h.stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	h.names = []string{"my-bucket", local.Bucket, "BUCKET", local.Bucket, "SHARD", local.Shard, "GROUP", group,
		"FILE", h.file("shard.jsonc")}
	if _, err := h.stack.AwaitLine(ctx, "serving as leader", 0); err != nil {
		return err
	}
	if _, err := h.shell(ctx, "nstance-admin cluster register-operator --cluster-id "+local.Cluster+
		" --role admin --storage-bucket my-bucket --output-dir "+h.file("admin"), ""); err != nil {
		return err
	}
	if h.operator, err = h.stack.ConnectWith(h.file("admin")); err != nil {
		return err
	}
	_, _, err = awaitLeaderWithHeir(ctx, h.stack)
	return err
}

// read returns a page of docs/how-to.
func read(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join("docs", "how-to", file))
	return string(text), err
}

// follow runs the commands of a page.
func (h *howTo) follow(ctx context.Context, p guide) error {
	began := time.Now()
	text, err := read(p.file)
	if err != nil {
		return err
	}
	commands := blocks(text, "sh")
	if len(commands) != len(p.steps) {
		return fmt.Errorf("the page has %d blocks of shell commands, the test has %d", len(commands), len(p.steps))
	}
	for n, step := range p.steps {
		if step.before != nil {
			if err := step.before(ctx); err != nil {
				return fmt.Errorf("before %q: %w", commands[n], err)
			}
		}
		output, err := h.shell(ctx, commands[n], step.until)
		if err != nil {
			return err
		}
		for _, text := range step.texts {
			if text = h.replace(text); !strings.Contains(output, text) {
				return fmt.Errorf("%s: %q is not in its output", commands[n], text)
			}
		}
		if step.after != nil {
			if err := step.after(ctx, output); err != nil {
				return fmt.Errorf("after %q: %w", commands[n], err)
			}
		}
	}
	if p.check != nil {
		if err := p.check(ctx, text); err != nil {
			return err
		}
	}
	fmt.Printf("how-to: %s: %d blocks in %v\n", p.file, len(commands), time.Since(began).Round(time.Second))
	return nil
}

// call sets what replaces the names on a page, such as GROUP. The arguments are a name, its replacement, the next name,
// and so on. A later call overrides an earlier one.
func (h *howTo) call(names ...string) { h.names = append(names, h.names...) }

// replace replaces the names on a page by those of the cluster.
func (h *howTo) replace(text string) string {
	for n := 0; n < len(h.names); n += 2 {
		name := regexp.QuoteMeta(h.names[n])
		text = regexp.MustCompile(`(^|[^\w-])`+name+`($|[^\w-])`).ReplaceAllString(text, "${1}"+h.names[n+1]+"${2}")
	}
	return text
}

// shell runs a block of commands at a terminal and answers questions with yes. It returns the output. If until is not
// empty, it waits for that text in the output and then interrupts the commands.
func (h *howTo) shell(ctx context.Context, commands, until string) (string, error) {
	terminal, err := newTerminal("yes\n")
	if err != nil {
		return "", err
	}
	defer terminal.Close()
	log, err := os.Create(h.file("output"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", h.replace(commands))
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = h.dir, terminal.user, log, log
	cmd.Env = append(h.stack.Env(), "PATH="+h.stack.Bin+":"+os.Getenv("PATH"), "NSTANCE_ADMIN_IDENTITY_DIR="+
		h.file("admin"), "NSTANCE_ADMIN_SERVERS="+h.stack.AdminServers())
	if h.key != "" {
		cmd.Env = append(cmd.Env, "NSTANCE_ENCRYPTION_KEY="+h.key)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if until == "" {
		err = <-ended
	} else {
		err = h.interrupt(ctx, cmd, until, ended)
	}
	output, readErr := os.ReadFile(log.Name())
	fmt.Printf("$ %s\n%s\n", strings.TrimSpace(h.replace(commands)), output)
	if err = errors.Join(err, readErr); err != nil {
		return "", fmt.Errorf("%s: %w", commands, err)
	}
	return string(output), nil
}

// interrupt waits for a text in the output and interrupts the commands.
func (h *howTo) interrupt(ctx context.Context, cmd *exec.Cmd, until string, ended chan error) error {
	for {
		output, err := os.ReadFile(h.file("output"))
		if err != nil {
			return err
		}
		if bytes.Contains(output, []byte(until)) {
			break
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended without %q: %w", until, err)
		case <-time.After(50 * time.Millisecond):
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no %q: %w", until, context.Cause(ctx))
		}
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		return err
	}
	<-ended // the status after an interrupt does not matter
	return nil
}

// ask runs nstance-admin and parses the JSON that it prints.
func (h *howTo) ask(ctx context.Context, value any, args string) error {
	output, err := h.shell(ctx, "nstance-admin "+args+" -o json", "")
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(output), value)
}

// write returns a function that changes the configuration and writes it to the file that the page calls FILE.
func (h *howTo) write(change func(*config.Shard)) func(context.Context) error {
	return func(context.Context) error {
		change(h.document)
		return os.WriteFile(h.file("shard.jsonc"), config.Encode(h.document), 0o600)
	}
}

// push returns a function that changes the configuration, writes it to the file that the page calls FILE, and makes the
// leader apply it.
func (h *howTo) push(change func(*config.Shard)) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := h.write(change)(ctx); err != nil {
			return err
		}
		if _, err := h.shell(ctx, "nstance-admin config push FILE --storage-bucket my-bucket --yes", ""); err != nil {
			return err
		}
		_, err := h.operator.Refresh(ctx) // tries again while a leader restarts
		return err
	}
}

// snippet makes the given replacements in the first configuration snippet of a page, and decodes the result.
func snippet(file string, into any, replacements ...string) error {
	text, err := read(file)
	if err != nil {
		return err
	}
	tree, problems := config.ParseTree(file, []byte("{"+strings.NewReplacer(replacements...).Replace(
		blocks(text, "jsonc")[0])+"}"))
	if err := problems.Err(); err != nil {
		return err
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// healthy returns a function that waits until exactly "size" instances exist and are healthy. INSTANCE on the page then
// stands for the first of them.
func (h *howTo) healthy(size int) func(context.Context) error {
	return func(ctx context.Context) error {
		found, err := h.operator.AwaitHealthy(ctx, size)
		if err == nil {
			h.call("INSTANCE", found[0].GetInstanceId())
		}
		return err
	}
}
