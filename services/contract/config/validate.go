package config

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/render"
)

// check reports all problems of a shard.
func check(written *Shard) []finding {
	c := &checker{s: written.WithDefaults(), rendered: map[string]bool{}}
	c.fields(reflect.ValueOf(written).Elem(), "")
	c.cluster()
	c.server()
	c.addresses()
	c.timing()
	c.subnetPools()
	c.tenants()
	c.loadBalancers()
	c.images()
	c.certificates()
	c.templates()
	c.groups()
	return c.found
}

func (c *checker) cluster() {
	cl := c.s.Cluster
	if cl.ID != "" {
		c.err("cluster.id", ident.ValidateClusterName(cl.ID))
	}
	if st := cl.Storage; st != nil {
		c.prefix("cluster.storage.prefix", st.Prefix)
		if st.Provider != FileStore {
			c.err("cluster.storage.bucket", endpoints.ValidateBucket(st.Bucket))
		}
		if st.Endpoint != "" {
			if err := endpoints.ValidateStore(st.Endpoint, st.Bucket); err != nil {
				c.err("cluster.storage.endpoint", err)
			} else if names := storesWithEndpoint(); !slices.Contains(names, st.Provider) {
				c.add("cluster.storage.endpoint", "is for provider %s only", strings.Join(names, ", ")).depends =
					[]string{"cluster.storage.provider"}
			}
		}
		c.identity(*st)
	}
	const at = "cluster.secrets"
	// Names of parameters that have slashes begin with one.
	c.prefix(at+".prefix", strings.TrimPrefix(cl.Secrets.Prefix, "/"))
	c.project(cl.Secrets.ProjectID, cl.Secrets.Provider, at)
	switch key := cl.Secrets.EncryptionKey; {
	case key != nil:
		c.keySource(*key, at+".encryption_key")
	case c.s.Cluster.Secrets.Provider == ObjectStorage && cl.ID != "":
		c.add(at+".encryption_key", "is required: secrets in object storage are always sealed").hint =
			`{"provider": "env"} reads it from ` + DefaultKeyVariable
	}
	for i, old := range cl.Secrets.OldEncryptionKeys {
		path := element(at+".old_encryption_keys", i)
		c.keySource(old, path)
		if key := cl.Secrets.EncryptionKey; key != nil && old == *key {
			c.add(path, "is the current key")
		}
		if slices.Contains(cl.Secrets.OldEncryptionKeys[:i], old) {
			c.add(path, "is there twice")
		}
	}
}

const identityPath = "cluster.storage.identity"

// identity checks how the servers get credentials for the cluster's bucket.
func (c *checker) identity(st Storage) {
	if st.Identity == nil {
		return
	}
	if cloud := cloudOfStore(st.Provider); cloud != "" {
		c.cloudFields(reflect.ValueOf(*st.Identity), identityPath, cloud, "")
	} else if st.Provider == FileStore {
		c.add(identityPath, "is not for provider %s", st.Provider).depends = []string{"cluster.storage.provider"}
	}
	if st.Identity.RoleARN != "" && st.Region == "" && RegionVariable(st.Provider) != "" {
		c.add("cluster.storage.region", "is required with identity.role_arn").hint = "the region of the bucket"
	}
}

func (c *checker) prefix(path, prefix string) {
	if strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") ||
		strings.ContainsFunc(prefix, func(r rune) bool {
			return r < ' ' || r == 0x7f
		}) {
		c.add(path, "%s begins with a slash, or has an empty part or a control character", quote(prefix))
	}
}

func (c *checker) keySource(k KeySource, path string) {
	needsProject := secretsStoreOf(k.Provider).NeedsProject
	switch {
	case k.Provider == EnvKeySource:
		c.err(path+".source", render.ValidateEnvName(k.Source))
	case k.Source == "" && k.Provider != "":
		c.add(path+".source", "is required for provider %s", k.Provider)
	case k.ProjectID == "" && needsProject != nil && needsProject(k.Source):
		c.add(path+".project_id", "is required where the source does not begin with projects/")
	}
	c.project(k.ProjectID, k.Provider, path)
}

