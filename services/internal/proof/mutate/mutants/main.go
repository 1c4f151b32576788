// Command mutants tells which deliberate bugs the own tests of a package do not notice.
//
//	go run ./services/internal/proof/mutate/mutants ./services/internal/server/journal ./services/contract/...
//
// It builds the tests of each package once, with all bugs of [mutate.Plant] in it, and runs each test alone to see
// which bugs it reaches. For each bug it then runs the tests that reach it, the fastest first. A bug is noticed if a
// test fails or does not end.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/services/internal/proof/mutate"
)

func main() {
	sample := flag.Int("every", 1, "try only every `n`th bug")
	budget := flag.Duration("budget", 0, "stop trying bugs of a package after this time (0: no limit)")
	jobs := flag.Int("jobs", runtime.GOMAXPROCS(0), "try this many bugs at the same time")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: mutants [flags] PACKAGE...\n\n"+
			"Prints the deliberate bugs that the own tests of the packages do not notice.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Args(), *sample, *budget, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, patterns []string, sample int, budget time.Duration, jobs int) error {
	out, err := exec.CommandContext(ctx, "go", append([]string{"list",
		"-json=Dir,ImportPath,Name,GoFiles,TestGoFiles,XTestGoFiles"},
		patterns...)...).Output()
	if err != nil {
		return fmt.Errorf("list %s: %w", strings.Join(patterns, " "), err)
	}
	for list := json.NewDecoder(bytes.NewReader(out)); list.More(); {
		var p target
		if err := list.Decode(&p); err != nil {
			return err
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			fmt.Printf("%s: no tests\n", p.ImportPath)
			continue
		}
		if err := p.try(ctx, sample, budget, jobs); err != nil {
			fmt.Printf("%s: %v\n", p.ImportPath, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// target is a package, as `go list` prints it.
type target struct {
	Dir, ImportPath, Name              string
	GoFiles, TestGoFiles, XTestGoFiles []string

	mutants map[int]string // position and text, by ID
}

// attempts limits the builds of a package. Each one leaves out the lines that did not compile in the one before.
const attempts = 12

func (p *target) try(ctx context.Context, sample int, budget time.Duration, jobs int) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "tests")
	if err := p.build(ctx, dir, binary); err != nil {
		return err
	}
	reaching, err := p.survey(ctx, dir, binary, jobs)
	if err != nil {
		return err
	}
	ids := slices.Sorted(maps.Keys(reaching))
	all := ids
	ids = nil
	for i, id := range all {
		if i%sample == 0 {
			ids = append(ids, id)
		}
	}
	if budget > 0 {
		// Every run tries the same part of the bugs first, and this part covers the whole package.
		rand.New(rand.NewPCG(1, 1)).Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	}
	tried, survivors, err := p.hunt(ctx, binary, ids, reaching, budget, jobs)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d bugs, %d reached, %d tried, %d not noticed\n", p.ImportPath, len(p.mutants), len(all), tried,
		len(survivors))
	slices.Sort(survivors)
	for _, id := range survivors {
		fmt.Printf("\t%s\n", p.mutants[id])
	}
	return nil
}

// trial is one test of a package, and how long it takes without a bug.
type trial struct {
	name string
	took time.Duration
}

// survey runs each test alone. It returns the tests that reach each bug, the fastest first.
func (p *target) survey(ctx context.Context, dir, binary string, jobs int) (map[int][]trial, error) {
	list := exec.CommandContext(ctx, binary, "-test.list", ".")
	list.Dir = p.Dir
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	var mu sync.Mutex
	reaching := map[int][]trial{}
	var failed error
	each(jobs, slices.Collect(strings.SplitSeq(strings.TrimSpace(string(out)), "\n")), func(name string) {
		if strings.HasPrefix(name, "Benchmark") {
			return
		}
		reached, began := filepath.Join(dir, name), time.Now()
		out, err := p.test(ctx, binary, []string{name}, 10*time.Minute, "MUTANTS_REACHED="+reached)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s fails without a bug: %w\n%s", name, err, tail(out)))
			return
		}
		text, _ := os.ReadFile(reached) // missing if the test reaches no bug
		for line := range strings.FieldsSeq(string(text)) {
			if id, err := strconv.Atoi(line); err == nil {
				reaching[id] = append(reaching[id], trial{name, time.Since(began)})
			}
		}
	})
	for _, trials := range reaching {
		slices.SortFunc(trials, func(a, b trial) int { return cmp.Compare(a.took, b.took) })
	}
	return reaching, failed
}

// each calls f with every element of a list, for several elements at the same time.
func each[E any](jobs int, list []E, f func(E)) {
	var wg sync.WaitGroup
	queue := make(chan E)
	for range jobs {
		wg.Go(func() {
			for e := range queue {
				f(e)
			}
		})
	}
	for _, e := range list {
		queue <- e
	}
	close(queue)
	wg.Wait()
}

