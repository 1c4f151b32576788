package number

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/jsonpointer"
)

// maxSeries is the maximum number of series of a metric.
const maxSeries = 10_000

// parse returns the number that spec names in a document. counter means that the number only grows, so that its growth
// is of interest.
func parse(document []byte, spec *nstancev1.VmNumber) (value float64, counter bool, err error) {
	if bytes.HasPrefix(bytes.TrimSpace(document), []byte("<")) {
		return 0, false, errors.New("a page of HTML instead of a number")
	}
	switch in := spec.GetIn().(type) {
	case *nstancev1.VmNumber_Metric:
		return metric(document, in.Metric)
	case *nstancev1.VmNumber_Json:
		value, err := jsonpointer.Number(document, in.Json)
		return value, false, err
	}
	return 0, false, errors.New("this agent does not know how to read the number")
}

// metric returns the sum of the series of a metric in a document in Prometheus' text format. It ignores other metrics,
// even if they are malformed.
func metric(document []byte, name string) (sum float64, counter bool, err error) {
	var samples bytes.Buffer
	series := 0
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if comment, ok := bytes.CutPrefix(line, []byte("#")); ok {
			if words := bytes.Fields(comment); len(words) == 3 && string(words[0]) == "TYPE" {
				counts, known := kindOf(name, string(words[1]), string(words[2]))
				if !known {
					return 0, false, fmt.Errorf("%s is a %s, of which only _count and _sum are numbers", name, words[2])
				}
				counter = counter || counts
			}
			continue
		}
		if !isOf(name, line) {
			continue
		}
		if series++; series > maxSeries {
			return 0, false, fmt.Errorf("more than %d series of %s", maxSeries, name)
		}
		samples.Write(line)
		samples.WriteByte('\n')
	}
	// Without the comments about types, each metric is untyped.
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&samples)
	var syntax expfmt.ParseError
	switch {
	case errors.As(err, &syntax):
		return 0, false, fmt.Errorf("a malformed line of %s: %s", name, syntax.Msg)
	case err != nil:
		return 0, false, err
	case families[name] == nil:
		return 0, false, fmt.Errorf("no metric %s", name)
	}
	for _, m := range families[name].GetMetric() {
		sum += m.GetUntyped().GetValue()
	}
	return sum, counter, nil
}

// parts are the ends of the names of the samples of a histogram or summary.
var parts = []string{"", "_bucket", "_count", "_sum"}

// kindOf says what it means for a metric that a family of metrics has a type. counter means that the metric only
// grows. ok is false if the metric is no number.
func kindOf(name, family, kind string) (counter, ok bool) {
	part, of := strings.CutPrefix(name, family)
	switch kind = strings.ToLower(kind); {
	case !of:
		return false, true
	case kind == "counter":
		return part == "" || part == "_total", true
	case kind == "gauge", kind == "untyped", kind == "unknown", !slices.Contains(parts, part):
		return false, true
	}
	return true, part == "_count" || part == "_sum"
}

// isOf reports whether a line is a sample of a metric.
func isOf(name string, line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte(name))
	return ok && len(rest) > 0 && bytes.IndexByte([]byte("{ \t"), rest[0]) >= 0
}
