// Command release builds everything that a release of Nstance publishes, into one directory. It needs Go and git, and
// downloads only Go modules. The same source, version and Go release give the same bytes.
//
//	go -C scripts/release run . -version v0.2.0 -out ../../dist
//
// docs/contributing/releases.md lists the released files and the signing keys.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/semver"

	"github.com/nstance-kit/nstance/images/container/build"
)

const (
	source      = "https://github.com/nstance-kit/nstance"
	platformSet = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release holds the settings and the state of one build of a release.
type release struct {
	Root     string // of the repository
	Dir      string // what is published, during the build
	Work     string // other files
	Version  string // such as v0.2.0
	Number   string // such as 0.2.0
	Revision string // the commit
	Created  time.Time
	License  []byte
	// Platforms are pairs such as linux/amd64.
	Platforms []string
	// URL is the address of the releases. The files of this release are at URL/Version.
	URL string
	// Registry is where images are published, such as ghcr.io/nstance-kit.
	Registry       string
	Push, Insecure bool
	Keys           keys
	Log            io.Writer

	digests []subject // of the images
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	r := release{Log: stderr}
	flags.StringVar(&r.Version, "version", "", "semantic version with a v, such as v0.2.0")
	out := flags.String("out", "", "directory of the release; replaced when it is one")
	platforms := flags.String("platforms", platformSet, "platforms, separated by commas")
	flags.StringVar(&r.Revision, "revision", "", "commit that it is built from (default: HEAD of the repository)")
	flags.StringVar(&r.URL, "url", source+"/releases/download", "address of all releases")
	flags.StringVar(&r.Registry, "registry", "ghcr.io/nstance-kit", "registry and namespace of the images")
	flags.BoolVar(&r.Push, "push", false, "push images and chart to the registry")
	flags.BoolVar(&r.Insecure, "insecure", false, "push over plain HTTP")
	strict := flags.Bool("strict", false, "fail where the release would only warn")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() > 0 {
		return errors.New("usage: release -version vMAJOR.MINOR.PATCH -out DIR [flags]")
	}
	r.Platforms = strings.Split(*platforms, ",")
	if err := r.prepare(ctx); err != nil {
		return err
	}
	warnings, err := r.check(ctx)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		fmt.Fprintln(stderr, "release: WARNING:", warning)
	}
	if *strict && len(warnings) > 0 {
		return errors.New("-strict: mend what the warnings say")
	}
	if err := replaceable(*out); err != nil {
		return err
	}
	parent := filepath.Dir(filepath.Clean(*out))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if r.Work, err = os.MkdirTemp(parent, ".release-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(r.Work) }()
	if err := r.build(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(*out); err != nil {
		return err
	}
	if err := os.Rename(r.Dir, *out); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, *out)
	return err
}

// prepare checks the flags and reads the commit, the time and the signing keys of the release.
func (r *release) prepare(ctx context.Context) (err error) {
	if !semver.IsValid(r.Version) || semver.Canonical(r.Version) != r.Version {
		return fmt.Errorf("version %q is not vMAJOR.MINOR.PATCH or vMAJOR.MINOR.PATCH-PRERELEASE", r.Version)
	}
	r.Number = strings.TrimPrefix(r.Version, "v")
	platform := regexp.MustCompile(`^(linux|darwin)/(amd64|arm64)$`)
	for _, p := range r.Platforms {
		if !platform.MatchString(p) {
			return fmt.Errorf("platform %q is none of %s", p, platformSet)
		}
	}
	if r.Root, err = root(); err != nil {
		return err
	}
	if r.Revision == "" {
		if r.Revision, err = build.Output(ctx, r.Root, "git", "rev-parse", "HEAD"); err != nil {
			return err
		}
	}
	if r.Created, err = build.Created(ctx, r.Root); err != nil {
		return err
	}
	if r.License, err = os.ReadFile(filepath.Join(r.Root, "LICENSE")); err != nil {
		return err
	}
	r.Keys, err = readKeys()
	return err
}

// root returns the nearest parent of the working directory with the main module of the repository.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "services", "cmd")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("the working directory is outside the repository")
}

// check looks for faults of the release. It returns a warning for a fault that is tolerable without -strict, and an
// error for any other fault.
func (r *release) check(ctx context.Context) (warnings []string, err error) {
	metadata, err := os.ReadFile(filepath.Join(r.Root, "services/operator/clusterctl/metadata.yaml"))
	if err != nil {
		return nil, err
	}
	if err := checkSeries(metadata, r.Number); err != nil {
		return nil, err
	}
	changes, err := os.ReadFile(filepath.Join(r.Root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	if !strings.Contains(string(changes), "\n## ["+r.Number+"] - ") {
		warnings = append(warnings, "CHANGELOG.md has no section for "+r.Number)
	}
	if r.Keys.minisign == nil {
		warnings = append(warnings, "SHA256SUMS is not signed: NSTANCE_MINISIGN_KEY is not set")
	}
	if r.Keys.gpg == nil {
		warnings = append(warnings, "the Terraform provider is not signed, and no registry accepts it: "+
			"NSTANCE_GPG_KEY is not set")
	}
	if _, err := os.Stat(filepath.Join(r.Root, ".git")); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return append(warnings, "this is no git repository: nothing shows that the source is that of "+r.Revision), nil
	}
	changed, err := build.Output(ctx, r.Root, "git", "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if changed != "" {
		warnings = append(warnings, "the work tree has changes that are not in "+r.Revision)
	}
	tags, err := build.Output(ctx, r.Root, "git", "tag", "--points-at", r.Revision)
	if err != nil {
		return nil, err
	}
	if !strings.Contains("\n"+tags+"\n", "\n"+r.Version+"\n") {
		warnings = append(warnings, "no tag "+r.Version+" points at "+r.Revision)
	}
	return warnings, nil
}

// replaceable returns an error unless dir is missing, is empty, or contains an earlier release.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, sums)); err != nil {
		return fmt.Errorf("%s is there and has no %s: remove it, or give another directory", dir, sums)
	}
	return nil
}

func (r *release) build(ctx context.Context) error {
	r.Dir = filepath.Join(r.Work, "dist")
	for _, dir := range []string{r.Dir, filepath.Join(r.Work, "bin")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"compile", r.compile}, {"archives", r.archives}, {"trial", r.trial}, {"packages", r.packages},
		{"Kubernetes", r.kubernetes},
		{"Terraform provider", r.provider}, {"modules and examples", r.modules}, {"images", r.images},
		{"bills of materials", r.bills}, {"provenance", r.provenance}, {"checksums", r.checksums},
	} {
		fmt.Fprintln(r.Log, "release:", step.name)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}
