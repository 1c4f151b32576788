package admin

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/ident"
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
		Long: `Shows the next actions for a group with their reasons, what blocks the group and its
rollout, when the leader plans the group again, and the planning rule that classifies
each instance.`,
		Example: `  nstance-admin explain group workers --shard us-west-2a
  nstance-admin explain group workers --all-shards --output json | jq '.shards[] | {shard, actions}'`,
	}
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := ident.ValidateName(args[0]); err != nil {
			return usageOf(cmd, fmt.Errorf("group: %w", err))
		}
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []fleet.ExplanationAnswer {
			return f.Explain(ctx, shards, args[0], nil)
		}
		return ask(cmd.Context(), a, s, *f, "asking", call, a.writeExplanations)
	}
	return cmd
}

func (a *app) explainInstanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "instance INSTANCE", Short: "Show what happens next to an instance", Args: cobra.ExactArgs(1),
		Long: `Shows the planning rule that classifies an instance, the actions that are under way for
this instance, and the actions that the leader would take next for it. With --all-shards,
the command looks for the instance in every shard.`,
		Example: `  nstance-admin explain instance wrk06bgm7733st2576nx5jht4ecjw --all-shards`,
	}
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := instanceID(cmd, args[0])
		if err != nil {
			return err
		}
		call := func(f *fleet.Fleet, ctx context.Context, shards []string) []fleet.ExplanationAnswer {
			return fleet.Elsewhere(f.ExplainInstance(ctx, shards, id))
		}
		return ask(cmd.Context(), a, s, *f, "asking", call, a.writeExplanations)
	}
	return cmd
}

func (a *app) writeExplanations(w io.Writer, answers []fleet.ExplanationAnswer) error {
	first := true
	for _, answer := range answers {
		if answer.Explanation == nil {
			continue
		}
		if !first {
			fmt.Fprintln(w)
		}
		first = false
		if err := a.writeExplanation(w, answer.Shard, answer.Explanation); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) writeExplanation(w io.Writer, shard string, e *fleet.Explanation) error {
	facts := []fact{{"Group", e.Group}, {"Shard", shard}, {"Desired", num(e.Desired)}, {"Blocked", e.Blocked()},
		{"Rollout waits", e.RolloutText()}}
	if e.UnhealthyGuard {
		facts = append(facts, fact{"Guard", e.GuardText()})
	}
	for _, err := range e.Errors {
		facts = append(facts, fact{"Error", fmt.Sprintf("%s: %s (since %s)", err.Kind, err.Reason, stamp(err.At))})
	}
	for _, v := range e.Instances {
		if v.Refused != "" {
			facts = append(facts, fact{"Refused", fmt.Sprintf("the agent of %s: %s", v.ID, v.Refused)})
		}
	}
	facts = append(facts, fact{"Planned again", cmp.Or(stamp(e.NextPlanAt), "when something happens")})
	if err := writeFacts(w, a.style.out, facts); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if len(e.Actions) == 0 {
		fmt.Fprintln(w, printable(e.Idle()))
	} else if err := writeTable(w, a.style.out, []string{"NEXT", "INSTANCE", "REPLACES", "BY", "WHY"},
		actionRows(e.Actions)); err != nil {
		return err
	}
	if len(e.Instances) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return writeTable(w, a.style.out, []string{"INSTANCE", "RULE", "CLASS", "CHANGES", "UNDER WAY", "DRAINED BY"},
		verdictRows(e.Instances))
}

func actionRows(actions []fleet.PlannedAction) (rows [][]cell) {
	for _, action := range actions {
		rows = append(rows, plain(action.Kind, action.ID, action.Replaces, stamp(action.Deadline), action.Reason))
	}
	return rows
}

func verdictRows(verdicts []fleet.Verdict) (rows [][]cell) {
	for _, v := range verdicts {
		rows = append(rows, plain(v.ID, num(v.Rule), v.RuleName, stamp(v.Until), v.Work, stamp(v.DrainDeadline)))
	}
	return rows
}
