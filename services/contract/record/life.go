package record

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// InstanceSchema is the newest version of the instance record.
const InstanceSchema = 1

const (
	maxWriter = 128  // incarnations and server IDs
	maxText   = 1024 // reasons, provider IDs, images
)

// order lists the states in the order of an instance's life.
var order = []State{Reserved, Created, Registered, Deleting, Deleted}

// CanMove reports whether an instance may change from one state to another. An instance only changes forward, so it
// enters each state at most once. States may be skipped: an agent may register before the provider has answered, and a
// record of any state may become a tombstone.
func CanMove(from, to State) bool {
	a, b := slices.Index(order, from), slices.Index(order, to)
	return a >= 0 && b > a
}

// Next returns the instance's next version, with the given state and the next revision. term is the term of the leader
// that writes this version, and writer is the leader's incarnation. The caller fills in the fields that the new state
// needs. The result shares no memory with i.
func (i Instance) Next(to State, term uint64, writer string) (Instance, error) {
	if !CanMove(i.State, to) {
		return Instance{}, fmt.Errorf("instance %s cannot go from %s to %s", i.ID, i.State, to)
	}
	if term < i.Term {
		return Instance{}, fmt.Errorf("instance %s was written in term %d, which term %d may not change", i.ID, i.Term,
			term)
	}
	next := i.Clone()
	next.State, next.Revision, next.Term, next.Writer = to, i.Revision+1, term, writer
	return next, nil
}

// Clone returns a copy that shares no memory with i.
func (i Instance) Clone() Instance {
	i.Vars = maps.Clone(i.Vars)
	i.PublicKey, i.PreviousKey = slices.Clone(i.PublicKey), slices.Clone(i.PreviousKey)
	if i.Certificate != nil {
		ref := *i.Certificate
		i.Certificate = &ref
	}
	if i.Preserved != nil {
		preserved := *i.Preserved
		i.Preserved = &preserved
	}
	if i.Spare != nil {
		spare := *i.Spare
		i.Spare = &spare
	}
	return i
}

// Encode checks the record and returns it as one line of JSON, with times in UTC.
func (i Instance) Encode() ([]byte, error) {
	i = i.Clone()
	utc(&i.CreatedAt, &i.LaunchedAt, &i.RegisteredAt, &i.DeletingAt, &i.DeleteDeadline, &i.DeletedAt)
	if i.Certificate != nil {
		utc(&i.Certificate.NotAfter)
	}
	if i.Preserved != nil {
		utc(&i.Preserved.At)
	}
	if i.Spare != nil {
		utc(&i.Spare.PromotedAt, &i.Spare.AsleepAt)
	}
	return encode(i)
}

func (Instance) kind() (string, int) { return "instance record", InstanceSchema }

// Validate returns an error that lists everything wrong with the record.
func (i Instance) Validate() error {
	var p problems
	p.check(i.Schema == InstanceSchema, "schema: is %d, want %d", i.Schema, InstanceSchema)
	p.check(!i.ID.IsZero(), "id: is empty")
	p.add("kind", ident.ValidateKind(i.Kind))
	p.check(i.Kind == i.ID.Prefix(), "kind: is %q, the ID's prefix is %q", i.Kind, i.ID.Prefix())
	p.check(slices.Contains(order, i.State), "state: %q is unknown", i.State)
	p.check(i.Revision > 0, "revision: is 0")
	p.check(i.ReservedTerm > 0, "reserved_term: is 0")
	p.check(i.Term >= i.ReservedTerm, "term: is %d, before reserved_term %d", i.Term, i.ReservedTerm)
	p.text("writer", i.Writer, maxWriter, true)
	p.add("cluster", ident.ValidateClusterName(i.Cluster))
	p.add("shard", ident.ValidateName(i.Shard))
	p.add("tenant", ident.ValidateTenantName(i.Tenant))
	for _, name := range []struct{ field, value string }{{"group", i.Group}, {"template", i.Template}} {
		if name.value != "" {
			p.add(name.field, ident.ValidateName(name.value))
		}
	}
	for _, text := range []struct{ field, value string }{
		{"instance_type", i.InstanceType}, {"subnet_id", i.SubnetID}, {"image", i.Image},
		{"infra_config_hash", i.InfraHash},
		{"provider_id", i.ProviderID}, {"hostname", i.Hostname}, {"nonce_id", i.NonceID},
		{"delete_reason", i.DeleteReason},
	} {
		p.text(text.field, text.value, maxText, false)
	}
	for name, value := range i.Vars {
		p.check(utf8.ValidString(name) && utf8.ValidString(value), "vars: %q is not UTF-8", name)
	}
	p.address("ipv4", i.IPv4, netip.Addr.Is4)
	p.address("ipv6", i.IPv6, netip.Addr.Is6)
	p.time("created_at", i.CreatedAt, true)
	p.time("launched_at", i.LaunchedAt, false)
	p.time("registered_at", i.RegisteredAt, false)
	p.time("deleting_at", i.DeletingAt, false)
	p.time("delete_deadline", i.DeleteDeadline, false)
	p.time("deleted_at", i.DeletedAt, false)
	p.certificate(i.Certificate)
	if i.Preserved != nil {
		p.time("preserved.at", i.Preserved.At, true)
		p.text("preserved.reason", i.Preserved.Reason, maxText, true)
		p.check(i.State != Reserved && !i.OnDemand, "preserved: is there although reserved or on demand")
	}
	if i.Spare != nil {
		p.time("spare.promoted_at", i.Spare.PromotedAt, false)
		p.check(!i.OnDemand, "spare: is there although on demand")
		p.check(i.Spare.PromotedAt.IsZero() || !i.RegisteredAt.IsZero(),
			"spare.promoted_at: is there although not registered")
		p.text("spare.sleep", i.Spare.Sleep, maxText, false)
		p.time("spare.asleep_at", i.Spare.AsleepAt, false)
		p.check(i.Spare.AsleepAt.IsZero() || i.Spare.Sleep != "" && !i.RegisteredAt.IsZero(),
			"spare.asleep_at: is there although the VM cannot sleep or is not registered")
	}
	p.check(len(i.PublicKey) == 0 || len(i.PublicKey) == ed25519.PublicKeySize, "public_key: has %d bytes, want %d",
		len(i.PublicKey), ed25519.PublicKeySize)
	p.previousKey(i.PublicKey, i.PreviousKey)
	i.validateState(&p)
	return p.err("instance record " + i.ID.String())
}

