package record_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

func TestServerReport(t *testing.T) {
	want := record.ServerReport{Schema: record.ServerReportSchema, Generation: "0123456789ab", Machine: "i-1",
		Problem: "503 Service Unavailable", ReportedAt: time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)}
	body, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := record.Decode[record.ServerReport](body); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, change := range []func(*record.ServerReport){
		func(r *record.ServerReport) { r.Schema = 2 },
		func(r *record.ServerReport) { r.Generation = "" },
		func(r *record.ServerReport) { r.Machine = "" },
		func(r *record.ServerReport) { r.Problem = string(make([]byte, record.MaxProblem+1)) },
		func(r *record.ServerReport) { r.ReportedAt = time.Time{} },
	} {
		wrong := want
		change(&wrong)
		if body, err := wrong.Encode(); err == nil {
			t.Errorf("%s is accepted", body)
		}
	}
}