// project reports a problem if the object at path has a project_id but its provider has no projects.
func (c *checker) project(project, provider, path string) {
	if project == "" || secretsStoreOf(provider).TakesProject {
		return
	}
	names := strings.Join(SecretsStoresWithProject(), ", ")
	c.add(path+".project_id", "is for provider %s only", names).depends = []string{path + ".provider"}
}

func (c *checker) server() {
	sv := c.s.Server
	if sv.Shard != "" {
		c.err("server.shard", ident.ValidateName(sv.Shard))
	}
	block := blockOf(sv.Provider.Kind)
	if block.NeedsZone {
		if sv.Provider.Region == "" {
			c.add("server.provider.region", "is required for provider %s", sv.Provider.Kind)
		}
		if sv.Provider.Zone == "" {
			c.add("server.provider.zone", "is required for provider %s", sv.Provider.Kind)
		}
	}
	if block.CheckZone != nil && sv.Provider.Region != "" && sv.Provider.Zone != "" {
		c.cloud("server.provider", block.CheckZone(sv.Provider.Region, sv.Provider.Zone))
	}
	if block.CheckOptions != nil {
		c.cloud("server.provider.options", block.CheckOptions(sv.Provider.Options))
	}
	if a := sv.Attestation; a != nil {
		switch {
		case a.Method == "" || !slices.Contains(enumValues(".attestations"), a.Method):
		case a.Method != block.Attestation:
			c.add("server.attestation.method", "%s is not a proof of provider %s", quote(a.Method), sv.Provider.Kind).
				depends = []string{"server.provider.kind"}
		case block.AttestationCertificates && a.Certificates == "":
			c.add("server.attestation.certificates", "is required for %s", a.Method)
		case !block.AttestationCertificates && a.Certificates != "":
			c.add("server.attestation.certificates", "is not for %s: the cloud publishes its keys", a.Method)
		}
		if a.Batches && block.Creates == (cloud.Rate{}) {
			c.add("server.attestation.batches", "one call cannot create several VMs of provider %s", sv.Provider.Kind).
				depends = []string{"server.provider.kind"}
		}
		if a.Certificates != "" {
			_, err := a.Signers()
			c.err("server.attestation.certificates", err)
		}
	}
	ln := sv.LeaderNetwork
	if ln == nil {
		return
	}
	const at = "server.leader_network"
	if ln.IPv4 != "" {
		if ip, err := netip.ParseAddr(ln.IPv4); err != nil || !ip.Is4() {
			c.add(at+".ipv4", "%s is not an IPv4 address", quote(ln.IPv4))
		}
	}
	if ln.IPv6 != "" {
		if ip, err := netip.ParseAddr(ln.IPv6); err != nil || !ip.Is6() || ip.Is4In6() || ip.Zone() != "" {
			c.add(at+".ipv6", "%s is not an IPv6 address", quote(ln.IPv6))
		}
	}
	if ln.DNSName != "" && (len(ln.DNSName) > 253 || !dnsNamePattern.MatchString(ln.DNSName)) {
		c.add(at+".dns_name", "%s is not a DNS name, such as leader.example.internal", quote(ln.DNSName))
	}
	c.leaderNetworkKind(block, ln.Kind)
	c.cloudFields(reflect.ValueOf(*ln), at, sv.Provider.Kind, ln.Kind)
	if ln.IPv4 == "" && ln.IPv6 == "" {
		c.add(at, "has neither ipv4 nor ipv6")
	}
}

// leaderNetworkKind checks that the provider supports the given kind of leader address. For a development cloud, the
// kind may be empty. In this case, no server takes the address.
func (c *checker) leaderNetworkKind(block cloud.Block, kind string) {
	const at = "server.leader_network.kind"
	kinds := block.LeaderNetworkKinds
	switch {
	case block.Name == "" || kind != "" && !slices.Contains(enumValues(".leader_networks"), kind):
		return // reported elsewhere
	case kind == "" && len(kinds) > 0 && !block.Hidden:
		c.add(at, "is required for provider %s: %s", block.Name, strings.Join(kinds, " or "))
	case kind != "" && len(kinds) == 0:
		c.add(at, "is not for provider %s", block.Name).depends = []string{"server.provider.kind"}
	case kind != "" && !slices.Contains(kinds, kind):
		c.add(at, "%s is not for provider %s, which has %s", quote(kind), block.Name,
			strings.Join(kinds, " and ")).depends = []string{"server.provider.kind"}
	}
}

