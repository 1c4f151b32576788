package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/jsonpointer"
)

const (
	// MaxScalingMetrics is the most metrics that can decide on a group's size.
	MaxScalingMetrics = 10
	// maxMetricText is the maximum size of a URL, a query, a pointer or the name of a metric, in bytes.
	maxMetricText = 2048
)

// scaling checks how the leader chooses the size of a group. path is the path of the group.
func (c *checker) scaling(spec GroupSpec, path string) {
	s := spec.Scaling
	if s == nil {
		return
	}
	at := ChildPath(path, "scaling")
	c.size(&s.Max, at+".max")
	if s.Max > 0 && deref(s.Min) > s.Max {
		c.add(at+".min", "%d is more than %d, the largest size", *s.Min, s.Max).depends = []string{at + ".max"}
	}
	if spec.Size != nil {
		c.scalable(*s, *spec.Size, ChildPath(path, "size"))
	}
	for i, schedule := range spec.Schedules {
		sizePath := element(ChildPath(path, "schedules"), i) + ".size"
		if schedule.Size > s.Max && s.Max > 0 {
			c.add(sizePath, "%d is more than %d, the largest size", schedule.Size,
				s.Max).depends = []string{at + ".max"}
		}
		if schedule.Size == 0 {
			c.fromZero(*s, sizePath)
		}
	}
	if s.Min != nil && *s.Min == 0 {
		c.fromZero(*s, at+".min")
	}
	if len(s.Metrics) > MaxScalingMetrics {
		c.add(at+".metrics", "has %d entries, at most %d are allowed", len(s.Metrics), MaxScalingMetrics)
	}
	seen := map[string]bool{}
	for i, m := range s.Metrics {
		path := element(at+".metrics", i)
		kinds := m.fields()
		if len(kinds) != 1 {
			c.add(path, "want exactly one of %s", strings.Join(metricKinds(), ", "))
			continue
		}
		c.metric(m, path+"."+kinds[0])
		switch name := m.Name(); {
		case seen[name] && name == kinds[0]:
			c.add(path, "%s is there twice", name).hint = "give each of them a name"
		case seen[name]:
			c.add(path+"."+kinds[0]+".name", "%s is the name of another metric", quote(name))
		}
		seen[m.Name()] = true
	}
	c.step(s.Up.MaxStep, at+".up.max_step")
	c.step(s.Down.MaxStep, at+".down.max_step")
	if s.Tolerance != "" {
		if _, err := parsePercent(s.Tolerance); s.Tolerance != "0%" {
			c.err(at+".tolerance", err)
		}
	}
}

// metric checks a metric. path is the path of its field.
func (c *checker) metric(m ScalingMetric, path string) {
	share := func(s *ScalingShare) {
		if s.Target != "" {
			_, err := parsePercent(s.Target)
			c.err(path+".target", err)
		}
	}
	switch {
	case m.CPU != nil:
		share(m.CPU)
	case m.Memory != nil:
		share(m.Memory)
	case m.VM != nil:
		c.metricName(m.VM.Name, "vm", path)
		c.port(m.VM.Port, path+".port")
		c.requestPath(cmp.Or(m.VM.Path, "/"), path+".path")
		c.pointer(m.VM.JSON, path+".json")
		switch {
		case (m.VM.Metric == "") == (m.VM.JSON == ""):
			c.add(path, "want exactly one of metric, json")
		case m.VM.Metric != "" && (!metricPattern.MatchString(m.VM.Metric) || len(m.VM.Metric) > maxMetricText):
			c.add(path+".metric", "%s is not the name of a metric such as \"http_inflight\"", quote(m.VM.Metric))
		}
	case m.Query != nil:
		c.metricName(m.Query.Name, "query", path)
		c.metricURL(m.Query.Prometheus, path+".prometheus")
		if n := len(m.Query.Query); n > maxMetricText {
			c.add(path+".query", "has %d bytes, at most %d are allowed", n, maxMetricText)
		}
		c.token(m.Query.Token, path+".token")
	case m.URL != nil:
		c.metricName(m.URL.Name, "url", path)
		c.metricURL(m.URL.URL, path+".url")
		c.pointer(m.URL.JSON, path+".json")
		c.token(m.URL.Token, path+".token")
	}
}

var metricPattern = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// metricName checks the name that the configuration gives a metric of a kind.
func (c *checker) metricName(name, kind, path string) {
	switch {
	case name == "" || name == kind:
	case slices.Contains(metricKinds(), name):
		c.add(path+".name", "%s is what other metrics are called", quote(name))
	default:
		c.err(path+".name", ident.ValidateName(name))
	}
}

