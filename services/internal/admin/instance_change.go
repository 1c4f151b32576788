package admin

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) instanceDeleteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete INSTANCE", Short: "Delete an instance", Args: cobra.ExactArgs(1),
		Long: `Deletes an instance: the leader drains it, for at most the group's drain_timeout, and
terminates it. If the instance counts towards the group's size, the leader makes another
one in its place. With --decrement, the leader instead lowers the group's size by one in
the same step.

"instance delete" returns when the order to delete is stored. With --wait, it returns
when the VM is gone.`,
		Example: `  nstance-admin instance delete wrk06bgm7733st2576nx5jht4ecjw --reason "disk is failing" --yes
  nstance-admin instance delete wrk06bgm7733st2576nx5jht4ecjw --shard us-west-2a --decrement --yes`,
	}
	var reason string
	var decrement bool
	cmd.Flags().StringVar(&reason, "reason", "requested with nstance-admin",
		"reason of the deletion, for the instance's record and its events")
	cmd.Flags().BoolVar(&decrement, "decrement", false, "also lower the size of the instance's group by one")
	flags := changeFlags(cmd, confirmFlags, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.deleteInstance(cmd, flags,
			&nstancev1.DeleteInstanceRequest{InstanceId: args[0], Reason: reason, Decrement: decrement})
	}
	return cmd
}

func (a *app) instanceDrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain INSTANCE", Short: "Drain an instance, delete it, and wait until it is gone",
		Args: cobra.ExactArgs(1),
		Long: `Drains and deletes an instance, and waits until it is gone, like "instance delete
--wait". Nstance cannot drain an instance without deleting it. To exclude an instance
from rollouts and scale-downs, use "instance protect".`,
		Example: `  nstance-admin instance drain wrk06bgm7733st2576nx5jht4ecjw --timeout 15m --yes`,
	}
	flags := changeFlags(cmd, confirmFlags, false)
	flags.patient.wait = true
	flags.patient.addTimeout(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.deleteInstance(cmd, flags,
			&nstancev1.DeleteInstanceRequest{InstanceId: args[0], Reason: "drained with nstance-admin"})
	}
	return cmd
}

// deleteInstance makes the request for an instance, after a confirmation.
func (a *app) deleteInstance(cmd *cobra.Command, flags *changer, request *nstancev1.DeleteInstanceRequest) error {
	table := func(w io.Writer, answers answers[*nstancev1.DeleteInstanceResponse]) error {
		err := lines(stateLine[*nstancev1.DeleteInstanceResponse])(w, answers)
		for _, answer := range answers {
			if g := answer.Message.GetGroup(); g != nil {
				fmt.Fprintf(w, "%s: group %s has the size %d now\n", answer.Shard, printable(g.GetGroup()), g.GetSize())
			}
		}
		return err
	}
	err := change(cmd, a, flags, "deleting in", fleet.Client.DeleteInstance, request, table)
	return a.thenWaitUntilGone(cmd.Context(), flags, request.GetInstanceId(), err)
}

func (a *app) instanceProtectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "protect INSTANCE", Short: "Protect an instance from voluntary replacement and from a smaller size",
		Args: cobra.ExactArgs(1),
		Long: `Protects an instance: the leader does not replace it for an outdated configuration or for
its eligible_age, and does not choose it for deletion when the group gets smaller. The
leader still replaces it when its VM is lost, its agent is silent, or it reaches
forced_age. "instance delete" still deletes it. The protection also holds under a new
leader, until "instance protect --off" ends it.`,
		Example: `  nstance-admin instance protect wrk06bgm7733st2576nx5jht4ecjw
  nstance-admin instance protect wrk06bgm7733st2576nx5jht4ecjw --shard us-west-2a --off`,
	}
	request := new(nstancev1.ProtectInstanceRequest)
	cmd.Flags().BoolVar(&request.Off, "off", false, "end the protection")
	line := func(answer fleet.Answer[*nstancev1.ProtectInstanceResponse]) string {
		state := "is not protected"
		if answer.Message.GetInstance().GetProtected() {
			state = "is protected"
		}
		return fmt.Sprintf("%s: instance %s %s", answer.Shard, request.InstanceId, state)
	}
	return asks(a, cmd, scopeFlags(cmd), fleet.Client.ProtectInstance, request, lines(line), &request.InstanceId)
}

func (a *app) instanceReleaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "release INSTANCE", Short: "Terminate an instance that failed and is preserved",
		Args: cobra.ExactArgs(1),
		Long: `Ends the preservation of an instance that failed (preserve in the group's configuration):
the leader drains and terminates it now, not only when preserve.for is over. An instance
that is not preserved is refused: "instance delete" deletes it.

"instance release" returns when the order to delete is stored. With --wait, it returns
when the VM is gone.`,
		Example: `  nstance-admin instance release wrk06bgm7733st2576nx5jht4ecjw --yes`,
	}
	flags := changeFlags(cmd, confirmFlags, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := change(cmd, a, flags, "releasing in", fleet.Client.ReleaseInstance,
			&nstancev1.ReleaseInstanceRequest{InstanceId: args[0]},
			lines(stateLine[*nstancev1.ReleaseInstanceResponse]))
		return a.thenWaitUntilGone(cmd.Context(), flags, args[0], err)
	}
	return cmd
}

// stateLine describes the state of an instance after a change.
func stateLine[M interface {
	proto.Message
	GetInstance() *nstancev1.InstanceStatus
}](answer fleet.Answer[M]) string {
	i, until := answer.Message.GetInstance(), ""
	if deadline := i.GetDeleteDeadline(); deadline != nil {
		until = ", drained until " + stamp(deadline.AsTime()) + " at the latest"
	}
	return fmt.Sprintf("%s: instance %s is %s%s", answer.Shard, i.GetInstanceId(), i.GetState(), until)
}