// validateState checks that the record has the fields that its state needs, and none that only a later state has.
func (i Instance) validateState(p *problems) {
	registered := len(i.PublicKey) > 0
	p.check(registered == !i.RegisteredAt.IsZero() && registered == (i.Certificate != nil) &&
		registered == (i.NonceID != ""),
		"registered_at, public_key, certificate, nonce_id: only all together")
	switch i.State {
	case Reserved:
		p.check(i.ProviderID == "", "provider_id: is there although only reserved")
	case Created, Registered:
		p.check(i.Group != "", "group: is empty although %s", i.State)
		// An agent may register before the provider has answered.
		p.check(i.ProviderID != "" || i.State == Registered, "provider_id: is empty although %s", i.State)
	case Deleting:
		p.check(i.DeleteReason != "", "delete_reason: is empty although deleting")
		p.check(!i.DeletingAt.IsZero() && !i.DeleteDeadline.IsZero(),
			"deleting_at, delete_deadline: are empty although deleting")
	}
	alive := i.State == Reserved || i.State == Created || i.State == Registered
	p.check(!alive || i.DeleteReason == "" && i.DeletingAt.IsZero() && i.DeleteDeadline.IsZero(),
		"delete_reason, deleting_at, delete_deadline: are there although %s", i.State)
	p.check((i.State == Deleted) == !i.DeletedAt.IsZero(), "deleted_at: does not agree with the state %s", i.State)
	p.check(!registered || i.State != Reserved && i.State != Created, "public_key: is there although %s", i.State)
	p.check(registered || i.State != Registered, "public_key: is empty although registered")
}

func (p *problems) text(field, value string, limit int, required bool) {
	p.check(!required || value != "", "%s: is empty", field)
	p.check(len(value) <= limit, "%s: %d bytes, at most %d are allowed", field, len(value), limit)
	p.check(!strings.ContainsFunc(value, func(r rune) bool {
		return r < 0x20 || r == 0x7f || r == '\uFFFD'
	}), "%s: holds control characters or is not UTF-8", field)
}

func (p *problems) previousKey(key, previous []byte) {
	p.check(len(previous) == 0 || len(previous) == ed25519.PublicKeySize && len(key) > 0 && !bytes.Equal(previous, key),
		"previous_key: is not another key of %d bytes", ed25519.PublicKeySize)
}

func (p *problems) address(field, value string, family func(netip.Addr) bool) {
	if value == "" {
		return
	}
	addr, err := netip.ParseAddr(value)
	p.check(err == nil && family(addr) && addr.Zone() == "" && addr.String() == value,
		"%s: is no such address in canonical form", field)
}

// time refuses a time that is not in UTC, so that each instant has one spelling.
func (p *problems) time(field string, at time.Time, required bool) {
	p.check(!required || !at.IsZero(), "%s: is empty", field)
	p.check(at.Location() == time.UTC, "%s: is not in UTC", field)
	p.check(at.IsZero() || at.Year() > 1969 && at.Year() < 10000, "%s: year %d", field, at.Year())
}

func (p *problems) certificate(ref *CertificateRef) {
	if ref == nil {
		return
	}
	p.serial("certificate.serial", ref.Serial)
	p.time("certificate.not_after", ref.NotAfter, true)
	p.trust("certificate.trust", ref.Trust)
}

// trust wants what authority.Trust returns.
func (p *problems) trust(field, value string) {
	p.check(value == "" || len(value) == 16 && strings.Trim(value, "0123456789abcdef") == "",
		"%s: want 16 hexadecimal characters", field)
}

// serial refuses a text that is not a serial number: 128 bits in lower-case hexadecimal, as package authority writes
// it.
func (p *problems) serial(field, value string) {
	p.check(len(value) == 32 && strings.Trim(value, "0123456789abcdef") == "", "%s: want 32 hexadecimal characters",
		field)
}

// utc converts times to UTC and removes their readings of the monotonic clock.
func utc(times ...*time.Time) {
	for _, t := range times {
		*t = t.UTC().Round(0)
	}
}
