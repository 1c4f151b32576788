// Package libvirt describes hosts with libvirt and QEMU to the shard configuration.
package libvirt

import (
	"fmt"
	"math"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/vmsize"
)

// Name is the cloud's name.
const Name = "libvirt"

// Block describes the cloud.
var Block = cloud.Block{Name: Name, NeedsInstanceType: true, LeaderNetworkKinds: []string{cloud.LeaderARP},
	CheckInstanceType: func(name string) error {
		_, err := vmsize.Parse(name)
		return err
	}, CheckSubnet: func(raw map[string]string, subnet string) error {
		host, _, err := ParseSubnet(subnet)
		if options, problems := ParseOptions(raw); err == nil && len(problems) == 0 && options.Hosts[host] == nil {
			err = fmt.Errorf("subnet %q: there is no host %s in server.provider.options.hosts", subnet, host)
		}
		return err
	}, NeedsArgs: []string{"image", "kernel"}, Sleeps: []string{"suspended"},
	CheckOptions: cloud.Check(ParseOptions), CheckArgs: cloud.Check(ParseArgs)}

// Options are server.provider.options.
type Options struct {
	// Hosts maps the names of hosts to their connection URIs. A subnet in the configuration is written HOST/NETWORK.
	Hosts map[string]*url.URL
	// Pool is the storage pool with images and disks on every host, default "default".
	Pool string
	// DomainType is kvm (default) or qemu, which needs no hardware support and is many times slower.
	DomainType string
	// ReservedMiB is how much memory of each host is kept free of VMs, default 1024.
	ReservedMiB int64
}

var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// objectName matches names of pools, volumes and networks. It is stricter than libvirt.
var objectName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

var (
	domainType = regexp.MustCompile(`^(kvm|qemu)$`)
	anyText    = regexp.MustCompile(`^`)
)

// ParseOptions parses the options and fills in defaults. It reports all problems.
func ParseOptions(raw map[string]string) (Options, []cloud.Problem) {
	o := Options{Pool: "default", DomainType: "kvm", ReservedMiB: 1024}
	found := cloud.ParseFields(raw, "provider libvirt has no such option", map[string]cloud.Field[string]{
		"hosts": {Hint: "write NAME=URI, separated by commas, such as a=qemu+tls://a.example.com/system",
			Parse: func(text string) (err error) {
				o.Hosts, err = parseHosts(text)
				return err
			}},
		"pool": {Parse: cloud.Matching(objectName, &o.Pool, "%q is not the name of a storage pool")},
		"domain_type": {Hint: "there are kvm and qemu",
			Parse: cloud.Matching(domainType, &o.DomainType, "%q is not a type of domain")},
		"reserved_mib": {Parse: func(text string) error {
			n, err := strconv.ParseInt(text, 10, 32)
			if o.ReservedMiB = n; err != nil || n < 0 {
				return fmt.Errorf("%q is not a number of MiB", text)
			}
			return nil
		}},
	})
	if raw["hosts"] == "" {
		found = append(found, cloud.Problem{Path: []any{"hosts"}, Message: "is missing",
			Hint: "for this machine write local=qemu:///system"})
	}
	return o, found
}

// parseHosts parses NAME=URI,NAME=URI.
func parseHosts(text string) (map[string]*url.URL, error) {
	hosts := map[string]*url.URL{}
	if text == "" {
		return hosts, nil // reported as missing
	}
	for _, entry := range strings.Split(text, ",") {
		name, uri, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || !hostName.MatchString(name) {
			return nil, fmt.Errorf("%q does not begin with the name of a host", entry)
		}
		if hosts[name] != nil {
			return nil, fmt.Errorf("host %s is given twice", name)
		}
		parsed, err := parseURI(uri)
		if err != nil {
			return nil, fmt.Errorf("host %s: %w", name, err)
		}
		hosts[name] = parsed
	}
	return hosts, nil
}

