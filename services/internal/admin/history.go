package admin

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// history prints the journals of shards.
func (a *app) history(cmd *cobra.Command, s *scope, f format, since time.Duration,
	filter *nstancev1.EventFilter) error {
	if since < 0 {
		return usageOf(cmd, fmt.Errorf("--since %s is less than zero", since))
	}
	if since > 0 {
		filter.Since = timestamppb.New(a.Now().Add(-since))
	}
	return ask(cmd.Context(), a, s, f, "reading the journal of", fleet.Client.ListEvents,
		&nstancev1.ListEventsRequest{Filter: filter}, a.writeHistory)
}

// writeHistory writes the events of all shards, sorted by time.
func (a *app) writeHistory(w io.Writer, answers answers[*nstancev1.ListEventsResponse]) error {
	type entry struct {
		shard string
		*nstancev1.JournalEvent
	}
	var entries []entry
	for _, answer := range answers {
		for _, e := range answer.Message.GetEvents() {
			entries = append(entries, entry{answer.Shard, e})
		}
	}
	if len(entries) == 0 {
		return a.none(fleet.Failed(answers), "There are no such events.")
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return fleet.Time(a.GetAt()).Compare(fleet.Time(b.GetAt())) })
	var rows [][]cell
	for _, e := range entries {
		replaces := ""
		if e.GetReplaces() != "" {
			replaces = "replaces " + e.GetReplaces()
		}
		row := plain(e.GetAt().AsTime().Format("2006-01-02T15:04:05.000Z"), e.shard,
			strings.ReplaceAll(e.GetKind(), "_", " "), e.GetGroup(), e.GetInstanceId(), e.GetCause(), e.GetActor(),
			tookText(e.GetTookSeconds()), join(e.GetMessage(), replaces))
		switch e.GetKind() {
		case "instance_lost", "instance_unhealthy", "alert_raised", "registration_refused":
			row[2].paint = a.style.out.bad
		case "instance_registered", "instance_healthy", "alert_resolved":
			row[2].paint = a.style.out.good
		}
		rows = append(rows, row)
	}
	return writeTable(w, a.style.out, []string{"TIME", "SHARD", "EVENT", "GROUP", "INSTANCE", "CAUSE", "BY", "TOOK",
		"WHY"}, rows)
}

// tookText formats seconds with at most three significant digits. It returns "" for zero.
func tookText(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return strconv.FormatFloat(seconds, 'g', 3, 64) + " s"
}
