package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
	"github.com/nstance-kit/nstance/services/internal/server/lead/peer"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
)

const (
	// restartPause is the time between two looks at what a restart waits for.
	restartPause = 200 * time.Millisecond
	// agentPatience is the longest time for which a restart waits for agents to connect to the leader's new addresses.
	// An agent does so within a second after it is told the addresses.
	agentPatience = 10 * time.Second
	// standbyPatience is the longest time for which a leader waits for a standby to come back with a new configuration
	// and to become the heir. It usually takes 11 s.
	standbyPatience = 30 * time.Second
	// askAgainAfter is the time after which a leader asks a standby again that still runs without the new
	// configuration.
	askAgainAfter = time.Minute
)

// restartSoon restarts the server after a pause. The restart aborts the call that caused it, so the pause lets the
// server send the response first. The pause also lets agents connect to the leader's new addresses: after the restart
// they would not find the leader at its old ones.
func (s *server) restartSoon(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	s.env.Go("restart", func() {
		for waited := time.Duration(0); ; waited += restartPause {
			_ = s.env.Sleep(ctx, restartPause)
			if s.agentsReady(waited) {
				s.restart(ErrRestart)
				return
			}
		}
	})
}

// agentsReady reports whether all agents have connected again that were told other addresses of the leader. After
// agentPatience it always returns true.
func (s *server) agentsReady(waited time.Duration) bool {
	left := s.agents.Outdated()
	if left > 0 && waited >= agentPatience {
		s.log.Warn("restarting although some agents have not connected again: they try the earlier addresses of the "+
			"leader only", "agents", left)
		return true
	}
	return left == 0
}

// restartForConfig restarts the leader for the configuration that waits for it. The standbys restart first. The leader
// then hands over to one that runs with the configuration, so the shard changes its leader once. expected are the IDs
// of servers that are not connected but will probably be soon. The function returns immediately. It does nothing if
// this server does not lead or waits already.
func (s *server) restartForConfig(expected ...string) {
	l := s.leading.Load()
	if l == nil || !l.restarting.CompareAndSwap(false, true) {
		return
	}
	s.env.Go("restart", func() {
		for again := true; again; {
			s.awaitStandbys(l, expected)
			l.configWaits.Store(nil)
			l.restarting.Store(false)
			// A configuration may have arrived meanwhile.
			again = l.agent.Context.Err() == nil && s.manager.Pending() != nil &&
				l.restarting.CompareAndSwap(false, true)
		}
	})
}

// awaitStandbys does the work of restartForConfig. It returns when the term ends or no configuration waits any more.
func (s *server) awaitStandbys(l *leadership, expected []string) {
	v := restartView{expected: expected}
	asked := map[string]time.Time{}
	var began time.Time
	for ctx := l.agent.Context; s.env.Sleep(ctx, restartPause) == nil; {
		now, wanted := s.env.Now(), s.manager.Status().RestartETag
		switch wanted {
		case v.wanted:
		case "":
			s.log.Info("no configuration needs a restart any more")
			return
		default:
			s.log.Info("the new configuration needs a restart", "etag", wanted)
			v.wanted, began = wanted, now
			clear(asked)
		}
		v.standbys, v.waited = s.peers.Standbys(), now.Sub(began)
		if election := s.manager.Shard().Server.LeaderElection; election.PeerLease != nil {
			v.heirs = *election.PeerLease > 0
		}
		if status := s.status.Load(); status != nil {
			v.heir = status.Holder.Heir
		}
		for _, standby := range v.standbys {
			if !slices.Contains(v.expected, standby.ID) {
				v.expected = append(v.expected, standby.ID)
			}
			if at, ok := asked[standby.ID]; standby.Restarts && standby.Config != wanted &&
				(!ok || now.Sub(at) >= askAgainAfter) {
				asked[standby.ID] = now
				s.peers.AskRestart(standby.Peer, wanted)
			}
		}
		step, reason := v.next()
		waits := ""
		if step == restartWait {
			waits = fmt.Sprintf("%s; at most until %s", reason, began.Add(standbyPatience).UTC().Format(time.TimeOnly))
		}
		l.configWaits.Store(&waits)
		if refused := step == restartRefused; refused || v.refused {
			v.refused = refused
			s.reportRefused(l.leader, s.manager.RefusePending(reason))
		}
		if step != restartNow || !s.agentsReady(v.waited) {
			continue
		}
		err := ErrRestart
		if reason != "" {
			s.log.Warn("restarting although no standby is ready to take over", "reason", reason)
			err = fmt.Errorf("%w: %s", ErrRestart, reason)
		}
		s.restart(err)
		return
	}
}