// dnsNamePattern matches a host name with at least two labels (RFC 1123, section 2.1).
var dnsNamePattern = regexp.MustCompile(
	`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*\.[a-z][a-z0-9-]{0,61}[a-z0-9]$`)

// addresses checks that the addresses of the listeners are valid and differ. Port 0 means any free port, which tests
// use.
func (c *checker) addresses() {
	type listener struct{ host, path string }
	bound := map[uint16]listener{} // by port
	for i, f := range fieldsOf(reflect.TypeFor[Addresses]()) {
		path := ChildPath("server.bind", f.name)
		host, port, err := splitAddress(reflect.ValueOf(c.s.Server.Bind).Field(i).String())
		if err != nil {
			c.add(path, "%v", err)
		} else {
			if ip, err := netip.ParseAddr(host); host != "" && host != "localhost" && (err != nil || ip.Zone() != "") {
				c.add(path, "%s is not an IP address to listen on", quote(host))
			}
			other, taken := bound[port]
			if wildcard := host == "" || host == "0.0.0.0" || host == "::" || other.host == "" ||
				other.host == "0.0.0.0" || other.host == "::"; taken && port != 0 &&
				(wildcard || host == other.host) {
				c.add(path, "port %d is that of %s too", port, other.path).depends = []string{other.path}
			}
			bound[port] = listener{host, path}
		}
		path = ChildPath("server.advertise", f.name)
		advertised := reflect.ValueOf(c.s.Server.Advertise).Field(i).String()
		if advertised == reflect.ValueOf(c.s.Server.Bind).Field(i).String() {
			continue
		}
		if _, port, err := splitAddress(advertised); err != nil {
			c.add(path, "%v", err)
		} else if port == 0 {
			c.add(path, "%s has port 0, to which no client can connect", quote(advertised))
		}
	}
}

// splitAddress splits host:port. The host may be empty, an IP address or a name.
func splitAddress(s string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("%s is not an address such as \"0.0.0.0:8990\"", quote(s))
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return "", 0, fmt.Errorf("%s has no port from 0 to 65535", quote(s))
	}
	if host == "" {
		return host, uint16(n), nil
	}
	if _, err := netip.ParseAddr(host); err != nil && !ident.IsDNSName(host) {
		return "", 0, fmt.Errorf("%s has a host that is neither an IP address nor a name", quote(s))
	}
	return host, uint16(n), nil
}

// timing checks rules between durations.
func (c *checker) timing() {
	sv := c.s.Server
	le := sv.LeaderElection
	if le.LeaseDuration.D() < 2*le.RenewInterval.D() {
		c.add("server.leader_election.lease_duration", "%s is less than twice the renew_interval of %s",
			le.LeaseDuration, le.RenewInterval).depends =
			[]string{"server.leader_election.renew_interval"}
	}
	if le.RenewInterval.D() < 10*time.Millisecond {
		c.add("server.leader_election.renew_interval", "%s is less than 10ms", le.RenewInterval)
	}
	if le.LeaseDuration.D() > time.Hour {
		c.add("server.leader_election.lease_duration", "%s is more than an hour", le.LeaseDuration)
	}
	for _, whole := range []struct {
		field string
		d     *Duration
	}{{"lease_duration", le.LeaseDuration}, {"renew_interval", le.RenewInterval}} {
		if whole.d.D()%time.Millisecond != 0 {
			c.add("server.leader_election."+whole.field,
				"%s is not a whole number of milliseconds, the unit of the lock", whole.d)
		}
	}
	if d := le.PeerLease.D(); d != 0 && (d < 100*time.Millisecond || d > time.Minute) {
		c.add("server.leader_election.peer_lease", "%s is neither 0 nor from 100ms to 1m", le.PeerLease)
	} else if d > 0 && d < 2*le.PeerInterval.D() {
		c.add("server.leader_election.peer_lease", "%s is less than twice the peer_interval of %s", le.PeerLease,
			le.PeerInterval).depends =
			[]string{"server.leader_election.peer_interval"}
	}
	if j := sv.ErrorExitJitter; j.MaxDelay.D() < j.MinDelay.D() {
		c.add("server.error_exit_jitter.max_delay", "%s is less than the min_delay of %s", j.MaxDelay,
			j.MinDelay).depends =
			[]string{"server.error_exit_jitter.min_delay"}
	}
	if e := sv.Expiry; e.EligibleAge.D() > 0 && e.ForcedAge.D() > 0 && e.ForcedAge.D() <= e.EligibleAge.D() {
		c.add("server.expiry.forced_age", "%s is not more than the eligible_age of %s", e.ForcedAge,
			e.EligibleAge).depends =
			[]string{"server.expiry.eligible_age"}
	}
}

