// Package messages turns documents of the bucket into messages of the operator API. The leader adds to them what only
// it knows. Without a leader, nstance-admin shows them as what is last known.
package messages

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// Timestamp returns a time as a message, or nil for the zero time.
func Timestamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// Position returns the position of an event in the journal as "TERM-SEQUENCE".
func Position(e record.Event) string { return fmt.Sprintf("%d-%d", e.Term, e.Sequence) }

// Event returns an event of the journal.
func Event(e record.Event) *nstancev1.JournalEvent {
	event := &nstancev1.JournalEvent{Position: Position(e), Term: e.Term, At: Timestamp(e.At), Kind: string(e.Kind),
		Group: e.Group, InstanceId: e.Instance, Replaces: e.Replaces, Cause: e.Cause, Actor: e.Actor,
		Message: e.Message, TookSeconds: e.TookSeconds}
	if e.Kind == record.EventGroupSize {
		event.Size = &nstancev1.GroupSize{Desired: uint32(e.Size.Desired), Actual: uint32(e.Size.Actual),
			Healthy: uint32(e.Size.Healthy)}
	}
	return event
}

// Instance returns what the record of an instance says.
func Instance(rec *record.Instance) *nstancev1.InstanceStatus {
	out := &nstancev1.InstanceStatus{
		InstanceId: rec.ID.String(), Group: rec.Group, Template: rec.Template, Kind: rec.Kind, OnDemand: rec.OnDemand,
		State: string(rec.State), ProviderId: rec.ProviderID, Ipv4: rec.IPv4, Ipv6: rec.IPv6, Hostname: rec.Hostname,
		InstanceType: rec.InstanceType, SubnetId: rec.SubnetID, Image: rec.Image, Term: rec.Term,
		CreatedAt: Timestamp(rec.CreatedAt), LaunchedAt: Timestamp(rec.LaunchedAt),
		RegisteredAt: Timestamp(rec.RegisteredAt), DeleteReason: rec.DeleteReason,
		DeleteDeadline: Timestamp(rec.DeleteDeadline), DeletedAt: Timestamp(rec.DeletedAt),
	}
	if rec.Preserved != nil {
		out.PreservedAt, out.PreserveReason = Timestamp(rec.Preserved.At), rec.Preserved.Reason
	}
	if out.Spare = rec.IsSpare(); rec.Spare != nil {
		out.PromotedAt = Timestamp(rec.Spare.PromotedAt)
	}
	if rec.Certificate != nil {
		out.CertificateNotAfter = Timestamp(rec.Certificate.NotAfter)
	}
	return out
}

// Group returns the definition of a group in a shard at a time. entry is the group's entry in the dynamic groups, if it
// has one.
func Group(shard *config.Shard, g *config.Group, entry config.GroupSpec, overridden bool,
	now time.Time) *nstancev1.GroupStatus {
	if overridden && g.Static && !entry.Deleted {
		entry = shard.Current(g.GroupKey, entry, now)
		overridden = !entry.Empty()
	}
	out := &nstancev1.GroupStatus{Group: g.GroupKey.Group, IsStatic: g.Static, Overridden: overridden,
		Deleting: g.Deleted, Kind: g.Kind, Arch: g.Arch, RuntimeHash: g.RuntimeHash, InfraHash: g.InfraHash}
	size, _ := g.SizeAt(now)
	out.Size = uint32(size)
	for _, f := range shard.SetFields(g.GroupKey, entry, now) {
		until, _ := time.Parse(time.RFC3339, f.Until)
		at, _ := time.Parse(time.RFC3339, f.At)
		out.Overrides = append(out.Overrides, &nstancev1.GroupOverride{Path: f.Path, Value: jsonOf(f.Value),
			Configured: jsonOf(f.Configured), By: f.By, At: Timestamp(at), Pinned: f.Pinned, Until: Timestamp(until)})
	}
	if overridden {
		entry.Deleted = false // reported by the field Deleting
		if text, err := json.Marshal(entry); err == nil {
			out.SpecJson = string(text)
		}
	}
	return out
}

// jsonOf returns a value of a setting as JSON, or "" if there is none.
func jsonOf(value any) string {
	text, err := json.Marshal(value)
	if value == nil || err != nil {
		return ""
	}
	return string(text)
}
