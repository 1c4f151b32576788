// Command demo plays the whole life of a shard on this machine, with real programs, and prints a timeline of measured
// times: `make demo`.
//
// It exits 0 only if every step did what it should, and leaves nothing behind in either case.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nstance-kit/nstance/tests/local"
)

func main() {
	root := flag.String("root", ".", "the repository")
	terraform := flag.String("terraform", "", "path of tofu or terraform")
	keep := flag.Bool("keep", false, "keep the directory with logs, bucket and disks")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *terraform, *keep); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: FAILED: %v\n", err)
		os.Exit(1)
	}
}

// run makes a stack of its own in a temporary directory, plays the story on it, and cleans up.
func run(ctx context.Context, root, terraform string, keep bool) (err error) {
	ports, release, err := local.ReservePorts(ctx, servers)
	if err != nil {
		return err
	}
	defer release()
	dir, err := os.MkdirTemp("", "nstance-demo-")
	if err != nil {
		return err
	}
	stack, err := local.New(local.Options{Root: root, Dir: dir, Ports: ports})
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		// Cleaning up must not be interrupted by what interrupted the story.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err != nil && ctx.Err() == nil {
			stack.Tails(os.Stderr, 25)
		}
		if keep {
			fmt.Fprintf(os.Stderr, "demo: %s is kept\n", dir)
			err = errors.Join(err, stack.KillAll(clean))
			return
		}
		err = errors.Join(err, stack.Clean(clean))
	}()
	s := &story{stack: stack, out: os.Stdout}
	if s.terraform, err = stack.Terraform(terraform); err != nil {
		return err
	}
	if err := s.play(ctx); err != nil {
		return err
	}
	s.timeline.print(os.Stdout)
	return nil
}
