package config

import (
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

const (
	// MaxHealthChecks is the most health checks that a template can have.
	MaxHealthChecks = 32
	// maxCommand is the maximum size of the command of a health check or a drain hook with its arguments, in bytes.
	maxCommand   = 4096
	maxArguments = 64
	// maxThreshold is the largest threshold of a health check. It limits how many runs in a row may fail before the
	// check fails.
	maxThreshold = 100
)

// healthChecks checks the health checks of a template. path is their path.
func (c *checker) healthChecks(checks map[string]HealthCheck, path string) {
	if len(checks) > MaxHealthChecks {
		c.add(path, "has %d entries, at most %d are allowed", len(checks), MaxHealthChecks)
	}
	for _, name := range sortedKeys(checks) {
		check, at := checks[name], ChildPath(path, name)
		c.key(at, ident.ValidateName(name))
		switch {
		case len(check.Exec) > 0 && check.HTTP != nil:
			c.add(at, "has both exec and http: a check is one of them")
		case check.HTTP != nil && check.Exec != nil:
			c.add(at+".exec", "has no command")
		case check.HTTP != nil:
			c.httpCheck(*check.HTTP, at+".http")
		case check.Exec == nil:
			c.add(at, "has neither exec nor http")
		default:
			c.command(check.Exec, at+".exec")
		}
		if d := *check.Interval; d < Duration(time.Second) && d > 0 {
			c.add(at+".interval", "%s is less than 1s", d)
		} else if check.Timeout.D() > d.D() {
			c.add(at+".timeout", "%s is more than the interval of %s", check.Timeout, d).depends =
				[]string{at + ".interval"}
		}
		for field, n := range map[string]int{"failure_threshold": *check.FailureThreshold,
			"success_threshold": *check.SuccessThreshold} {
			if n > maxThreshold {
				c.add(at+"."+field, "%d is more than %d", n, maxThreshold)
			}
		}
	}
}

// drainHook checks the drain hook of a template.
func (c *checker) drainHook(hook *DrainHook, path string) {
	if hook != nil && len(hook.Exec) > 0 { // an empty list is reported as missing
		c.command(hook.Exec, path+".exec")
	}
}

// timeToDrain checks that a group with a drain hook drains for as long as the hook may run. A timeout that is equal to
// its default may be longer, because the end of the drain ends the hook.
func (c *checker) timeToDrain(g Group, path string) {
	if g.Drain == nil {
		return
	}
	path = ChildPath(path, "drain_timeout")
	depends := []string{ChildPath("templates", g.Template) + ".drain", "server.default_drain_timeout"}
	written := cloned(g.Drain)
	unfill(written)
	switch timeout := written.Timeout; {
	case g.DrainTimeout == 0:
		c.add(path, "is 0: the drain hook of template %s would have no time", g.Template).depends = depends
	case timeout != nil && *timeout > g.DrainTimeout:
		c.add(path, "%s is less than %s, the timeout of the drain hook of template %s", g.DrainTimeout, *timeout,
			g.Template).depends = depends
	}
}

// balancersTellHealth checks a template with load_balancer_health: the load balancers of the shard's cloud must report
// the health of instances.
func (c *checker) balancersTellHealth(t Template, path string) {
	if kind := c.s.Server.Provider.Kind; t.LoadBalancerHealth && kind != "" && !tellsHealth(kind) {
		c.add(path, "provider %s has no load balancers that tell the health of instances", kind).depends =
			[]string{"server.provider.kind"}
	}
}

// tellsHealth reports whether a cloud's load balancers report which of their members are healthy.
func tellsHealth(kind string) bool {
	_, ok := blockOf(kind).LoadBalancer.(cloud.HealthSource)
	return ok
}

// balancerHealth checks that a group with load_balancer_health has load balancers, and that each of them can report the
// health of its members.
func (c *checker) balancerHealth(spec GroupSpec, path string) {
	if !c.s.Templates[spec.Template].LoadBalancerHealth || !tellsHealth(c.s.Server.Provider.Kind) {
		return
	}
	path = ChildPath(path, "load_balancers")
	option := ChildPath("templates", spec.Template) + ".load_balancer_health"
	if len(spec.LoadBalancers) == 0 {
		c.add(path, "is required: template %s has load_balancer_health", spec.Template).depends = []string{option}
	}
	for i, name := range spec.LoadBalancers {
		if missing := c.s.LoadBalancers[name].missingForHealth(); missing != "" {
			c.add(element(path, i), "load balancer %s needs %s: template %s has load_balancer_health", name, missing,
				spec.Template).depends = []string{option, ChildPath("load_balancers", name)}
		}
	}
}

// missingForHealth returns the name of a missing field without which the cloud cannot report the health of the load
// balancer's members. It returns "" if no such field is missing.
func (lb LoadBalancer) missingForHealth() string {
	fields := reflect.ValueOf(lb.LoadBalancer)
	for i := range fields.NumField() {
		source, ok := fields.Field(i).Interface().(cloud.HealthSource)
		if ok && cloudOf(fields.Field(i).Type()) == lb.Provider {
			return source.MissingForHealth()
		}
	}
	return ""
}

func (c *checker) command(argv []string, path string) {
	if len(argv) == 0 || argv[0] == "" {
		c.add(path, "has no command")
		return
	}
	length := 0
	for i, arg := range argv {
		length += len(arg)
		if strings.Contains(arg, "\x00") {
			c.add(element(path, i), "has a zero byte")
		}
	}
	if length > maxCommand || len(argv) > maxArguments {
		c.add(path, "has %d words with %d bytes, at most %d words with %d bytes are allowed", len(argv), length,
			maxArguments, maxCommand)
	}
}

func (c *checker) httpCheck(h HealthRequest, path string) {
	c.port(h.Port, path+".port")
	if h.Status < 100 || h.Status > 599 {
		c.add(path+".status", "%d is not a status from 100 to 599", h.Status)
	}
	c.requestPath(h.Path, path+".path")
}

func (c *checker) port(port int, path string) {
	if port != 0 && (port < 1 || port > 65535) { // 0 is reported as missing
		c.add(path, "%d is not a port from 1 to 65535", port)
	}
}

// requestPath checks the path and query of a request to a VM.
func (c *checker) requestPath(text, path string) {
	if u, err := url.ParseRequestURI(text); err != nil || u.Host != "" || !strings.HasPrefix(text, "/") ||
		len(text) > maxCommand || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == '#' }) {
		c.add(path, "%s is not a path such as \"/healthz\"", quote(text))
	}
}
