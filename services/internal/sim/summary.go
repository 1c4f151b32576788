package sim

import (
	"fmt"
	"slices"
	"strings"
)

// columns groups related kinds for the summary. Kinds in no column are actions of people and of the operator.
var columns = []struct {
	name  string
	kinds []Kind
}{
	{"messages, links, heirs", ofHeirs},
	{"bucket requests", []Kind{bucketRefused, bucketLost, bucketLate, bucketSlow, bucketStale, bucketRepeated,
		lockLate}},
	{"provider requests", []Kind{cloudFails, cloudThrottles, cloudLost, cloudLate, cloudSlow, cloudLag, cloudFull,
		cloudRepeated}},
	{"crash or pause in a request", []Kind{crashBefore, crashAfter, pauseAtCall}},
	{"servers killed or stopped", []Kind{killed9, killedMach, killedAll, stopped, wiped}},
	{"paused, clocks, timers", []Kind{paused, frozen, clockStep, timerLate}},
	{"networks cut", []Kind{cutBoth, cutBucket, cutCloud, cutAnswers, deafened}},
	{"lock, address, subnets, strays", []Kind{lockRemoved, stranger, subnetFull, addressGone}},
	{"VMs and agents", []Kind{lostVM, lostAll, agentMute, allMute, agentSick, notice, powerOff, reboot, agentBroken,
		answerGone, thief}},
	{"people, operator", nil},
}

// columnOf returns the index of a kind's column.
func columnOf(k Kind) int {
	for n := range columns {
		if slices.Contains(columns[n].kinds, k) {
			return n
		}
	}
	return len(columns) - 1
}

// Summary returns the counts as a Markdown table for docs/contributing/simulation.md. Related kinds are summed up, and
// each state that any fault met has a row.
func (c *Coverage) Summary() string {
	var sums [numStates][]uint64
	for x := range sums {
		sums[x] = make([]uint64, len(columns))
	}
	for _, k := range Kinds() {
		for x, n := range c.row(k) {
			sums[x][columnOf(k)] += n
		}
	}
	var b strings.Builder
	b.WriteString("| met by |")
	for _, column := range columns {
		b.WriteString(" " + column.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(columns)) + "\n")
	for x, row := range sums {
		if slices.Max(row) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s |", stateNames[x])
		for _, n := range row {
			switch {
			case n == 0:
				b.WriteString(" |")
			case n < 10_000:
				fmt.Fprintf(&b, " %d |", n)
			default:
				fmt.Fprintf(&b, " %dk |", (n+500)/1000)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
