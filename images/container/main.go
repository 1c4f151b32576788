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
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nstance-kit/nstance/images/container/build"
	"github.com/nstance-kit/nstance/images/container/oci"
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
	root, err := build.Output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	spec := oci.Spec{Program: *program, Version: *version, Revision: *revision}
	if spec.Version == "" {
		if spec.Version, err = build.Output(ctx, root, "git", "describe", "--tags", "--always", "--dirty"); err != nil {
			return err
		}
	}
	if spec.Revision == "" {
		if spec.Revision, err = build.Output(ctx, root, "git", "rev-parse", "HEAD"); err != nil {
			return err
		}
	}
	if spec.Created, err = build.Created(ctx, root); err != nil {
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
		target := build.Target{Package: "./services/cmd/" + spec.Program, Version: spec.Version, OS: "linux",
			Architecture: architecture}
		if err := build.Compile(ctx, root, target, binary); err != nil {
			return err
		}
		spec.Binaries = append(spec.Binaries, oci.Binary{Architecture: architecture, Path: binary})
	}
	index, err := oci.Index(spec)
	if err != nil {
		return err
	}
	if err := oci.Write(*out, index); err != nil {
		return err
	}
	if *push != "" {
		if err := oci.Push(ctx, *push, *insecure, index); err != nil {
			return err
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, digest)
	return nil
}