// restartStep is what a leader does next about a configuration that waits for a restart.
type restartStep uint8

const (
	restartWait    restartStep = iota
	restartNow                 // hands over to the heir, if there is one
	restartRefused             // a standby cannot run with the configuration: the leader stays
)

// restartView is what a leader knows while a configuration waits for a restart.
type restartView struct {
	wanted   string // the version of the configuration
	standbys []peer.Standby
	// expected are the IDs of the servers that have been connected, or will probably be soon.
	expected []string
	// heirs means that the shard has an heir whenever a standby has been connected for some time. heir is the present
	// one.
	heirs   bool
	heir    election.Peer
	waited  time.Duration
	refused bool // the last step was restartRefused
}

// next returns the next step. The reason says what the restart waits for, why a leader restarts although no standby is
// ready, or why the configuration is refused.
//
//   - A leader restarts as soon as its heir runs with the configuration, or any standby if the shard has no heirs.
//   - It restarts immediately if it is alone, or if all standbys are of a version that cannot be asked.
//   - While a connected standby refuses the configuration, the leader stays: its successor could not run with it.
//   - If a standby does not come back in time, the leader restarts without it.
func (v restartView) next() (step restartStep, reason string) {
	var refusals, late []string
	missing := slices.Clone(v.expected)
	for _, standby := range v.standbys {
		missing = slices.DeleteFunc(missing, func(id string) bool { return id == standby.ID })
		switch {
		case !standby.Restarts:
		case standby.Config == v.wanted && (standby.Peer == v.heir || !v.heirs):
			return restartNow, ""
		case standby.RefusedVersion == v.wanted && standby.Config != v.wanted:
			refusals = append(refusals, fmt.Sprintf("server %s cannot run with it: %s", standby.ID, standby.Refusal))
		case standby.Config == v.wanted:
			late = append(late, standby.ID+" has restarted, but is not the heir yet")
		default:
			late = append(late, standby.ID+" has not restarted")
		}
	}
	for _, id := range missing {
		late = append(late, id+" is not connected")
	}
	slices.Sort(refusals)
	slices.Sort(late)
	switch {
	case len(refusals) > 0:
		return restartRefused, strings.Join(refusals, "; ")
	case len(late) == 0:
		return restartNow, ""
	case v.waited >= standbyPatience:
		return restartNow, fmt.Sprintf("after %v, %s", standbyPatience, strings.Join(late, ", "))
	}
	return restartWait, strings.Join(late, ", ")
}

// predecessor returns the ID of the server that led before this one, or nil if that was this server.
func (s *server) predecessor() []string {
	if former := s.former.Load(); former != nil && former.Holder.LeaderID != "" &&
		former.Holder.LeaderID != s.identity.ID {
		return []string{former.Holder.LeaderID}
	}
	return nil
}

// restartAsked restarts this server, because the leader asks a standby to do so before the leader itself restarts with
// the given version of the configuration. If this server cannot run with the configuration in the bucket, it goes on,
// and restartAsked returns the reason.
func (s *server) restartAsked(ctx context.Context, version string) (refusal string) {
	if s.isLeader() {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	result, problems, err := s.manager.Examine(ctx)
	switch {
	case err != nil:
		s.log.Warn("not restarting for the new configuration: it cannot be read", "etag", version, "error", err)
	case result == shardconfig.Invalid:
		s.log.Warn("not restarting for the new configuration: this server cannot run with it", "etag", version,
			"error", problems)
		return problems.Error()
	case result == shardconfig.Restart && !s.isLeader(): // it may have become the leader during the trial
		s.log.Info("the new configuration needs a restart: this standby restarts first", "etag", version)
		s.restart(ErrRestart)
	}
	return ""
}
