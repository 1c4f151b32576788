package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/api/tunnel"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/contexts"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/lastknown"
)

// The environment variables of settings that messages name.
var (
	envServers  = contexts.Variable("servers")
	envIdentity = contexts.Variable("identity-dir")
	envShard    = contexts.Variable("shard")
	envBucket   = contexts.Variable("storage-bucket")
)

// scope holds the flags of commands that call shards.
type scope struct {
	servers, via, identityDir, shard string
	all                              bool
	timeout                          time.Duration
	// reader is the command if it shows what is last known when no leader answers. It is nil for other commands.
	reader *cobra.Command
}

// readsOnly is an annotation of commands with [readFlags].
const readsOnly = "nstance-reads-only"

// readFlags adds the flags of scope to a command that only reads. If no shard is named, it asks all of them. If no
// leader answers, it shows what the bucket says, if a bucket is named.
func readFlags(cmd *cobra.Command) *scope {
	s := scopeFlags(cmd)
	s.reader = cmd
	cmd.Annotations = map[string]string{readsOnly: ""}
	cmd.Flag("shard").Usage = "the shard to ask; all in --servers if not given"
	cmd.Flags().String("storage-bucket", "", "the bucket, to show what is last known if no leader answers; "+
		"the other --storage flags of doctor work too")
	scratch := new(cobra.Command)
	new(bucketFlags).add(scratch)
	scratch.Flags().VisitAll(func(flag *pflag.Flag) {
		if cmd.Flag(flag.Name) == nil { // in the help of all commands, they would hide what matters
			flag.Hidden = true
			cmd.Flags().AddFlag(flag)
		}
	})
	return s
}

// scopeFlags adds the flags of scope to a command.
func scopeFlags(cmd *cobra.Command) *scope {
	s := new(scope)
	s.reach(cmd)
	cmd.Flags().StringVar(&s.shard, "shard", "",
		"the shard to ask; not needed if there is only one in --servers")
	cmd.Flags().BoolVar(&s.all, "all-shards", false,
		"ask every shard in --servers; after a failure, ask the others and exit with 1")
	cmd.MarkFlagsMutuallyExclusive("shard", "all-shards")
	return s
}

// reach adds to a command the flags that every call to a shard needs.
func (s *scope) reach(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.servers, "servers", "",
		"operator addresses as shard=host:port,…; several of one shard are tried in turn")
	cmd.Flags().StringVar(&s.via, "via", "",
		"ways to servers that this machine cannot reach, as shard=WAY,…; a WAY is "+tunnel.Forms)
	cmd.Flags().StringVar(&s.identityDir, "identity-dir", "", "directory with "+operatorclient.CAFile+", "+
		operatorclient.CertificateFile+" and "+operatorclient.KeyFile)
	cmd.Flags().DurationVar(&s.timeout, "request-timeout", 30*time.Second, "how long one call to one shard may take")
}

// fleet returns a fleet with the servers and the identity that the flags select. The caller must close it.
func (a *app) fleet(s *scope) (*fleet.Fleet, error) {
	servers, err := endpoints.Parse(s.servers)
	switch {
	case err != nil:
		return nil,
			&usageError{err: fmt.Errorf("server %w", err),
				hint: "--servers us-west-2a=10.0.0.100:8993,us-west-2b=10.0.1.100:8993"}
	case len(servers) == 0:
		return nil, &usageError{err: errors.New("no shard's address is given"),
			hint: "give them with --servers shard=host:port,… or in " +
				envServers + ", or choose a context with nstance-admin context use"}
	case s.timeout <= 0:
		return nil, usagef("--request-timeout %s is not more than zero", s.timeout)
	}
	via, err := waysTo(servers, s.via)
	if err != nil {
		return nil, err
	}
	dir := s.identityDir
	if dir == "" {
		return nil, &usageError{err: errors.New("no identity directory is given"),
			hint: "give it with --identity-dir or in " + envIdentity +
				"; nstance-admin cluster register-operator makes one"}
	}
	options := fleet.Options{Servers: servers, Via: via, IdentityDir: dir, Timeout: s.timeout, Now: a.Now, Rand: a.Rand}
	if s.reader != nil {
		options.LastKnown = bucketReader(sync.OnceValues(func() (*lastknown.Reader, error) {
			return a.lastKnown(s.reader)
		}))
	}
	f := fleet.New(options)
	identity, err := f.Identity()
	if err != nil {
		return nil, withHint(err, "make one with: nstance-admin cluster register-operator --output-dir %s", dir)
	}
	if now := a.Now(); now.Before(identity.Leaf.NotAfter) && now.After(authority.RenewAt(identity.Leaf)) {
		a.note("The certificate in %s ends at %s; nstance-admin cluster register-operator --output-dir %s renews it.",
			dir, stamp(identity.Leaf.NotAfter), dir)
	}
	return f, nil
}

