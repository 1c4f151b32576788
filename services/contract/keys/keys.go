// Package keys defines the layout of the bucket: it builds and parses every key.
//
// Invariant: for every key that Parse accepts, the builder of its kind makes the same key from the parsed parts; and
// every key that a builder makes from valid parts is accepted by Parse. All keys are relative to the bucket's optional
// prefix (objstore.WithPrefix adds it).
//
// Builders join their arguments without checking them: names come from packages that have validated them (ident). IDs
// are in storage form, "{uuid with dashes}-{prefix}", which sorts by time. Only the names of secrets and files may hold
// dots, so dots separate the parts of a key's last segment.
package keys

import (
	"fmt"
	"strings"
	"time"
)

// ClusterCA is the key of the PEM bundle of CA certificates, newest first.
func ClusterCA() string { return "cluster/ca.crt" }

// SecretPrefix is the prefix of all sealed secrets.
func SecretPrefix() string { return "cluster/secret/" }

// ClusterSecret is the key of the sealed secret with the given name (see ValidateSecretName).
func ClusterSecret(name string) string { return SecretPrefix() + name }

// OperatorPrefix is the prefix of the records of all registered operators.
func OperatorPrefix() string { return "cluster/operator/" }

// OperatorTenantPrefix is the prefix of the records of one tenant's operators.
func OperatorTenantPrefix(tenant string) string { return OperatorPrefix() + tenant + "." }

// ClusterOperator is the key of a registered operator's record.
func ClusterOperator(tenant, storageID string) string {
	return OperatorTenantPrefix(tenant) + storageID + ".json"
}

// AgentKeyPrefix is the prefix of the public keys of all agents that have registered.
func AgentKeyPrefix() string { return "cluster/key/" }

// AgentKey is the key of the document that names the instance to which an agent's public key belongs. It contains the
// public key, which has 32 bytes.
func AgentKey(public []byte) string { return fmt.Sprintf("%s%x.json", AgentKeyPrefix(), public) }

// ClusterJournalPrefix is the prefix of the journal entries about changes that a person made in the bucket.
func ClusterJournalPrefix() string { return "cluster/journal/" }

// ClusterJournal is the key of one entry under [ClusterJournalPrefix]. Entries sort by time. The nonce (1 to 64 of
// [a-z0-9-]) differs between entries of the same time.
func ClusterJournal(at time.Time, nonce string) string {
	return ClusterJournalPrefix() + formatTime(at) + "." + nonce + ".json"
}

// ConfigPrefix is the prefix of the static configurations of all shards.
func ConfigPrefix() string { return "config/" }

// Config is the key of a shard's static configuration. No server ever writes it.
func Config(shard string) string { return ConfigPrefix() + shard + ".jsonc" }

// Groups is the key of a shard's dynamic groups and overrides.
func Groups(shard string) string { return "groups/" + shard + ".jsonc" }

// FilePrefix is the prefix of the objects that templates may deliver to instances (file kind "storage").
func FilePrefix() string { return "files/" }

// File is the key of an object that templates may deliver to instances. The name may hold slashes.
func File(name string) string { return FilePrefix() + name }

// ShardsPrefix is the prefix of all objects that the servers of shards write, except the files with the shards' groups.
func ShardsPrefix() string { return "shard/" }

func shardPrefix(shard string) string { return ShardsPrefix() + shard + "/" }

// Leader is the key of a shard's election lock.
func Leader(shard string) string { return shardPrefix(shard) + "leader.json" }

// Home is the key of the document that names the bucket in which a shard's servers may lead.
func Home(shard string) string { return shardPrefix(shard) + "home.json" }

// Applied is the key of the last configuration that a shard's leader accepted.
func Applied(shard string) string { return shardPrefix(shard) + "applied.jsonc" }

// ServerReport is the key of the last report about a new server of a shard.
func ServerReport(shard string) string { return shardPrefix(shard) + "server-report.json" }

// RolloutPrefix is the prefix of what is stored about the rollouts of a shard's groups.
func RolloutPrefix(shard string) string { return shardPrefix(shard) + "rollout/" }

// Rollout is the key of what is stored about the rollouts of one group.
func Rollout(shard, tenant, group string) string {
	return RolloutPrefix(shard) + tenant + "." + group + ".json"
}

// InstancePrefix is the prefix of all instance records of a shard.
func InstancePrefix(shard string) string { return shardPrefix(shard) + "instance/" }

// Instance is the key of one instance record.
func Instance(shard, tenant, storageID string) string {
	return InstancePrefix(shard) + tenant + "." + storageID + ".json"
}

// CertLogPrefix is the prefix of a shard's log of issued certificates.
func CertLogPrefix(shard string) string { return shardPrefix(shard) + "certlog/" }

// CertLog is the key of one entry in a shard's log of issued certificates. The time is written in UTC with nanoseconds
// at fixed width, so that one tenant's entries sort by time. Years outside 0–9999 cannot be parsed back.
func CertLog(shard, tenant string, at time.Time, instanceStorageID string) string {
	return CertLogPrefix(shard) + tenant + "." + formatTime(at) + "." + instanceStorageID + ".json"
}

// JournalPrefix is the prefix of all parts of a shard's journal.
func JournalPrefix(shard string) string { return shardPrefix(shard) + "journal/" }

// JournalDayPrefix is the prefix of the parts of a shard's journal that begin on the given day, in UTC. A part begins
// with its first event.
func JournalDayPrefix(shard string, day time.Time) string {
	return JournalPrefix(shard) + day.UTC().Format(time.DateOnly) + "/"
}

// Journal is the key of one part of a shard's journal. The key contains the day of the part's first event in UTC, the
// term of the leader that wrote the part, and the sequence number of the first event in that term.
func Journal(shard string, day time.Time, term, first uint64) string {
	return fmt.Sprintf("%s%d-%d.jsonl", JournalDayPrefix(shard, day), term, first)
}

// ProbePrefix is the prefix of the objects with which a server tests whether its bucket honours conditional puts. The
// server deletes them after the test. An object that remains after a crash can be ignored.
func ProbePrefix(shard string) string { return shardPrefix(shard) + "probe/" }

// ClusterProbeShard is what programs use instead of a shard's name when they test the conditional puts of a cluster's
// bucket.
const ClusterProbeShard = "cluster"

// Probe is the key of one object under [ProbePrefix]. The nonce (1 to 64 of [a-z0-9-]) differs between servers.
func Probe(shard, nonce string) string { return ProbePrefix(shard) + nonce }

// Times in keys look like 20260728T101112123456789Z. formatTime removes the dot from a time in timeLayout.
const (
	secondsLayout = "20060102T150405"
	timeLayout    = secondsLayout + ".000000000Z"
)

func formatTime(at time.Time) string { return strings.Replace(at.UTC().Format(timeLayout), ".", "", 1) }