func (c *checker) pointer(text, path string) {
	if len(text) > maxMetricText {
		c.add(path, "has %d bytes, at most %d are allowed", len(text), maxMetricText)
	} else if _, err := jsonpointer.Parse(text); err != nil {
		c.add(path, "%s %v", quote(text), err)
	}
}

// metricURL checks a URL that the leader reads. An answer that somebody could change on its way would choose the size
// of the group, so that only the server itself may answer without TLS.
func (c *checker) metricURL(text, path string) {
	if text != "" {
		c.err(path, checkMetricURL(text))
	}
}

func checkMetricURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || len(text) > maxMetricText || strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r == 0x7f
	}):
		return errors.New(`is not a URL such as "https://prometheus.example.com"`) // which may have a password
	case u.User != nil:
		return errors.New("has a user in it: put a token into the secrets store, and name it in token")
	case u.Fragment != "":
		return errors.New("has a fragment, which no server gets")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return errors.New("begins neither with https:// nor with http:// and a loopback address")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%s is not a port from 1 to 65535", quote(port))
		}
	}
	return nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

func (c *checker) token(t *TokenSource, path string) {
	if t != nil && t.Source != "" {
		c.err(path+".source", ValidateSecretSource(t.Source))
	}
}

// scalable checks a size of a group that the leader scales.
func (c *checker) scalable(s Scaling, size int, path string) {
	least := 1
	if s.Min != nil {
		least = *s.Min
	}
	if size < least || size > s.Max && s.Max > 0 {
		c.add(path, "is %d, but the group scales between %d and %d", size, least, s.Max).hint =
			"change scaling.min or scaling.max"
	}
}

// fromZero checks that a group without instances can grow again.
func (c *checker) fromZero(s Scaling, path string) {
	if !slices.ContainsFunc(s.Metrics, ScalingMetric.Total) {
		c.add(path, "is 0, but a group without instances tells no numbers by which it could grow").hint =
			"set it to 1 or more, or add a metric query or url"
	}
}

// step checks by how much one change may change a size.
func (c *checker) step(text, path string) {
	if text == "" {
		return
	}
	limit, err := ParseLimit(text)
	if err == nil && limit.Value == 0 {
		err = fmt.Errorf("%s permits no change", quote(text))
	}
	c.err(path, err)
}

// parsePercent parses a percentage from "1%" to "100%".
func parsePercent(text string) (int, error) {
	if limit, err := ParseLimit(text); err == nil && limit.Percent && limit.Value > 0 {
		return limit.Value, nil
	}
	return 0, fmt.Errorf("%s is not a percentage from \"1%%\" to \"100%%\"", quote(text))
}

// fields returns the names of the fields that are set.
func (m ScalingMetric) fields() (names []string) {
	for _, f := range fieldsOf(reflect.TypeFor[ScalingMetric]()) {
		if !f.in(reflect.ValueOf(m)).IsZero() {
			names = append(names, f.name)
		}
	}
	return names
}

// metricKinds returns the names of the fields of [ScalingMetric].
func metricKinds() (names []string) {
	for _, f := range fieldsOf(reflect.TypeFor[ScalingMetric]()) {
		names = append(names, f.name)
	}
	return names
}

// Name returns the name of the metric, such as "cpu". The metrics of a group have different names.
func (m ScalingMetric) Name() string {
	switch {
	case m.VM != nil:
		return cmp.Or(m.VM.Name, "vm")
	case m.Query != nil:
		return cmp.Or(m.Query.Name, "query")
	case m.URL != nil:
		return cmp.Or(m.URL.Name, "url")
	}
	return m.fields()[0]
}

// Target returns the target: percent for cpu and memory, and else in the unit of the metric. It is for the average of
// the instances, or, with [ScalingMetric.Total], what of the number one instance can do.
func (m ScalingMetric) Target() int {
	switch {
	case m.CPU != nil:
		percent, _ := parsePercent(m.CPU.Target) // validated before
		return percent
	case m.Memory != nil:
		percent, _ := parsePercent(m.Memory.Target)
		return percent
	case m.Network != nil:
		return m.Network.Target
	case m.VM != nil:
		return m.VM.Target
	case m.Query != nil:
		return m.Query.Target
	case m.URL != nil:
		return m.URL.Target
	}
	return 0
}

// Total reports whether the metric is a number of the whole group, which the leader reads from a URL.
func (m ScalingMetric) Total() bool { return m.Query != nil || m.URL != nil }

// TolerancePercent returns the tolerance in percent.
func (s *Scaling) TolerancePercent() int {
	limit, _ := ParseLimit(s.Tolerance) // validated before
	return limit.Value
}
