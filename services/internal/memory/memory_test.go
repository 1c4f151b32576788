package memory

import (
	"context"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

func TestGrowthFollowsTheRate(t *testing.T) {
	for name, tc := range map[string]struct {
		live, perSecond, free uint64
		percent               int
		giveBack              bool
	}{
		"idle":                                {live: 300 * mib, percent: least},
		"reports of many":                     {live: 300 * mib, perSecond: mib / 4, percent: least},
		"some":                                {live: 300 * mib, perSecond: mib, percent: 20},
		"a storm":                             {live: 300 * mib, perSecond: 100 * mib, percent: usual},
		"small and idle":                      {live: 10 * mib, percent: 160},
		"small and busy":                      {live: 10 * mib, perSecond: mib, percent: 600},
		"small and very busy":                 {live: 10 * mib, perSecond: 10 * mib, percent: 640},
		"a storm, not small":                  {live: 80 * mib, perSecond: 10 * mib, percent: usual},
		"small and idle with much free":       {live: 10 * mib, free: 60 * mib, percent: 160, giveBack: true},
		"before the first collection":         {perSecond: mib, percent: usual},
		"idle with much free":                 {live: 300 * mib, free: 60 * mib, percent: least, giveBack: true},
		"idle with a little free":             {live: 300 * mib, free: 40 * mib, percent: least},
		"small with little free":              {live: 10 * mib, free: 15 * mib, percent: 160},
		"a storm that will take what is free": {live: 300 * mib, perSecond: 100 * mib, free: 200 * mib, percent: usual},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			k := keeper{before: sample{at: start}}
			percent, giveBack := k.decideGrowth(sample{at: start.Add(5 * time.Second), allocated: 5 * tc.perSecond,
				live: tc.live, free: tc.free})
			if percent != tc.percent || giveBack != tc.giveBack {
				t.Errorf("%d%%, give back: %t; want %d%%, %t", percent, giveBack, tc.percent, tc.giveBack)
			}
		})
	}
}

func TestMemoryIsReleasedAtIntervals(t *testing.T) {
	at := time.Unix(1000, 0)
	k := keeper{before: sample{at: at}}
	times := 0
	for range 25 {
		at = at.Add(5 * time.Second)
		if _, giveBack := k.decideGrowth(sample{at: at, live: 100 * mib, free: 100 * mib}); giveBack {
			times++
		}
	}
	if times != 3 {
		t.Errorf("%d times in two minutes, want 3", times)
	}
}

func TestUsualMemoryIsKept(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); Keep(ctx) }()
		time.Sleep(2*interval + time.Second) // synctest time
		stop()
		<-done
	})
	if percent := debug.SetGCPercent(usual); percent != usual {
		t.Errorf("%d%% after the end, want %d%%", percent, usual)
	}
}