// waysTo reads the setting "via". Each way must lead to one of the shards.
func waysTo(servers []endpoints.Shard, text string) (map[string]tunnel.Way, error) {
	ways, err := tunnel.Parse(text)
	if err != nil {
		return nil, &usageError{err: fmt.Errorf("--via: %w", err), hint: "--via us-west-2a=127.0.0.1:8993"}
	}
	names := namesOf(servers)
	for _, shard := range slices.Sorted(maps.Keys(ways)) {
		if !slices.Contains(names, shard) {
			return nil, &usageError{err: fmt.Errorf("--via: there is no address of shard %q in --servers; the "+
				"certificate of its server is verified for that address", shard), hint: near(shard, names)}
		}
	}
	return ways, nil
}

// connect returns a fleet and the shards that a command applies to. The caller must close the fleet.
func (a *app) connect(s *scope) (*fleet.Fleet, []string, error) {
	f, err := a.fleet(s)
	if err != nil {
		return nil, nil, err
	}
	shards, err := a.shards(s, f)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	a.severalShards = len(shards) > 1
	return f, shards, nil
}

// shards returns the shards that a command applies to.
func (a *app) shards(s *scope, f *fleet.Fleet) ([]string, error) {
	if s.all || s.reader != nil && s.shard == "" {
		return f.Shards(), nil
	}
	shard, known := s.shard, f.Shards()
	switch {
	case shard == "" && len(known) == 1:
		return known, nil
	case shard == "":
		return nil, &usageError{err: errors.New("which shard?"), hint: "name one with --shard or " + envShard +
			", or take --all-shards; there are: " + list(known)}
	case !slices.Contains(known, shard):
		return nil, &usageError{err: fmt.Errorf("there is no address of shard %q in --servers", shard),
			hint: near(shard, known)}
	}
	return []string{shard}, nil
}

// answers are the answers of several shards to one call.
type answers[M proto.Message] = []fleet.Answer[M]

// ask makes one call of the selected shards, such as fleet.Client.ListGroups, and shows the answers. `what` describes
// the call for the user who waits. `table` writes the answers in the human-readable form. ask returns an error if a
// shard failed.
func ask[Q, M proto.Message](ctx context.Context, a *app, s *scope, output format, what string,
	method fleet.Method[Q, M], request Q, table func(io.Writer, answers[M]) error) error {
	return askWith(ctx, a, s, output, what, func(f *fleet.Fleet, ctx context.Context, shards []string) answers[M] {
		return fleet.Call(ctx, f, shards, method, request)
	}, table)
}

// asks completes a command that makes one call of the selected shards, as [ask] does. The command's arguments, if there
// are any, are first stored in the fields of the request that `arguments` points to.
func asks[Q, M proto.Message](a *app, cmd *cobra.Command, s *scope, method fleet.Method[Q, M], request Q,
	table func(io.Writer, answers[M]) error, arguments ...*string) *cobra.Command {
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for n, text := range args {
			*arguments[n] = text
		}
		return ask(cmd.Context(), a, s, *f, "asking", method, request, table)
	}
	return cmd
}

// lookedUp removes the failures of shards that do not have what the command names, if another shard has it.
func lookedUp[T fleet.Result](answers []T) []T {
	missing := func(answer T) bool { e := answer.Of().Err; return e != nil && e.Code == codes.NotFound }
	if !slices.ContainsFunc(answers, func(answer T) bool { return !missing(answer) }) {
		return answers
	}
	return slices.DeleteFunc(answers, missing)
}

// askWith is like [ask], for calls that are not one call of each shard.
func askWith[T fleet.Result](ctx context.Context, a *app, s *scope, output format, what string,
	call func(*fleet.Fleet, context.Context, []string) []T, table func(io.Writer, []T) error) error {
	f, shards, err := a.connect(s)
	if err != nil {
		return err
	}
	defer f.Close()
	answers := during(a, what+" "+whom(shards), func() []T { return call(f, ctx, shards) })
	if s.reader != nil {
		answers = lookedUp(answers)
	}
	tellLastKnown(a, s, output, answers)
	err = a.show(output, fleet.Answers[T]{Shards: answers}, func(w io.Writer) error { return table(w, answers) })
	return errors.Join(err, failuresOf(answers))
}

func whom(shards []string) string {
	if len(shards) == 1 {
		return "shard " + shards[0]
	}
	return count(len(shards), "shard")
}

// count returns a number with a noun, such as "2 instances".
func count[N fleet.Number](n N, noun string) string { return fleet.Count(n, noun) }
