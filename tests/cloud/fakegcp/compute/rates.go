package compute

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// DocumentedRates are the numbers of calls per minute that a project may make by default, by quota metric.
// https://cloud.google.com/compute/api-quota
func DocumentedRates() map[string]int {
	return map[string]int{"Queries": 1500, "Read requests": 1500, "List requests": 1500,
		"Operation read requests": 1500}
}

// metricOf returns the quota metric of a method.
func metricOf(method string) string {
	service, verb, _ := strings.Cut(strings.TrimPrefix(method, "compute."), ".")
	switch {
	case strings.HasSuffix(service, "Operations") && verb != "list":
		return "Operation read requests"
	case strings.HasPrefix(verb, "get"):
		return "Read requests"
	case strings.HasPrefix(verb, "list"), verb == "aggregatedList":
		return "List requests"
	}
	return "Queries"
}

// charge counts a call of a method, or returns an error if the quota is used up. All quotas are full again at the start
// of each minute.
func (c *Compute) charge(method string) error {
	metric := metricOf(method)
	limit, limited := c.Rates[metric]
	if !limited {
		return nil
	}
	if minute := c.Now().Truncate(time.Minute); !minute.Equal(c.minute) {
		c.minute, c.charged = minute, map[string]int{}
	}
	if c.charged[metric] >= limit {
		return RateLimited(metric)
	}
	c.charged[metric]++
	return nil
}

// RateLimited returns the error about too many calls.
func RateLimited(metric string) *rest.Error {
	return &rest.Error{Code: http.StatusForbidden, Reason: "rateLimitExceeded", Status: "RESOURCE_EXHAUSTED",
		Message: fmt.Sprintf("Quota exceeded for quota metric '%s' and limit '%s per minute' of service "+
			"'compute.googleapis.com' for consumer 'project_number:123456789012'.", metric, metric)}
}
