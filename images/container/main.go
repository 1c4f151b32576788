// Command container builds the container image of a program of this repository. The image contains the static binary
// for each architecture, the public root certificates and an unprivileged user. The build needs no container engine and
// downloads nothing.
//
//	go -C images/container run . -program nstance-operator -out ../../bin/nstance-operator-image \
//		[-push registry.example.com/nstance-operator:1.0.0]
//
// The result is an OCI image layout (https://github.com/opencontainers/image-spec/blob/main/image-layout.md) with an
// image for each architecture and a bill of materials for each image. The same source gives the same digest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("container", flag.ContinueOnError)
	program := flags.String("program", "nstance-operator", "program under services/cmd")
	out := flags.String("out", "", "folder for the image layout; replaced when it is one")
	push := flags.String("push", "", "also push it under this name, with the credentials of the container tools")
	insecure := flags.Bool("insecure", false, "push over plain HTTP")
	architectures := flags.String("architectures", "amd64,arm64", "Linux architectures, separated by commas")
	version := flags.String("version", "", "version of the program (default: from git describe)")
	revision := flags.String("revision", "", "commit that it is built from (default: HEAD)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() > 0 {
		return errors.New("usage: container -out DIR [flags]")
	}
	root, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	spec := Spec{Program: *program, Version: *version, Revision: *revision}
	if spec.Version == "" {
		if spec.Version, err = output(ctx, root, "git", "describe", "--tags", "--always", "--dirty"); err != nil {
			return err
		}
	}
	if spec.Revision == "" {
		if spec.Revision, err = output(ctx, root, "git", "rev-parse", "HEAD"); err != nil {
			return err
		}
	}
	if spec.Created, err = created(ctx, root); err != nil {
		return err
	}
	if spec.License, err = os.ReadFile(filepath.Join(root, "LICENSE")); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "nstance-container-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	for architecture := range strings.SplitSeq(*architectures, ",") {
		binary := filepath.Join(work, architecture)
		if err := compile(ctx, root, spec, architecture, binary); err != nil {
			return err
		}
		spec.Binaries = append(spec.Binaries, Binary{Architecture: architecture, Path: binary})
	}
	index, err := Index(spec)
	if err != nil {
		return err
	}
	if err := write(*out, index); err != nil {
		return err
	}
	if *push != "" {
		options := []name.Option{}
		if *insecure {
			options = append(options, name.Insecure)
		}
		reference, err := name.ParseReference(*push, options...)
		if err != nil {
			return fmt.Errorf("name to push: %w", err)
		}
		if err := remote.WriteIndex(reference, index, remote.WithContext(ctx),
			remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push: %w", err)
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, digest)
	return nil
}

// compile builds the program for Linux on an architecture, with the flags of `make build`.
func compile(ctx context.Context, root string, spec Spec, architecture, binary string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace",
		"-ldflags", "-s -w -buildid= -X main.version="+spec.Version, "-o", binary, "./services/cmd/"+spec.Program)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture, "GOFLAGS=", "GOAMD64=v1",
		"GOARM64=v8.0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build %s for %s: %w", spec.Program, architecture, err)
	}
	return nil
}

// created returns SOURCE_DATE_EPOCH if it is set (https://reproducible-builds.org/specs/source-date-epoch/), else the time
// of the commit.
func created(ctx context.Context, root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = output(ctx, root, "git", "log", "-1", "--format=%ct"); err != nil {
			return time.Time{}, err
		}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("time of creation: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Dir = dir
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(text)), nil
}

// write writes an image layout. It replaces an existing image layout and refuses to replace anything else.
func write(dir string, index v1.ImageIndex) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
			return fmt.Errorf("%s is there and is no image layout", dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	if err := path.AppendIndex(index); err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	return nil
}
