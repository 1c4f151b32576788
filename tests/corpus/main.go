// Command corpus copies inputs of fuzz tests from Go's cache into the repository. It copies an input only if the input
// reaches a statement of the tested package that neither the seeds nor a smaller input reach. The copies are in the
// folder testdata/fuzz of the package. Every later test run includes them.
//
// The command never removes inputs from the repository, because they are seeds for the next call.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	pattern := flag.String("pattern", ".", "only targets whose \"package/Name\" matches this regular expression")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: go run ./tests/corpus [-pattern EXPRESSION]\n\n"+
			"Run it in the repository's root after scripts/fuzz.sh: it keeps the inputs that reach something new "+
			"below testdata/fuzz.")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *pattern); err != nil {
		fmt.Fprintln(os.Stderr, "corpus:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pattern string) error {
	expression, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	module, err := exec.CommandContext(ctx, "go", "list", "-m").Output()
	if err != nil {
		return fmt.Errorf("go list -m: %w", err)
	}
	targets := filepath.Join(strings.TrimSpace(string(cache)), "fuzz", strings.TrimSpace(string(module)))
	var found []string
	err = filepath.WalkDir(targets, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "Fuzz") {
			relative, _ := filepath.Rel(targets, path)
			found = append(found, filepath.ToSlash(relative))
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("what was fuzzed: %w", err)
	}
	var errs []error
	for _, name := range found {
		if !expression.MatchString(name) {
			continue
		}
		t := target{pkg: filepath.FromSlash(filepath.Dir(name)), name: filepath.Base(name),
			cached: filepath.Join(targets, name)}
		if _, err := os.Stat(t.pkg); err != nil {
			continue // of an older state of the tree
		}
		kept, of, err := t.keep(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		fmt.Printf("%-70s %3d of %4d kept\n", name, kept, of)
	}
	return errors.Join(errs...)
}

// target is one fuzz target. "cached" is the directory of the target's inputs in Go's cache.
type target struct{ pkg, name, cached string }

// keep copies the cached inputs that reach new statements. It tries the smallest input first. It returns the number of
// copied inputs and the number of all cached inputs.
func (t target) keep(ctx context.Context) (kept, of int, err error) {
	dir, err := os.MkdirTemp("", "nstance-corpus-")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, "target.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-cover", "-o", binary, "./"+
		t.pkg).CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("build: %w: %s", err, out)
	}
	// The target runs in a copy of its package's folder. The copy is beside the original, so that relative paths still
	// work. Only the input under test is in the copy's corpus.
	work, err := os.MkdirTemp(filepath.Dir(t.pkg), ".corpus-")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.CopyFS(work, os.DirFS(t.pkg)); err != nil {
		return 0, 0, err
	}
	reached := map[string]bool{}
	if _, err := t.play(ctx, binary, work, "^"+t.name+"$", reached); err != nil {
		return 0, 0, fmt.Errorf("its seeds: %w", err)
	}
	corpus := filepath.Join(work, "testdata", "fuzz", t.name)
	if err := errors.Join(os.RemoveAll(corpus), os.MkdirAll(corpus, 0o755)); err != nil {
		return 0, 0, err
	}
	inputs, err := t.inputs()
	if err != nil {
		return 0, 0, err
	}
	for _, input := range inputs {
		body, err := os.ReadFile(filepath.Join(t.cached, input))
		if err != nil {
			return kept, len(inputs), err
		}
		there := filepath.Join(corpus, input)
		if err := os.WriteFile(there, body, 0o644); err != nil {
			return kept, len(inputs), err
		}
		fresh, err := t.play(ctx, binary, work, "^"+t.name+"$/^"+input+"$", reached)
		if err != nil {
			return kept, len(inputs), fmt.Errorf("input %s: %w", input, err)
		}
		if err := os.Remove(there); err != nil {
			return kept, len(inputs), err
		}
		if fresh == 0 {
			continue
		}
		kept++
		to := filepath.Join(t.pkg, "testdata", "fuzz", t.name)
		if err := errors.Join(os.MkdirAll(to, 0o755), os.WriteFile(filepath.Join(to, input), body, 0o644)); err != nil {
			return kept, len(inputs), err
		}
	}
	return kept, len(inputs), nil
}

// inputs returns the names of the cached inputs, the smallest first.
func (t target) inputs() ([]string, error) {
	entries, err := os.ReadDir(t.cached)
	if err != nil {
		return nil, err
	}
	size := func(e fs.DirEntry) int64 {
		if info, err := e.Info(); err == nil {
			return info.Size()
		}
		return 0
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return cmp.Or(cmp.Compare(size(a), size(b)), cmp.Compare(a.Name(), b.Name()))
	})
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// play runs the tests that match a pattern. It adds the statements that these tests cover to a set, and returns how
// many of them are new in the set.
func (t target) play(ctx context.Context, binary, work, tests string, reached map[string]bool) (fresh int, err error) {
	profile := filepath.Join(filepath.Dir(binary), "cover.out")
	command := exec.CommandContext(ctx, binary, "-test.run", tests, "-test.coverprofile", profile, "-test.timeout",
		"1m")
	command.Dir = work
	if out, err := command.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	f, err := os.Open(profile)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// name.go:line.column,line.column statements count
		block, count, ok := cutLast(lines.Text())
		if ok && count != "0" && strings.Contains(block, ".go:") && !reached[block] {
			reached[block] = true
			fresh++
		}
	}
	return fresh, lines.Err()
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ' ')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}
