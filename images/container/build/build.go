// Package build compiles the programs of this repository for releases and images. The same source, version and Go
// release give the same binary.
package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Target is one binary.
type Target struct {
	Package          string // such as ./services/cmd/nstance-server
	Version          string // what the program reports
	OS, Architecture string
	Trial            bool // without the clouds that a cluster on one machine does not use
}

// Compile builds a static binary in the repository with the flags of `make build`.
func Compile(ctx context.Context, root string, t Target, binary string) error {
	tags := "grpcnotrace"
	if t.Trial {
		tags += ",trial"
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", tags,
		"-ldflags", "-s -w -buildid= -X main.version="+t.Version, "-o", binary, t.Package)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.OS, "GOARCH="+t.Architecture, "GOFLAGS=", "GOWORK=off",
		"GOAMD64=v1", "GOARM64=v8.0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w", t.Package, t.OS, t.Architecture, err)
	}
	return nil
}

// Created returns SOURCE_DATE_EPOCH if it is set (https://reproducible-builds.org/specs/source-date-epoch/), or else
// the time of the repository's last commit.
func Created(ctx context.Context, root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		var err error
		if text, err = Output(ctx, root, "git", "log", "-1", "--format=%ct"); err != nil {
			return time.Time{}, err
		}
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("time of creation: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// Output runs a program in a directory and returns its output without the last line break.
func Output(ctx context.Context, dir, program string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Dir = dir
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(text)), nil
}
