package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/render"
)

const (
	// MaxCertificateTTL is the longest validity of the certificates that templates ask for.
	MaxCertificateTTL = 90 * 24 * time.Hour
	// maxStoredHours is the highest ttl, in hours, that older versions of Nstance accepted.
	maxStoredHours = 10 * 365 * 24
)

func (c *checker) certificates() {
	for _, name := range sortedKeys(c.s.Certificates) {
		cert, path := c.s.Certificates[name], ChildPath("certificates", name)
		c.key(path, validateKey("certificate", name))
		if limit := int(MaxCertificateTTL / time.Hour); cert.TTL > limit {
			c.add(path+".ttl", "%d hours are more than %d (90 days), the longest that certificates last", cert.TTL,
				limit).whenWritten = cert.TTL <= maxStoredHours
		}
		if cert.CN == "" && len(cert.DNS)+len(cert.IP)+len(cert.URI) == 0 {
			c.add(path, "names no subject: set cn, dns, ip or uri")
		}
	}
}

func (c *checker) templates() {
	c.vars(c.s.Defaults.Vars, "defaults.vars")
	c.args(c.s.Defaults.Args, "defaults.args")
	c.userdata(c.s.Defaults.Userdata, "defaults.userdata")
	for _, name := range sortedKeys(c.s.Templates) {
		t, path := c.s.Templates[name], ChildPath("templates", name)
		c.key(path, ident.ValidateName(name))
		if t.Kind != "" {
			c.err(path+".kind", ident.ValidateKind(t.Kind))
		}
		c.vars(t.Vars, path+".vars")
		c.args(t.Args, path+".args")
		c.userdata(t.Userdata, path+".userdata")
		c.distinct(t.InstanceTypes, path+".instance_types")
		c.typesOfCloud(t.InstanceType, t.InstanceTypes, path)
		c.size(t.Size, path+".size")
		c.preserve(t.Preserve, path+".preserve")
		c.pool(path+".subnet_pool", t.SubnetPool)
		c.distinct(t.Tenants, path+".tenants")
		for i, tenant := range t.Tenants {
			if _, ok := c.s.Tenants[tenant]; tenant != "" && tenant != ident.DefaultTenant && !ok {
				reference(c, element(path+".tenants", i), "tenant", tenant, c.s.Tenants, "tenants")
			}
		}
		c.dynamic(t, path+".dynamic")
		c.healthChecks(t.HealthChecks, path+".health_checks")
		c.drainHook(t.Drain, path+".drain")
		c.balancersTellHealth(t, path+".load_balancer_health")
		for _, file := range sortedKeys(t.Files) {
			at := ChildPath(path+".files", file)
			c.key(at, validateKey("file", file))
			c.file(t.Files[file], at)
		}
	}
}

func (c *checker) vars(vars map[string]string, path string) {
	if len(vars) > render.MaxVars {
		c.add(path, "has %d entries, at most %d are allowed", len(vars), render.MaxVars)
	}
	if _, empty := vars[""]; empty {
		c.add(ChildPath(path, ""), "the name of a variable is empty").onKey = true
	}
}

func (c *checker) userdata(u *Userdata, path string) {
	if u != nil && u.Content == "" {
		c.add(path+".content", "is required")
	}
}

// fileFields lists the fields of each kind of file, except the field "kind". All are required, except content and vars,
// which may be empty.
var fileFields = map[string][]string{
	"certificate": {"template", "key"},
	"secret":      {"source"},
	"storage":     {"source"},
	"env":         {"vars"},
	"json":        {"json"},
	"string":      {"content"},
}

func (c *checker) file(f File, path string) {
	allowed, known := fileFields[f.Kind]
	if !known {
		return // reported by the rule of the field itself
	}
	v := reflect.ValueOf(f)
	for _, field := range fieldsOf(v.Type()) {
		if field.name == "kind" {
			continue
		}
		at, wanted := ChildPath(path, field.name), strings.Contains(" "+strings.Join(allowed, " ")+" ", " "+field.name+
			" ")
		switch set := !field.in(v).IsZero(); {
		case set && !wanted:
			c.add(at, "is not for files of kind %s", f.Kind).hint = "those have " + strings.Join(allowed, " and ")
		case !set && wanted && f.Kind != "string" && f.Kind != "env":
			c.add(at, "is required for files of kind %s", f.Kind)
		}
	}
	switch f.Kind {
	case "certificate":
		if f.Template != "" {
			reference(c, path+".template", "certificate", f.Template, c.s.Certificates, "certificates")
		}
		if f.Key != nil && f.Key.Name != "" {
			if err := validateKey("key", f.Key.Name); err != nil {
				c.add(path+".key.name", "%v", err)
			} else if len(f.Key.Name) <= len(".pub") || !strings.HasSuffix(f.Key.Name, ".pub") {
				c.add(path+".key.name", "%s does not end in .pub", quote(f.Key.Name))
			}
		}
	case "secret":
		if f.Source != "" {
			c.err(path+".source", ValidateSecretSource(f.Source))
		}
	}
}

// ValidateSecretSource checks the name of a secret for a file. It refuses the cluster's own keys, because they must not
// leave the server.
func ValidateSecretSource(name string) error {
	switch name {
	case "ca.key", "ca-next.key", "workload-ca.key", "registration-nonce.key":
		return fmt.Errorf("%q is the cluster's own and is never delivered", name)
	}
	return keys.ValidateSecretName(name)
}

// ValidateStorageSource checks the rendered source of a stored file, which is the full key of an object in the bucket.
// Only objects under files/ may be delivered.
func ValidateStorageSource(key string) error {
	if !strings.HasPrefix(key, keys.FilePrefix()) {
		return fmt.Errorf("%s is not under %s", quote(key), keys.FilePrefix())
	}
	_, err := keys.Parse(key)
	return err
}
