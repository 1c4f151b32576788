package admin

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// lookPause is the time between two checks whether the change has taken effect.
const lookPause = 2 * time.Second

// durations matches the parts of a sentence that change with the time.
var durations = regexp.MustCompile(`(for|about) [0-9.]+ (min [0-9]+ )?(s|min|h|days)\b`)

// patienceFlags say whether a command waits for the effect of its request, and for how long.
type patienceFlags struct {
	wait    bool
	timeout time.Duration
}

func waitFlags(cmd *cobra.Command) *patienceFlags {
	p := new(patienceFlags)
	cmd.Flags().BoolVar(&p.wait, "wait", false, "wait for the effect of the change, and show the progress")
	p.addTimeout(cmd)
	return p
}

func (p *patienceFlags) addTimeout(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&p.timeout, "timeout", 15*time.Minute,
		"how long to wait at most; 0 looks once, and a negative time waits without a limit")
}

func (a *app) groupWaitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "wait GROUP", Short: "Wait until a group is as it should be", Args: cobra.ExactArgs(1),
		Long: `Waits until a group has its size, and all its instances are healthy and up to date. Shows
the progress on standard error. If the wait takes longer than --timeout, or the group
has returned to its last good configuration, the exit status is 1.`,
		Example: `  nstance-admin group wait workers --shard us-west-2a --timeout 30m`,
	}
	flags := &changer{scope: scopeFlags(cmd), patient: &patienceFlags{wait: true}, confirm: new(confirmation)}
	flags.patient.addTimeout(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.thenWaitForGroup(cmd.Context(), flags, args[0], nil)
	}
	return cmd
}

// thenWaitForGroup waits until a change of a group has taken effect, if the flags ask for that and the change
// succeeded.
func (a *app) thenWaitForGroup(ctx context.Context, c *changer, name string, changed error) error {
	if changed != nil || !c.patient.wait || c.confirm.dryRun {
		return changed
	}
	return a.await(ctx, c.scope, c.patient, "nstance-admin explain group "+name,
		func(ctx context.Context, f *fleet.Fleet, shard string) (bool, string, *fleet.Error) {
			answer := fleet.Call(ctx, f, []string{shard}, fleet.Client.ListGroups,
				&nstancev1.ListGroupsRequest{Group: name})[0]
			if answer.Err != nil {
				return false, "", answer.Err
			}
			g := answer.Message.GetGroups()[0]
			text := fmt.Sprintf("group %s: size %s, %d there, %d healthy, %d outdated", g.GetGroup(),
				fleet.SizeText(g, a.Now()), g.GetActualSize(), g.GetHealthy(), g.GetOutdated())
			if why := note(g); why != "" {
				text += ": " + why
			}
			if halted := g.GetHalted(); halted.GetRolledBackTo() != nil && g.GetOutdated() == 0 {
				return false, "", &fleet.Error{Shard: shard, Code: codes.FailedPrecondition,
					Message: "group " + g.GetGroup() + ": " + halted.GetMessage(),
					Hint:    "correct the group's configuration, or try the same again with nstance-admin group resume"}
			}
			return g.GetActualSize() == g.GetSize() && g.GetHealthy() >= g.GetSize() && g.GetOutdated() == 0 &&
				!g.GetDeleting(), text, nil
		})
}

// thenWaitUntilGone waits until an instance is deleted, under the same conditions.
func (a *app) thenWaitUntilGone(ctx context.Context, c *changer, id string, changed error) error {
	if changed != nil || !c.patient.wait || c.confirm.dryRun {
		return changed
	}
	return a.await(ctx, c.scope, c.patient, "nstance-admin explain instance "+id,
		func(ctx context.Context, f *fleet.Fleet, shard string) (bool, string, *fleet.Error) {
			answer := fleet.Call(ctx, f, []string{shard}, fleet.Client.GetInstanceStatus,
				&nstancev1.GetInstanceStatusRequest{InstanceId: id})[0]
			switch {
			case answer.Err != nil && answer.Err.Code == codes.NotFound:
				return true, "instance " + id + " is not there", nil
			case answer.Err != nil:
				return false, "", answer.Err
			}
			i := answer.Message.GetInstance()
			return i.GetState() == "deleted", fmt.Sprintf("instance %s is %s, the provider says %s", id, i.GetState(),
				i.GetProviderState()), nil
		})
}

// await calls the function `done` for all selected shards again and again, until it returns true for all of them in the
// same round. `done` also returns a text. await prints this text whenever more than a duration in it changes. Temporary
// errors, such as a lost leader, are printed and do not end the wait. hint is the command that explains what blocks the
// change.
func (a *app) await(ctx context.Context, s *scope, patient *patienceFlags, hint string,
	done func(context.Context, *fleet.Fleet, string) (bool, string, *fleet.Error)) error {
	f, shards, err := a.connect(s)
	if err != nil {
		return err
	}
	defer f.Close()
	over := time.Now().Add(patient.timeout)
	if patient.timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithDeadline(ctx, over)
		defer cancel()
	}
	said := map[string]string{}
	for {
		left := 0
		var unseen *fleet.Error // why the last look at a shard showed nothing
		for _, shard := range shards {
			ok, text, failed := done(ctx, f, shard)
			if failed != nil {
				switch failed.Code {
				case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
					if failed.Code == codes.DeadlineExceeded && patient.timeout > 0 &&
						time.Until(over) < 100*time.Millisecond {
						<-ctx.Done() // the shard saw the end of the wait first
					}
					text = failed.Message
					if ctx.Err() == nil { // the end of the wait is no fault of the shard
						unseen = failed
					}
				default:
					return failed
				}
			}
			if says := durations.ReplaceAllString(text, ""); said[shard] != says && ctx.Err() == nil {
				said[shard] = says
				a.note("%s: %s", shard, printable(text))
			}
			if !ok {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if patient.timeout == 0 && unseen != nil {
			return unseen
		}
		if patient.timeout == 0 {
			return withHint(fmt.Errorf("it has not happened in %d of %s", left, count(len(shards), "shard")),
				"%s says what blocks it", hint)
		}
		if err := a.sleep(ctx, lookPause); err != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && unseen != nil {
				return withHint(fmt.Errorf("after %s %w", patient.timeout, unseen), "%s", unseen.Hint)
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return withHint(fmt.Errorf("after %s it has not happened in %d of %s", patient.timeout, left,
					count(len(shards), "shard")), "%s says what blocks it", hint)
			}
			return err
		}
	}
}
