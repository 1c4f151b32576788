package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/suggest"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// usageError means that the command line is wrong.
type usageError struct {
	err     error
	command string // command with the relevant help
	hint    string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{err: fmt.Errorf(format, args...)} }

// usageOf returns the error of a wrong command line, or nil if err is nil.
func usageOf(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err: err, command: cmd.CommandPath()}
}

// flagError returns the error about a flag, with what the user probably meant.
func flagError(cmd *cobra.Command, err error) error {
	usage := &usageError{err: err, command: cmd.CommandPath()}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --"); unknown {
		if near := suggest.Nearest(name, names); near != "" {
			usage.hint = "did you mean --" + near + "?"
		}
	}
	if strings.Contains(err.Error(), "missing unit in duration") || strings.Contains(err.Error(), "invalid duration") {
		usage.hint = "a duration is a number with a unit, such as 90s, 5m or 24h"
	}
	if text, _, number := strings.Cut(err.Error(), ": strconv."); number {
		usage.err, usage.hint = errors.New(text), "give a number"
	}
	return usage
}

// exclusive matches cobra's error about flags that exclude each other.
var exclusive = regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; ` +
	`\[(\S+) (\S+)\] were all set$`)

// ownWords replaces an error of cobra by one in the words of this program.
func ownWords(err error) error {
	if flags := exclusive.FindStringSubmatch(err.Error()); flags != nil {
		return &usageError{err: fmt.Errorf("--%s and --%s exclude each other", flags[1], flags[2]),
			hint: "leave out one of them"}
	}
	return &usageError{err: err}
}

// near returns a hint with the name that is most similar to a name, and with all names.
func near(name string, names []string) (hint string) {
	if found := suggest.Nearest(name, names); found != "" {
		hint = fmt.Sprintf("did you mean %q? ", found)
	}
	return hint + "there are: " + list(names)
}

// hintedError is an error with a hint about what to do next.
type hintedError struct {
	err  error
	hint string
}

func (e *hintedError) Error() string { return e.err.Error() }
func (e *hintedError) Unwrap() error { return e.err }

func withHint(err error, format string, args ...any) error {
	return &hintedError{err, fmt.Sprintf(format, args...)}
}

// shardsError means that some shards failed.
type shardsError struct {
	errs []*fleet.Error
	of   int
}

func (e *shardsError) Error() string {
	if e.of == 1 && len(e.errs) == 1 {
		return e.errs[0].Error()
	}
	return fmt.Sprintf("%d of %s failed", len(e.errs), count(e.of, "shard"))
}

// failuresOf returns an error about the shards that failed, or nil.
func failuresOf[T fleet.Result](answers []T) error {
	if failed := fleet.Failed(answers); len(failed) > 0 {
		return &shardsError{failed, len(answers)}
	}
	return nil
}

// report prints an error and what to do next.
func (a *app) report(err error) {
	if shards, ok := errors.AsType[*shardsError](err); ok {
		first, all := shards.errs[0], shards.of > 1 && len(shards.errs) == shards.of
		if all && !slices.ContainsFunc(shards.errs, func(e *fleet.Error) bool {
			return e.Message != first.Message || e.Hint != first.Hint
		}) {
			a.complain(fmt.Sprintf("each of %s: %s", count(shards.of, "shard"), first.Message), first.Hint)
			return
		}
		for _, e := range shards.errs {
			a.complain(e.Error(), e.Hint)
		}
		if shards.of > 1 {
			a.complain(shards.Error(), "")
		}
		return
	}
	hint := a.hintOf(err)
	if usage, ok := errors.AsType[*usageError](err); ok {
		switch {
		case usage.hint != "":
			hint = usage.hint
		case usage.command != "":
			hint = fmt.Sprintf("%s --help shows how it is used", usage.command)
		default:
			hint = "nstance-admin --help lists the commands; each has its own --help"
		}
	}
	a.complain(err.Error(), hint)
}

func (a *app) complain(message, hint string) {
	fmt.Fprintf(a.Stderr, "%s %s\n", a.style.err.bad("Error:"), message)
	if hint != "" {
		fmt.Fprintf(a.Stderr, "%s %s\n", a.style.err.dim("Next: "), hint)
	}
}

// named lists, in a sentence, those of the given flags that the running command has.
func (a *app) named(flags ...string) string {
	flags = slices.DeleteFunc(flags, func(name string) bool {
		return a.running == nil || a.running.Flag(strings.TrimPrefix(name, "--")) == nil
	})
	if n := len(flags); n > 1 {
		return strings.Join(flags[:n-1], ", ") + " and " + flags[n-1]
	}
	return strings.Join(flags, "")
}

// hintOf returns what to do about an error, or "" if that is not known. It names only flags that the running command
// has.
func (a *app) hintOf(err error) string {
	var hinted *hintedError
	switch {
	case objstore.Interrupted(err):
		return ""
	case errors.As(err, &hinted):
		return hinted.hint
	case errors.Is(err, envelope.ErrUnknownKey):
		return "give the key that sealed it: NSTANCE_ENCRYPTION_KEY, or --key-provider and --key-source; keys from " +
			"before a rotation with --old-key"
	case errors.Is(err, envelope.ErrAuthentication):
		return "it was sealed for another cluster or name, or was changed: check " +
			a.named("--cluster-id", "--storage-prefix")
	case errors.Is(err, secretstore.ErrNoKey):
		return "set NSTANCE_ENCRYPTION_KEY, or name another source with --key-provider and --key-source"
	case errors.Is(err, clusterstate.ErrForeign):
		return "check " + a.named("--cluster-id", "--storage-bucket", "--storage-prefix")
	case errors.Is(err, clusterstate.ErrCALost):
		return "nstance-admin cluster secret set ca.key restores it from a backup"
	case errors.Is(err, authority.ErrCAValidity):
		return "check this machine's clock"
	case errors.Is(err, syscall.ENOSPC):
		return "its disk is full: free space or enlarge it"
	case errors.Is(err, objstore.ErrUnconditional):
		return "use a bucket that honours conditional writes"
	}
	if hint := open.Hint(err); hint != "" {
		return hint
	}
	switch {
	case errors.Is(err, objstore.ErrIndeterminate) && !errors.Is(err, objstore.ErrNotSent):
		return "it is unknown whether it was written; check, and run the command again"
	case errors.Is(err, context.DeadlineExceeded):
		return "the bucket did not answer in time; a longer --storage-timeout waits longer"
	case errors.Is(err, fs.ErrNotExist):
		return "check the path: it is relative to the directory in which the command runs"
	}
	return ""
}
