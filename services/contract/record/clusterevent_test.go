package record_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

func TestClusterEvent(t *testing.T) {
	e := record.ClusterEvent{Schema: record.ClusterEventSchema, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Kind: "secret_set", Actor: "alice at desk", Subject: "db.password"}
	body, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := record.Decode[record.ClusterEvent](body); err != nil || got != e {
		t.Errorf("%+v, %v", got, err)
	}
	for text, want := range map[string]string{
		`{"schema": 1}`:               "kind",
		`{"schema": 1, "value": "x"}`: "unknown field",
	} {
		_, err := record.Decode[record.ClusterEvent]([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := record.Decode[record.ClusterEvent]([]byte(`{"schema": 9}`)); !errors.Is(err, record.ErrNewer) {
		t.Error(err)
	}
}
