package config

import (
	"fmt"
	"reflect"
	"strings"
)

// maxScalingMetrics is the most metrics that can decide on a group's size.
const maxScalingMetrics = 10

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
		if schedule.Size > s.Max && s.Max > 0 {
			c.add(element(ChildPath(path, "schedules"), i)+".size", "%d is more than %d, the largest size",
				schedule.Size,
				s.Max).depends = []string{at + ".max"}
		}
	}
	if len(s.Metrics) > maxScalingMetrics {
		c.add(at+".metrics", "has %d entries, at most %d are allowed", len(s.Metrics), maxScalingMetrics)
	}
	seen := map[string]bool{}
	for i, m := range s.Metrics {
		path := element(at+".metrics", i)
		switch names := m.fields(); {
		case len(names) != 1:
			c.add(path, "want exactly one of %s", strings.Join(metricNames(), ", "))
		case seen[names[0]]:
			c.add(path, "%s is there twice", names[0])
		default:
			seen[names[0]] = true
		}
		for _, share := range []struct {
			name string
			of   *ScalingShare
		}{{".cpu", m.CPU}, {".memory", m.Memory}} {
			if share.of != nil && share.of.Target != "" {
				_, err := parsePercent(share.of.Target)
				c.err(path+share.name+".target", err)
			}
		}
	}
	c.step(s.Up.MaxStep, at+".up.max_step")
	c.step(s.Down.MaxStep, at+".down.max_step")
	if s.Tolerance != "" {
		if _, err := parsePercent(s.Tolerance); s.Tolerance != "0%" {
			c.err(at+".tolerance", err)
		}
	}
}

// scalable checks a size of a group that the leader scales.
func (c *checker) scalable(s Scaling, size int, path string) {
	least := max(1, deref(s.Min))
	if size < least || size > s.Max && s.Max > 0 {
		c.add(path, "is %d, but the group scales between %d and %d", size, least, s.Max).hint =
			"change scaling.min or scaling.max"
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

func metricNames() (names []string) {
	for _, f := range fieldsOf(reflect.TypeFor[ScalingMetric]()) {
		names = append(names, f.name)
	}
	return names
}

// Name returns the name of the metric, such as "cpu".
func (m ScalingMetric) Name() string { return m.fields()[0] }

// Target returns what the average of the instances should be: percent, or bytes per second.
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
	}
	return 0
}

// TolerancePercent returns the tolerance in percent.
func (s *Scaling) TolerancePercent() int {
	limit, _ := ParseLimit(s.Tolerance) // validated before
	return limit.Value
}
