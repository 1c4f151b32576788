package record

import "time"

// ServerReportSchema is the newest version of the server report.
const ServerReportSchema = 1

// MaxProblem is the maximum length of [ServerReport.Problem] in bytes.
const MaxProblem = 1 << 10

// ServerReport says whether the newest server of a shard became ready in time, `shard/{shard}/server-report.json`.
// `nstance-server --report-health` on the server's machine writes it.
type ServerReport struct {
	Schema int `json:"schema"`
	// Generation identifies the configuration of the server's machine. The boot script sets it as
	// NSTANCE_SERVER_GENERATION.
	Generation string `json:"generation" support:"plain"`
	// Machine is the provider's ID of the server's machine.
	Machine string `json:"machine" support:"plain"`
	// Problem says why the server is not ready. It is empty for a server that became ready.
	Problem    string    `json:"problem,omitempty" support:"words"`
	ReportedAt time.Time `json:"reported_at"`
}

// Encode checks the report and returns it as one line of JSON, with times in UTC.
func (r ServerReport) Encode() ([]byte, error) {
	utc(&r.ReportedAt)
	return encode("server report", r)
}

// DecodeServerReport parses a report strictly and checks it. The error is [ErrNewer] if a newer program wrote the
// report.
func DecodeServerReport(data []byte) (ServerReport, error) {
	return decode[ServerReport]("server report", data, ServerReportSchema)
}

// Validate returns an error that lists everything wrong with the report.
func (r ServerReport) Validate() error {
	var p problems
	p.check(r.Schema == ServerReportSchema, "schema: is %d, want %d", r.Schema, ServerReportSchema)
	p.text("generation", r.Generation, maxText, true)
	p.text("machine", r.Machine, maxText, true)
	p.text("problem", r.Problem, MaxProblem, false)
	p.time("reported_at", r.ReportedAt, true)
	return p.err("server report")
}
