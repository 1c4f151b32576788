package system

import (
	"context"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// instanceChapters returns the chapters about faults of instances and groups.
func (s *story) instanceChapters() []chapter {
	return []chapter{{
		heading: "A VM is lost", inject: s.killVM, settle: s.settled,
		told: told{kind: "instance_pending_deletion", cause: "gone", text: "its VM has stopped or is stopping (rule 6)",
			pages: []string{"instances/$INSTANCE"}, metric: `nstance_replacements_total{cause="gone"`},
		commands: []expectation{
			{"status", false, []string{local.Shard, "server-"}},
			{"events --since 1h --shard dev-1 --kind", false,
				[]string{"$END", "instance pending deletion", "(rule 6)"}},
			{"events --since 1h --shard dev-1 --instance", false, []string{"instance created", "instance registered"}},
			{"instance describe", false, []string{"$INSTANCE", "Deleted:"}},
			{"explain group", false, []string{"Planned again:", "well"}},
			{"group wait", false, []string{"2 healthy"}},
			{"doctor", false, []string{"dev-1 is fine.", "2 of 2 healthy", "opens the CA's key",
				"agrees with the bucket's", "none is active"}},
		},
	}, {
		heading: "A health check fails", inject: s.failCheck, settle: s.settled,
		told: told{kind: "instance_pending_deletion", cause: "health_check",
			text:  "its health check fails: disk: exit status 1: " + diskOut,
			pages: []string{"instances/$INSTANCE"}, metric: `nstance_replacements_total{cause="health_check"`},
		commands: []expectation{
			{"events --since 1h --shard dev-1 --cause health_check", false,
				[]string{"$END", "(rule 52)", diskOut}},
			{"explain group", false, []string{"well"}},
		},
	}, {
		heading: "A configuration is refused", inject: s.writeBad, settle: s.settled,
		told: told{kind: "alert_raised", cause: "config", text: "NO_SUCH_KEY", pages: []string{""},
			metric: `nstance_alert_active{kind="config"`, alerts: []string{"NstanceAlertActive config"},
			doctor: []string{"alert config"}},
		commands: []expectation{
			{"status", false, []string{"newer one refused", "NO_SUCH_KEY"}},
			{"config status", false, []string{"NO_SUCH_KEY"}},
		},
		mend: s.writeGood,
	}, {
		heading: "A rollout halts", inject: s.rollBad, settle: s.settled,
		told: told{kind: "alert_raised", cause: "rollout_halted", text: "the rollout is halted: at least 1 instances",
			rule: "(rule 47)", grouped: true, pages: []string{"groups/" + group},
			metric: `nstance_alert_active{kind="rollout_halted"`,
			alerts: []string{"NstanceAlertActive backoff", "NstanceRolloutHalted "},
			doctor: []string{"alert backoff of group " + group, "alert rollout_halted of group " + group,
				"group " + group}},
		commands: []expectation{
			{"explain group", false, []string{"rollout_halted", "(rule 47)"}},
			{"events --since 1h --shard dev-1 --group workers --cause unregistered", false,
				[]string{"its VM ended before its agent registered", "(rule 5)"}},
			{"group status", false, []string{"halted"}},
		},
		mend: s.writeGood,
	}, {
		heading: "There is no capacity",
		inject:  func(ctx context.Context) (string, error) { return "", s.operator.Scale(ctx, group, tooMany) },
		settle: func(ctx context.Context) error {
			_, err := s.operator.AwaitHealthy(ctx, storyRoom)
			return err
		},
		told: told{kind: "alert_raised", cause: "provider", text: "there is room for 4", grouped: true,
			pages: []string{"groups/" + group}, metric: `nstance_create_failures_total{class="no capacity"`,
			alerts: []string{"NstanceAlertActive backoff", "NstanceAlertActive provider", "NstanceGroupBelowSize "},
			doctor: []string{"alert backoff of group " + group, "alert provider of group " + group,
				"group " + group}},
		commands: []expectation{
			{"explain group", false, []string{"no capacity", "(rule 25)"}},
			{"events --since 1h --shard dev-1 --group workers --kind alert_raised", false, []string{"no capacity"}},
			{"group scale", false, nil},
		},
		mend: s.awaitNoErrors,
	}}
}

// leaderChapters returns the chapters about faults of servers.
func (s *story) leaderChapters() []chapter {
	return []chapter{{
		heading: "The leader is lost", inject: s.killLeader, settle: s.settled,
		told: told{kind: "leader_started", text: "server server-", pages: []string{""},
			metric: `nstance_leader_changes_total{cause="heir"`, alerts: []string{"NstanceNoHeir "},
			doctor: []string{"operator port in --servers"}},
		commands: []expectation{
			{"server list", false, []string{"leader", "SINCE"}},
			{"events --since 1h --shard dev-1 --kind leader_started", false, []string{"server server-"}},
		},
	}, {
		heading: "The shard has no leader", inject: s.killServers,
		settle: func(context.Context) error { return nil },
		told: told{alerts: []string{"NstanceNoLeader "}, fleet: "connection refused",
			doctor: []string{"leader", "ports of server-", "operator port in --servers"}},
		commands: []expectation{
			{"status", true, []string{"connection refused"}},
			{"doctor", true, []string{"dev-1 has no leader; server-", "a takeover is possible", "no port answers",
				"journalctl -u nstance-server", "ports of server-"}},
			{"support", false, []string{"shards/dev-1/events.json", "leader of shard dev-1", "bundle.tar.gz: "}},
		},
	}}
}
