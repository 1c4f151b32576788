package election

import (
	"testing"

	"github.com/nstance-kit/nstance/services/internal/proof/mutate"
)

// mutant is a plausible mistake in the rules about the heir.
type mutant struct {
	name string
	edit mutate.Edit
}

var mutants = []mutant{
	{"a promise counts from its arrival", mutate.Edit{In: "Elector.recordPromise",
		Find:    "l.promised, l.promisedFrom = true, s",
		Replace: "l.promised, l.promisedFrom = true, now"}},
	{"the leader acts without a promise", mutate.Edit{In: "Elector.authorityEnd",
		Find:    "a < b",
		Replace: "a < 0"}},
	{"a sent takeover allows promises", mutate.Edit{In: "Elector.answerHeartbeat",
		Find:    "e.pending == write || a",
		Replace: "e.pending != write && a"}},
	{"an unanswered takeover allows promises", mutate.Edit{In: "Elector.answerHeartbeat",
		Find:    "e.pending == write || a",
		Replace: "e.pending == write"}},
	{"a restarted heir keeps its claim", mutate.Edit{In: "Elector.isHeir",
		Find:    "return a && b && c",
		Replace: "return lock.Heir.ID == e.self.ID"}},
	{"while a change is unsettled only the new heir counts", mutate.Edit{In: "Elector.authorityEnd",
		Find:    "h := [2]Peer{p}",
		Replace: "h := [2]Peer{}\nif e.write.attempts == 0 {\nh[0] = p\n}"}},
	{"while a change is unsettled only the former heir counts", mutate.Edit{In: "Elector.authorityEnd",
		Find:    "h[1] = a",
		Replace: ""}},
	{"while a change is unsettled the former lease counts", mutate.Edit{In: "Elector.leaseEnd",
		Find:    "u = min(u, a)",
		Replace: ""}},
	{"a promise has no margin", mutate.Edit{In: "Elector.answerHeartbeat",
		Find:    "promiseHold(l)",
		Replace: "l*9/10"}},
	{"the heir does not wait for the end of its promise", mutate.Edit{In: "Elector.takeoverTime",
		Find:    "return e.promise.until",
		Replace: "return e.seen.since"}},
	{"standbys wait for the short lease of a lock with an heir", mutate.Edit{In: "Elector.takeoverTime",
		Find:    "takeoverWait(l.Lease())",
		Replace: "takeoverWait(e.opt.Lease)"}},
	{"the leader keeps an heir that does not answer", mutate.Edit{In: "Elector.chooseHeir",
		Find:    "!l.up || !l.promised || x",
		Replace: "!l.promised"}},
	{"promises end with the link", mutate.Edit{In: "Elector.dropLink",
		Find:    "l.up = false",
		Replace: "*l = standbyLink{}"}},
	{"the leader stops without a handover", mutate.Edit{In: "Elector.startRelease",
		Find:    "if a {\ne.offerHandover(n, d)\n}",
		Replace: ""}},
	{"the leader hands over and keeps the lock", mutate.Edit{In: "Elector.offerHandover",
		Find:    "e.mustRead, e.retryAt = true, t",
		Replace: "e.handedOver = true"}},
}

// TestMutantsApply checks that every mutant still matches the source. TestMutants, with the build tag mutation, runs
// them.
func TestMutantsApply(t *testing.T) {
	for _, m := range mutants {
		if _, err := m.edit.WriteOverlay(".", t.TempDir()); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
