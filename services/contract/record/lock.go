package record

import (
	"errors"
	"time"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/contract/highwater"
)

const (
	// lockSchema is the newest schema version. A lock without marks has version 1, so that older programs can read it.
	lockSchema = 2
	// maxLockText bounds every text of the lock, in bytes.
	maxLockText = 512
	// maxLease is the longest lease that a reader accepts. A longer one in a lock is a mistake.
	maxLease = time.Hour
	// maxCount is the largest term and revision. It is far from an overflow.
	maxCount = 1 << 62
)

// Lock is the election lock of a shard, `shard/{shard}/leader.json`: the leader (the lock's holder), its term, and how
// long other servers wait after they have read the lock. Servers replace the lock by conditional writes and never
// delete it. Two locks can be compared with ==.
//
// Incarnation and Revision together identify one version of the lock: two versions with different content never have
// the same pair.
type Lock struct {
	Schema int `json:"schema"`
	// LeaderID is the server's --id. Incarnation is random and differs for each start of a process, so that a restarted
	// process does not take itself for the leader.
	LeaderID    string        `json:"leader_id" support:"plain"`
	Incarnation string        `json:"incarnation" support:"plain"`
	Addresses   LockAddresses `json:"addresses,omitzero"`
	// Machine is the provider's ID of the holder's machine. No other machine ever gets this ID. Empty: the provider
	// cannot be asked about the machine.
	Machine string `json:"machine,omitempty" support:"plain"`
	// Term rises by at least one whenever the leader changes. Revision rises with every version.
	Term     uint64 `json:"term"`
	Revision uint64 `json:"revision"`
	// LeaseMS is how long the holder may act after a renewal, in milliseconds; RenewMS is the time between renewals.
	LeaseMS int64 `json:"lease_ms"`
	RenewMS int64 `json:"renew_ms"`
	// Heir is the standby that promises the holder not to take over the lock. The holder may act only while it has this
	// promise. Zero: the lock has no heir.
	Heir LockHeir `json:"heir,omitzero"`
	// Released means that the holder has stopped acting: the lock may be taken over without waiting.
	Released bool `json:"released,omitempty"`
	// AppliedETag is the token of the configuration that the holder applied last.
	AppliedETag string `json:"applied_etag,omitempty"`
	// Marks are the highest versions of signed and sealed objects that the shard's servers have seen, as encoded by
	// highwater.Marks. Empty: none.
	Marks string `json:"marks,omitempty"`
	// RenewedAt is when the holder renewed the lock, by its wall clock. It is for people: no decision uses it.
	RenewedAt time.Time `json:"renewed_at,omitzero"`
}

// LockAddresses are the addresses (host:port) of the holder's ports. An empty field means that the holder does not
// serve that port.
type LockAddresses struct {
	Election     string `json:"election,omitempty" support:"plain"`
	Registration string `json:"registration,omitempty" support:"plain"`
	Operator     string `json:"operator,omitempty" support:"plain"`
	Agent        string `json:"agent,omitempty" support:"plain"`
}

// LockHeir names one process.
type LockHeir struct {
	ID          string `json:"id" support:"plain"`
	Incarnation string `json:"incarnation" support:"plain"`
}

// Lease is LeaseMS as a duration.
func (l Lock) Lease() time.Duration { return time.Duration(l.LeaseMS) * time.Millisecond }

// Renew is RenewMS as a duration.
func (l Lock) Renew() time.Duration { return time.Duration(l.RenewMS) * time.Millisecond }

// Version returns an identifier of this version of the lock. No other version of the lock ever has the same one.
func (l Lock) Version() LockVersion {
	return LockVersion{Incarnation: l.Incarnation, Revision: l.Revision}
}

// LockVersion identifies a version of a lock. Two values can be compared with ==. The zero value means no version.
type LockVersion struct {
	Incarnation string
	Revision    uint64
}

// EncodeLock sets l.Schema, checks l as DecodeLock does, and encodes it. Equal locks have equal bytes.
func EncodeLock(l Lock) ([]byte, error) {
	if l.Schema = lockSchema; l.Marks == "" {
		l.Schema = 1
	}
	l.RenewedAt = l.RenewedAt.UTC().Truncate(time.Second)
	return encode(l)
}

// DecodeLock reads a lock. Unknown fields, trailing data, values out of range and newer schema versions (ErrNewer) are
// errors. A server must not take over a lock that it cannot read, because it does not know how long to wait.
func DecodeLock(data []byte) (Lock, error) { return Decode[Lock](data) }

func (Lock) kind() (string, int) { return "lock", lockSchema }

// Validate returns an error that lists everything wrong with the lock.
func (l Lock) Validate() error {
	var p problems
	p.check(l.LeaderID != "", "no leader_id")
	p.check(l.Incarnation != "", "no incarnation")
	p.check(l.Term > 0 && l.Term < maxCount, "term %d", l.Term)
	p.check(l.Revision > 0 && l.Revision < maxCount, "revision %d", l.Revision)
	p.check(l.LeaseMS > 0 && l.LeaseMS <= maxLease.Milliseconds(), "lease_ms %d, want 1 to %d", l.LeaseMS,
		maxLease.Milliseconds())
	p.check(l.RenewMS > 0 && l.RenewMS < l.LeaseMS, "renew_ms %d, want less than lease_ms", l.RenewMS)
	p.check(l.Heir == LockHeir{} || (l.Heir.ID != "" && l.Heir.Incarnation != ""), "heir without id or incarnation")
	p.check(l.Heir.Incarnation != l.Incarnation || l.Incarnation == "", "heir is the holder itself")
	p.add("marks", highwater.Validate(l.Marks))
	year := l.RenewedAt.UTC().Year()
	p.check(year >= 1 && year <= 9999, "renewed_at in the year %d", year)
	for _, field := range []struct{ name, text string }{
		{"leader_id", l.LeaderID}, {"incarnation", l.Incarnation}, {"machine", l.Machine},
		{"applied_etag", l.AppliedETag},
		{"heir id", l.Heir.ID}, {"heir incarnation", l.Heir.Incarnation},
		{"election address", l.Addresses.Election}, {"registration address", l.Addresses.Registration},
		{"operator address", l.Addresses.Operator}, {"agent address", l.Addresses.Agent},
	} {
		p.add(field.name, checkLockText(field.text))
	}
	return p.err("lock")
}

func checkLockText(s string) error {
	switch {
	case len(s) > maxLockText:
		return errors.New("too long")
	case !utf8.ValidString(s):
		return errors.New("not UTF-8")
	}
	return nil
}
