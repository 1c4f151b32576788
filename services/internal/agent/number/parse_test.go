package number

import (
	"fmt"
	"math"
	"strings"
	"testing"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

const exposition = `# HELP http_inflight Requests in work.
# TYPE http_inflight gauge
http_inflight{handler="/a"} 3
http_inflight{handler="/b {x} \"y\""} 4.5 1395066363000
# TYPE http_inflight_limit gauge
http_inflight_limit 1000
# TYPE http_requests_total counter
http_requests_total{code="200"} 1027 1395066363000
http_requests_total{code="400"} 3
# TYPE latency histogram
latency_bucket{le="0.5"} 2
latency_bucket{le="+Inf"} 3
latency_sum 1.75
latency_count 3
# TYPE size summary
size{quantile="0.5"} 4
size_sum 20
size_count 5
# TYPE jobs counter
jobs_total 9
  untyped   7
broken{ 1
words seven
empty NaN
`

func TestMetric(t *testing.T) {
	for _, test := range []struct {
		document, name string
		want           float64
		counter        bool
		problem        string
	}{
		{exposition, "http_inflight", 7.5, false, ""},
		{exposition, "http_inflight_limit", 1000, false, ""},
		{exposition, "http_requests_total", 1030, true, ""},
		{exposition, "untyped", 7, false, ""},
		{exposition, "latency_count", 3, true, ""},
		{exposition, "latency_sum", 1.75, true, ""},
		{exposition, "size_count", 5, true, ""},
		{exposition, "jobs_total", 9, true, ""},
		{exposition, "latency", 0, false, "latency is a histogram, of which only _count and _sum are numbers"},
		{exposition, "latency_bucket", 0, false, "latency_bucket is a histogram"},
		{exposition, "size", 0, false, "size is a summary"},
		{exposition, "http", 0, false, "no metric http"},
		{exposition, "broken", 0, false, "a malformed line of broken: "},
		{exposition, "words", 0, false, `a malformed line of words: expected float as value, got "seven"`},
		{exposition, "empty", math.NaN(), false, ""},
		{"", "x", 0, false, "no metric x"},
		{"x 1", "x", 1, false, ""}, // without an end of the line
		{"x 1\r\nx{a=\"b\"} 2\r\n", "x", 3, false, ""},
		{"x\n", "x", 0, false, "no metric x"},
		{"# TYPE x info\nx 1\n", "x", 0, false, "x is a info"},
		{strings.Repeat("x 1\n", maxSeries), "x", maxSeries, false, ""},
		{strings.Repeat("x 1\n", maxSeries+1), "x", 0, false, "more than 10000 series of x"},
	} {
		got, counter, err := metric([]byte(test.document), test.name)
		same := got == test.want || math.IsNaN(got) && math.IsNaN(test.want)
		if !same || counter != test.counter || (err == nil) != (test.problem == "") || err != nil &&
			!strings.HasPrefix(err.Error(), test.problem) {
			t.Errorf("%s in %.20q: %v, %v, %v; want %v, %v, %q", test.name, test.document, got, counter, err, test.want,
				test.counter, test.problem)
		}
	}
}

func inMetric(name string) *nstancev1.VmNumber {
	return &nstancev1.VmNumber{In: &nstancev1.VmNumber_Metric{Metric: name}}
}

func inJSON(pointer string) *nstancev1.VmNumber {
	return &nstancev1.VmNumber{In: &nstancev1.VmNumber_Json{Json: pointer}}
}

func TestParse(t *testing.T) {
	const page = "\n<!DOCTYPE html>\n<html>x 1</html>"
	for _, test := range []struct {
		document string
		spec     *nstancev1.VmNumber
		want     string
	}{
		{"x 1", inMetric("x"), "1 <nil>"},
		{`{"queue": {"waiting": 12}}`, inJSON("/queue/waiting"), "12 <nil>"},
		{`{"queue": {}}`, inJSON("/queue/waiting"), `0 the answer has no value at "/queue/waiting"`},
		{page, inMetric("x"), "0 a page of HTML instead of a number"},
		{page, inJSON("/x"), "0 a page of HTML instead of a number"},
		{"x 1", &nstancev1.VmNumber{}, "0 this agent does not know how to read the number"},
	} {
		value, _, err := parse([]byte(test.document), test.spec)
		if got := fmt.Sprint(value, " ", err); got != test.want {
			t.Errorf("%.20q: %s, want %s", test.document, got, test.want)
		}
	}
}

// FuzzParse checks that what a program serves never makes the agent panic, and that a number that it may report is
// finite and not negative.
func FuzzParse(f *testing.F) {
	f.Add([]byte(exposition), "http_inflight", false)
	f.Add([]byte(exposition), "latency_count", false)
	f.Add([]byte("# TYPE x histogram\nx_count{le=\"1\"} 1e300 5\nx_count -1\n"), "x_count", false)
	f.Add([]byte("x{a=\"\\n\\\\\",} +Inf\n"), "x", false)
	f.Add([]byte(`{"a": [1e308, -0]}`), "/a/1", true)
	f.Fuzz(func(t *testing.T, document []byte, name string, json bool) {
		spec := inMetric(name)
		if json {
			spec = inJSON(name)
		}
		value, counter, err := parse(document, spec)
		if err != nil && (value != 0 || counter || err.Error() == "") {
			t.Errorf("%v, %v with the error %v", value, counter, err)
		}
		if err == nil && checkValue(value) == nil && !(value >= 0 && value <= math.MaxFloat64) {
			t.Errorf("the value %v is accepted", value)
		}
	})
}