func (c *checker) subnetPools() {
	const at = "server.subnet_pools"
	poolOf := map[string]string{}
	for _, pool := range sortedKeys(c.s.Server.SubnetPools) {
		path := ChildPath(at, pool)
		c.key(path, ident.ValidateName(pool))
		subnets := c.s.Server.SubnetPools[pool]
		if len(subnets) == 0 {
			c.add(path, "has no subnets")
		}
		c.distinct(subnets, path)
		for i, subnet := range subnets {
			if other, taken := poolOf[subnet]; taken && other != pool && subnet != "" {
				c.add(element(path, i), "%s is in pool %s too", quote(subnet), quote(other))
			}
			poolOf[subnet] = pool
			if check := blockOf(c.s.Server.Provider.Kind).CheckSubnet; check != nil {
				c.byCloud(element(path, i), subnet, func(subnet string) error {
					return check(c.s.Server.Provider.Options, subnet)
				})
			}
		}
	}
	c.distinct(c.s.Server.DynamicSubnetPools, "server.dynamic_subnet_pools")
	for i, pool := range c.s.Server.DynamicSubnetPools {
		c.pool(element("server.dynamic_subnet_pools", i), pool)
	}
}

// pool checks that the named subnet pool exists. It accepts an empty name. If the shard has no pools at all, other code
// reports that.
func (c *checker) pool(path, name string) {
	if name != "" && len(c.s.Server.SubnetPools) > 0 {
		reference(c, path, "subnet pool", name, c.s.Server.SubnetPools, "server.subnet_pools")
	}
}

func (c *checker) tenants() {
	for _, tenant := range sortedKeys(c.s.Tenants) {
		if tenant != ident.DefaultTenant {
			c.key(ChildPath("tenants", tenant), ident.ValidateTenantName(tenant))
		}
	}
}

// foreign reports an image or load balancer of another provider than the shard's.
func (c *checker) foreign(path, provider string) {
	kind := c.s.Server.Provider.Kind
	if provider == "" || kind == "" || kind == provider || blockOf(kind).Hidden {
		return
	}
	c.add(path, "is for provider %s, but the shard's is %s", provider, kind).depends = []string{"server.provider.kind"}
}

func (c *checker) loadBalancers() {
	for _, name := range sortedKeys(c.s.LoadBalancers) {
		lb, path := c.s.LoadBalancers[name], ChildPath("load_balancers", name)
		c.key(path, validateKey("load balancer", name))
		c.cloudFields(reflect.ValueOf(lb), path, lb.Provider, "")
	}
}

func (c *checker) images() {
	for _, name := range sortedKeys(c.s.Images) {
		image, path := c.s.Images[name], ChildPath("images", name)
		c.key(path, validateIdentifier(name))
		c.foreign(path+".provider", image.Provider)
		if len(image.Filters) == 0 && image.Fallback == "" {
			c.add(path+".filters", "is required where there is no fallback")
		}
		if blockOf(image.Provider).ImagesNeedOwners && len(image.Filters) > 0 &&
			len(image.Owners) == 0 {
			c.add(path+".owners", "is required for provider %s", image.Provider)
		}
		for i, filter := range image.Filters {
			c.distinct(filter.Values, element(path+".filters", i)+".values")
		}
	}
}