// few is how many of the fastest tests that reach a bug run first.
const few = 3

// noticed reports whether one of the tests that reach a bug fails with it.
func (p *target) noticed(ctx context.Context, binary string, id int, trials []trial) bool {
	for len(trials) > 0 {
		n := min(few, len(trials))
		if trials[0].took > time.Second {
			n = len(trials)
		}
		var names []string
		limit := 10 * time.Second
		for _, t := range trials[:n] {
			names = append(names, t.name)
			limit += 3 * t.took
		}
		if _, err := p.test(ctx, binary, names, limit, fmt.Sprintf("MUTANT=%d", id)); err != nil {
			return true
		}
		trials = trials[n:]
	}
	return false
}

// hunt returns the bugs that no test noticed.
func (p *target) hunt(ctx context.Context, binary string, ids []int, reaching map[int][]trial, budget time.Duration,
	jobs int) (tried int, survivors []int, err error) {
	if budget > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, budget)
		defer cancel()
	}
	var mu sync.Mutex
	each(jobs, ids, func(id int) {
		if ctx.Err() != nil {
			return
		}
		noticed := p.noticed(ctx, binary, id, reaching[id])
		if ctx.Err() != nil {
			return // the test was killed
		}
		mu.Lock()
		defer mu.Unlock()
		tried++
		if !noticed {
			survivors = append(survivors, id)
		}
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return tried, survivors, nil
	}
	return tried, survivors, ctx.Err()
}

// isolation returns the words before a command that give it a PID namespace: a bug may kill every process that it sees,
// and a test that is killed leaves processes. They are empty on a system without such namespaces.
var isolation = sync.OnceValue(func() []string {
	words := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		words = append(words, "--user", "--map-current-user")
	}
	// The shell is the namespace's first process, which signals from the namespace do not kill.
	words = append(words, "sh", "-c", `"$@"; exit $?`, "sh")
	if exec.Command(words[0], append(words[1:], "true")...).Run() != nil {
		return nil
	}
	return slices.Clip(words)
})

// test runs some tests of the package.
func (p *target) test(ctx context.Context, binary string, names []string, limit time.Duration, env string) ([]byte,
	error) {
	words := append(isolation(), binary, "-test.run", "^("+strings.Join(names, "|")+")$", "-test.short",
		"-test.failfast", "-test.timeout", limit.String())
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // kill(0) in a test must not end this program
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

// complaint is a line of the compiler's output.
var complaint = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: `)

// build builds the tests of the package with all bugs in it.
func (p *target) build(ctx context.Context, dir, binary string) error {
	skipped := map[string]map[int]bool{}
	for _, name := range p.GoFiles {
		skipped[name] = map[int]bool{}
	}
	for range attempts {
		overlay, err := p.overlay(dir, skipped)
		if err != nil {
			return err
		}
		build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", overlay, "-gcflags=-e", "-o", binary,
			p.ImportPath)
		out, err := build.CombinedOutput()
		if err == nil {
			return nil
		}
		complaints := complaint.FindAllSubmatch(out, -1)
		for _, c := range complaints {
			line, err := strconv.Atoi(string(c[2]))
			if lines := skipped[filepath.Base(string(c[1]))]; err == nil && lines != nil {
				lines[line] = true
			}
		}
		if len(complaints) == 0 {
			return fmt.Errorf("build: %w\n%s", err, tail(out))
		}
	}
	return errors.New("build: it still does not compile after leaving out what did not")
}

// overlay writes the package's files with bugs, and the file for the go command's flag -overlay.
func (p *target) overlay(dir string, skipped map[string]map[int]bool) (string, error) {
	p.mutants = map[int]string{}
	replace := map[string]string{}
	write := func(name string, content []byte) error {
		replace[filepath.Join(p.Dir, name)] = filepath.Join(dir, name)
		return os.WriteFile(filepath.Join(dir, name), content, 0o600)
	}
	for _, name := range p.GoFiles {
		src, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return "", err
		}
		src, mutants, err := mutate.Plant(src, len(p.mutants)+1, func(line int) bool { return skipped[name][line] })
		if err != nil {
			return "", err
		}
		for _, m := range mutants {
			p.mutants[m.ID] = fmt.Sprintf("%s:%d: %s", name, m.Line, m)
		}
		if err := write(name, src); err != nil {
			return "", err
		}
	}
	if err := write("mutants_switch.go", mutate.Switch(p.Name)); err != nil {
		return "", err
	}
	listing, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, listing, 0o600)
}

// tail returns the end of an output.
func tail(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
