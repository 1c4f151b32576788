package fleet

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// SizeText returns the desired size of a group. If an operator has set it, SizeText adds the configured size and who
// set the size when.
func SizeText(g *nstancev1.GroupStatus, now time.Time) string {
	for _, o := range g.GetOverrides() {
		if o.GetPath() == "size" {
			return fmt.Sprintf("%d (%s)", g.GetSize(), OverrideText(o, now))
		}
	}
	return fmt.Sprint(g.GetSize())
}

// SparesText returns how many warm spares a group has, or "" if it has and wants none.
func SparesText(g *nstancev1.GroupStatus) string {
	s := g.GetSpares()
	switch {
	case s == nil:
		return ""
	case s.GetActual() != s.GetCount() || s.GetReady() != s.GetCount():
		return fmt.Sprintf("%d, %s (%d there, %d ready)", s.GetCount(), s.GetState(), s.GetActual(), s.GetReady())
	}
	return fmt.Sprintf("%d, %s", s.GetCount(), s.GetState())
}

// OverrideTexts describes the fields of a static group that operators have set, except for the size and the revision of
// a roll.
func OverrideTexts(g *nstancev1.GroupStatus, now time.Time) (texts []string) {
	for _, o := range g.GetOverrides() {
		if o.GetPath() != "size" && o.GetPath() != "rollout.revision" {
			texts = append(texts, fmt.Sprintf("%s %s (%s)", o.GetPath(), o.GetValue(), OverrideText(o, now)))
		}
	}
	return texts
}

// OverrideText says what the configuration has in place of an operator's value, and who set that value when.
func OverrideText(o *nstancev1.GroupOverride, now time.Time) string {
	who := []string{cmp.Or(o.GetBy(), "an operator")}
	if o.GetAt() != nil {
		n, unit := Age(now.Sub(o.GetAt().AsTime()))
		who = append(who, fmt.Sprintf("%d %s ago", n, unit))
	}
	return overrideText(o, who...)
}

// overrideText says what the configuration has in place of an operator's value, and how long that value stays.
func overrideText(o *nstancev1.GroupOverride, who ...string) string {
	parts := append([]string{"not configured"}, who...)
	if o.GetConfigured() != "" {
		parts[0] = "configured " + o.GetConfigured()
	}
	if o.GetPinned() && o.GetBy() != config.ByScaling { // only the leader changes it
		parts = append(parts, "pinned")
	}
	if o.GetUntil() != nil {
		parts = append(parts, "until "+o.GetUntil().AsTime().Format(time.RFC3339))
	}
	return strings.Join(parts, ", ")
}

// Age returns a duration in one unit, rounded down, such as 10 and "min". A negative duration counts as zero.
func Age(d time.Duration) (n int, unit string) {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return int(d.Seconds()), "s"
	case d < 2*time.Hour:
		return int(d.Minutes()), "min"
	case d < 48*time.Hour:
		return int(d.Hours()), "h"
	}
	return int(d.Hours() / 24), "d"
}
