package admin

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) explainCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "explain", Short: "Show what the leader will do next, and why",
		Long: `Shows what a leader would do next for a group or an instance, the reasons, and what the
leader waits for. The leader's own planner makes this plan from the leader's current state.
The commands of "explain" change nothing.

The planner classifies each instance by the first planning rule that applies to it.
docs/reference/planning-rules.md lists the rules with their numbers.`}
	cmd.AddCommand(a.explainGroupCommand(), a.explainInstanceCommand())
	return cmd
}

func (a *app) explainGroupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "group GROUP", Short: "Show what happens next in a group", Args: cobra.ExactArgs(1),
		Long: `Shows in a sentence what a group waits for, then the next actions with their reasons, when
the leader plans the group again, and the planning rule that classifies each instance.
Times in the sentence are in UTC. If a VM takes unusually long to register, the end of its
console follows.`,
		Example: `  nstance-admin explain group workers --shard us-west-2a
  nstance-admin explain group workers --all-shards --output json | jq '.shards[] | {shard, actions}'`,
	}
	request := new(nstancev1.ExplainGroupRequest)
	return a.explains(cmd, request, &request.Group)
}

func (a *app) explainInstanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "instance INSTANCE", Short: "Show what happens next to an instance", Args: cobra.ExactArgs(1),
		Long: `Shows the planning rule that classifies an instance, the actions that are under way for
this instance, and the actions that the leader would take next for it.`,
		Example: `  nstance-admin explain instance wrk06bgm7733st2576nx5jht4ecjw`,
	}
	request := new(nstancev1.ExplainGroupRequest)
	return a.explains(cmd, request, &request.InstanceId)
}

// explains completes a command that shows plans. If an agent is late to register, it also shows the end of its VM's
// console.
func (a *app) explains(cmd *cobra.Command, request *nstancev1.ExplainGroupRequest, argument *string) *cobra.Command {
	s := readFlags(cmd)
	return asks(a, cmd, s, fleet.Client.ExplainGroup, request,
		func(w io.Writer, answers answers[*nstancev1.ExplainGroupResponse]) error {
			if err := a.writeExplanations(w, answers); err != nil {
				return err
			}
			return a.writeLateConsole(cmd.Context(), w, s, answers)
		}, argument)
}

func (a *app) writeExplanations(w io.Writer, answers answers[*nstancev1.ExplainGroupResponse]) error {
	first := true
	for _, answer := range answers {
		if !answer.Answered() {
			continue
		}
		if !first {
			fmt.Fprintln(w)
		}
		first = false
		if err := a.writeExplanation(w, answer); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) writeExplanation(w io.Writer, answer fleet.Answer[*nstancev1.ExplainGroupResponse]) error {
	e := answer.Message
	facts := []fact{{"Group", e.GetGroup()}, {"Shard", answer.Shard}, {"Desired", num(e.GetDesired())},
		{"Scaling", fleet.ScalingText(e.GetScaling(), a.Now())}, {"Now", fleet.WaitText(e)}}
	for _, err := range e.GetErrors() {
		facts = append(facts, fact{"Error", fmt.Sprintf("%s: %s (since %s)", err.GetKind(), err.GetMessage(),
			stamp(fleet.Time(err.GetAt())))})
	}
	for _, v := range e.GetInstances() {
		if why := v.GetRefused(); why != "" {
			facts = append(facts, fact{"Refused", fmt.Sprintf("the agent of %s: %s", v.GetInstanceId(), why)})
		}
	}
	if answer.LastKnown != nil {
		return a.writeLastKnown(w, facts, e)
	}
	facts = append(facts, fact{"Planned again", cmp.Or(stamp(fleet.Time(e.GetNextPlanAt())), "when something happens")})
	if err := writeFacts(w, a.style.out, facts); err != nil {
		return err
	}
	if len(e.GetActions()) > 0 {
		fmt.Fprintln(w)
		if err := a.table(w, []string{"NEXT", "INSTANCE", "BY", "WHY"}, rowsOf(e.GetActions(), actionRow)); err != nil {
			return err
		}
	}
	if len(e.GetInstances()) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return a.table(w, []string{"INSTANCE", "RULE", "CLASS", "CHANGES", "+DRAINED BY", "UNDER WAY"},
		rowsOf(e.GetInstances(), verdictRow))
}

// writeLastKnown writes what the bucket says about a group or an instance.
func (a *app) writeLastKnown(w io.Writer, facts []fact, e *nstancev1.ExplainGroupResponse) error {
	if err := writeFacts(w, a.style.out, facts); err != nil || len(e.GetInstances()) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return a.table(w, []string{"INSTANCE", "STATE", "LAST HEALTH", "+DRAINED BY"}, rowsOf(e.GetInstances(),
		func(v *nstancev1.InstanceVerdict) []cell {
			return plain(v.GetInstanceId(), v.GetRuleName(), v.GetWork(), stamp(fleet.Time(v.GetDrainDeadline())))
		}))
}

func actionRow(action *nstancev1.PlannedAction) []cell {
	replaces := ""
	if action.GetReplaces() != "" {
		replaces = "replaces " + action.GetReplaces()
	}
	return plain(action.GetKind(), action.GetInstanceId(), stamp(fleet.Time(action.GetDeadline())),
		join("  ", action.GetReason(), replaces))
}

func verdictRow(v *nstancev1.InstanceVerdict) []cell {
	return plain(v.GetInstanceId(), num(v.GetRule()), v.GetRuleName(), stamp(fleet.Time(v.GetUntil())),
		stamp(fleet.Time(v.GetDrainDeadline())), cmp.Or(v.GetWork(), v.GetDrainWaits()))
}