// insecure lists the parameters of a URI that can switch off the check of the host's identity. For each parameter, it
// lists the values that leave the check on.
var insecure = map[string][]string{
	"no_verify":          {"", "0"},
	"known_hosts_verify": {"", "normal"},
}

// parseURI parses a connection URI (https://libvirt.org/uri.html). It refuses a connection that does not check
// the identity of the host.
func parseURI(text string) (*url.URL, error) {
	uri, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URI", text)
	}
	driver, transport, _ := strings.Cut(uri.Scheme, "+")
	local := uri.Host == "" && (transport == "" || transport == "unix")
	remote := uri.Host != "" && (transport == "tls" || transport == "ssh" || transport == "")
	switch {
	case driver != "qemu" || uri.Path != "/system":
		return nil, fmt.Errorf("%q is not a connection to QEMU such as qemu:///system", text)
	case !local && !remote:
		return nil, fmt.Errorf("%q is neither a local connection nor one over TLS or SSH", text)
	}
	if _, set := uri.User.Password(); set {
		return nil, fmt.Errorf("the URI of %s holds a password", uri.Host)
	}
	for name, safe := range insecure {
		if !slices.Contains(safe, uri.Query().Get(name)) {
			return nil, fmt.Errorf("%s=%s switches off the check of the host's identity", name, uri.Query().Get(name))
		}
	}
	return uri, nil
}

// Args are the args of a template or group.
type Args struct {
	// Image is a volume of the pool. The VM's disk starts as a copy of that volume. A new image needs a new name. A
	// name that ends with a hash of the content is best.
	Image string
	// DiskGiB is the size of the disk; 0: the size of the image.
	DiskGiB int
	// Kernel and Initrd name volumes of the pool. If they are set, the VM boots from them instead of its disk. Cmdline
	// holds the kernel's parameters.
	Kernel, Initrd, Cmdline string
}

// ParseArgs parses the args. It reports all problems. A text that holds a template is not checked.
func ParseArgs(raw map[string]any) (Args, []cloud.Problem) {
	var a Args
	const volume = "%q is not the name of a volume"
	found := cloud.ParseFields(raw, "provider libvirt has no such argument", map[string]cloud.Field[any]{
		"image":   {Parse: cloud.MatchingArg(objectName, &a.Image, volume)},
		"kernel":  {Parse: cloud.MatchingArg(objectName, &a.Kernel, volume)},
		"initrd":  {Parse: cloud.MatchingArg(objectName, &a.Initrd, volume)},
		"cmdline": {Parse: cloud.MatchingArg(anyText, &a.Cmdline, "%q")},
		"disk_gib": {Parse: func(value any) error {
			n, ok := wholeNumber(value)
			if a.DiskGiB = n; !ok || n < 1 || n > math.MaxInt16 {
				return fmt.Errorf("%v is not a size in GiB", value)
			}
			return nil
		}},
	})
	if a.Initrd+a.Cmdline != "" && a.Kernel == "" {
		found = append(found, cloud.Problem{Path: []any{"kernel"},
			Message: "is missing, but initrd or cmdline is given"})
	}
	return a, found
}

func wholeNumber(v any) (int, bool) {
	switch n := v.(type) {
	case int:
		return n, true
	case int64:
		return int(n), n >= math.MinInt32 && n <= math.MaxInt32
	case float64:
		return int(n), n == math.Trunc(n) && math.Abs(n) <= math.MaxInt32
	}
	return 0, false
}

// ParseSubnet splits a subnet into the name of its host and the name of its network.
func ParseSubnet(text string) (host, network string, err error) {
	host, network = path.Split(text)
	host = strings.TrimSuffix(host, "/")
	if !hostName.MatchString(host) || !objectName.MatchString(network) {
		return "", "", fmt.Errorf("subnet %q is not HOST/NETWORK", text)
	}
	return host, network, nil
}
