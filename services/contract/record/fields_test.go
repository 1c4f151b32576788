package record_test

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// TestFields compares the schema version and the fields of every document with those of the first release. A server
// refuses a document with a newer schema or an unknown field. So a difference can prevent a downgrade of the shard's
// servers.
func TestFields(t *testing.T) {
	var all strings.Builder
	for _, document := range []struct {
		name   string
		schema int // of the newest documents; 0 if unknown fields are skipped
		value  any
	}{
		{"agentkey", record.AgentKeySchema, record.AgentKey{}},
		{"applied", record.AppliedSchema, record.Applied{}},
		{"certlog", record.CertLogSchema, record.CertLog{}},
		{"clusterevent", record.ClusterEventSchema, record.ClusterEvent{}},
		{"event", 0, record.Event{}},
		{"home", record.HomeSchema, record.Home{}},
		{"instance", record.InstanceSchema, record.Instance{}},
		{"lock", newestLock(t), record.Lock{}},
		{"operator", record.OperatorSchema, record.Operator{}},
		{"rollout", record.RolloutSchema, record.Rollout{}},
		{"serverreport", record.ServerReportSchema, record.ServerReport{}},
	} {
		fmt.Fprintf(&all, "%s %d\n", document.name, document.schema)
		writeFields(&all, "\t", reflect.TypeOf(document.value))
	}
	golden(t, "fields.txt", []byte(all.String()))
	if t.Failed() {
		t.Log("docs/contributing/releases.md#change-a-document-in-the-bucket says what such a change needs")
	}
}

// newestLock returns the schema version of a lock that uses every field.
func newestLock(t *testing.T) int {
	t.Helper()
	lock := sampleLock()
	lock.Marks = sampleMarks
	data, err := record.EncodeLock(lock)
	if err != nil {
		t.Fatal(err)
	}
	if lock, err = record.DecodeLock(data); err != nil {
		t.Fatal(err)
	}
	return lock.Schema
}

// writeFields writes one line with the JSON name and the type of each field. The fields of nested structs are indented.
func writeFields(w *strings.Builder, indent string, of reflect.Type) {
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		kind := f.Type
		fmt.Fprintf(w, "%s%s %s\n", indent, name, kind)
		for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		if kind.Kind() == reflect.Struct && !kind.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			writeFields(w, indent+"\t", kind)
		}
	}
}

// TestEventsGolden checks that a part of a journal that the first release wrote can still be read.
func TestEventsGolden(t *testing.T) {
	want := []record.Event{{Term: 3, Sequence: 1, At: t0, Kind: record.EventInstanceCreated, Tenant: "prod",
		Group: "workers", Instance: instanceID, Replaces: "acc06bgm7733st2576nx5jht4ecjg", Cause: "lost",
		Actor: "leader", Message: "created", TookSeconds: 1.5}}
	data, err := record.EncodeEvents(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := record.DecodeEvents(golden(t, "events.jsonl", data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestReportsGolden checks that server reports, homes and entries of the cluster journal that the first release wrote
// can still be read.
func TestReportsGolden(t *testing.T) {
	report := record.ServerReport{Schema: record.ServerReportSchema, Generation: "0123456789ab", Machine: "i-1",
		Problem: "503 Service Unavailable", ReportedAt: t0.Truncate(time.Second)}
	data, err := report.Encode()
	if err != nil {
		t.Fatal(err)
	}
	gotReport, err := record.Decode[record.ServerReport](golden(t, "serverreport.json", data))
	if err != nil || gotReport != report {
		t.Errorf("%+v, %v", gotReport, err)
	}
	home := record.Home{Schema: record.HomeSchema, Buckets: []record.Bucket{{Provider: "s3",
		Endpoint: "https://store.example.com:443", Name: "prod", Prefix: "team"}}, RestoredAt: t0, OrphansWait: true}
	if data, err = home.Encode(); err != nil {
		t.Fatal(err)
	}
	gotHome, err := record.Decode[record.Home](golden(t, "home.json", data))
	if err != nil || !reflect.DeepEqual(gotHome, home) {
		t.Errorf("%+v, %v", gotHome, err)
	}
	event := record.ClusterEvent{Schema: record.ClusterEventSchema, At: t0, Kind: "secret_set", Actor: "alice at desk",
		Subject: "db.password"}
	if data, err = event.Encode(); err != nil {
		t.Fatal(err)
	}
	gotEvent, err := record.Decode[record.ClusterEvent](golden(t, "clusterevent.json", data))
	if err != nil || gotEvent != event {
		t.Errorf("%+v, %v", gotEvent, err)
	}
}
