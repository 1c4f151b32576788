// Package proxmox describes clusters of Proxmox VE to the shard configuration.
package proxmox

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/vmsize"
)

// Name is the cloud's name.
const Name = "proxmox"

// Block describes the cloud.
var Block = cloud.Block{Name: Name, NeedsInstanceType: true, LeaderNetworkKinds: []string{cloud.LeaderARP},
	CheckInstanceType: checkInstanceType, NeedsArgs: []string{"template"}, Sleeps: []string{"suspended"},
	CheckSubnet: func(_ map[string]string, subnet string) error {
		_, _, err := ParseSubnet(subnet)
		return err
	},
	CheckOptions: cloud.Check(ParseOptions), CheckArgs: cloud.Check(ParseArgs)}

// Options are server.provider.options.
type Options struct {
	// Endpoints are the URLs of the API on nodes of the cluster. If one cannot be reached, the next is used.
	Endpoints []*url.URL
	// TokenFile is the path of a file on the servers. The file contains the API token, USER@REALM!TOKENID=SECRET.
	TokenFile string
	// Fingerprints are SHA-256 hashes of the nodes' certificates. If there are any, no other certificate is accepted.
	Fingerprints [][]byte
	// CAFile is the path of a file with the certificates of the CAs that sign the nodes' certificates. If it is "", the
	// system's CAs are used.
	CAFile string
	// Pool is the resource pool to which new VMs are added, or "" for none.
	Pool string
	// SeedStorage is the storage that userdata is uploaded to as ISO images, default "local".
	SeedStorage string
}

// objectName matches names of nodes, bridges, storages, pools and templates.
var objectName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// absolute matches absolute paths.
var absolute = regexp.MustCompile(`^/`)

// ParseOptions parses the options and fills in defaults. It reports all problems.
func ParseOptions(raw map[string]string) (Options, []cloud.Problem) {
	o := Options{TokenFile: "/etc/nstance/proxmox-token", SeedStorage: "local"}
	const noPath, noName = "%q is not an absolute path", "%q is not a name"
	found := cloud.ParseFields(raw, "provider proxmox has no such option", map[string]cloud.Field[string]{
		"endpoints": {Hint: "write URLs, separated by commas, such as https://pve1.example.com:8006",
			Parse: func(text string) (err error) {
				o.Endpoints, err = parseEndpoints(text)
				return err
			}},
		"fingerprints": {Hint: "pvenode cert info shows it", Parse: func(text string) (err error) {
			o.Fingerprints, err = parseFingerprints(text)
			return err
		}},
		"token_file":   {Parse: cloud.Matching(absolute, &o.TokenFile, noPath)},
		"ca_file":      {Parse: cloud.Matching(absolute, &o.CAFile, noPath)},
		"pool":         {Parse: cloud.Matching(objectName, &o.Pool, noName)},
		"seed_storage": {Parse: cloud.Matching(objectName, &o.SeedStorage, noName)},
		"token": {Refused: "a secret does not belong here",
			Hint: "write it to a file on the servers and give token_file"},
		"insecure": {Refused: "the identity of the nodes is always checked",
			Hint: "give the fingerprints of the nodes' certificates, or ca_file"},
	})
	if raw["endpoints"] == "" {
		found = append(found, cloud.Problem{Path: []any{"endpoints"}, Message: "is missing",
			Hint: "such as https://pve1.example.com:8006"})
	}
	if o.CAFile != "" && len(o.Fingerprints) > 0 {
		found = append(found, cloud.Problem{Path: []any{"ca_file"}, Message: "is given together with fingerprints",
			Hint: "with fingerprints, no authority is asked"})
	}
	return o, found
}

// parseEndpoints parses URL,URL.
func parseEndpoints(text string) (all []*url.URL, err error) {
	if text == "" {
		return nil, nil // reported as missing
	}
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		u, err := url.Parse(entry)
		switch {
		case err != nil || u.Host == "":
			return nil, fmt.Errorf("%q is not a URL", entry)
		case u.Scheme != "https":
			return nil, fmt.Errorf("%q does not begin with https://", entry)
		case u.User != nil || strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "":
			return nil, fmt.Errorf("%q has more than a host and a port", u.Redacted())
		}
		all = append(all, &url.URL{Scheme: u.Scheme, Host: u.Host})
	}
	return all, nil
}

// parseFingerprints parses hashes in hexadecimal, with or without colons, separated by commas.
func parseFingerprints(text string) (all [][]byte, err error) {
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		hash, err := hex.DecodeString(strings.ReplaceAll(entry, ":", ""))
		if err != nil || len(hash) != 32 {
			return nil, fmt.Errorf("%q is not the SHA-256 fingerprint of a certificate", entry)
		}
		all = append(all, hash)
	}
	return all, nil
}

// Args are the args of a template or group.
type Args struct {
	// Template is the name of the VM template. If the VM's node has no template of this name, the template of this name
	// on another node is used. That template must be on shared storage. A template with new content needs a new name.
	Template string
	// Storage is the storage for the disks of a full clone. If it is "", the VM is a linked clone on the template's
	// storage.
	Storage string
	// VLAN is the tag of the network interface. 0 means none.
	VLAN int
}

// ParseArgs parses the args. It reports all problems. A text that holds a template is not checked.
func ParseArgs(raw map[string]any) (Args, []cloud.Problem) {
	var a Args
	found := cloud.ParseFields(raw, "provider proxmox has no such argument", map[string]cloud.Field[any]{
		"template": {Parse: cloud.MatchingArg(objectName, &a.Template, "%q is not a name")},
		"storage":  {Parse: cloud.MatchingArg(objectName, &a.Storage, "%q is not a name")},
		"vlan": {Parse: func(value any) error {
			n, err := strconv.Atoi(fmt.Sprint(value))
			if a.VLAN = n; err != nil || n < 1 || n > 4094 {
				return fmt.Errorf("%v is not a VLAN tag from 1 to 4094", value)
			}
			return nil
		}},
	})
	return a, found
}

// maxInterface is the most characters of the name of a network interface of Linux, which a bridge is (IFNAMSIZ).
const maxInterface = 15

// minMemoryMiB is the least memory of a VM that Proxmox VE accepts.
const minMemoryMiB = 16

func checkInstanceType(name string) error {
	size, err := vmsize.Parse(name)
	if err == nil && size.MemoryMiB < minMemoryMiB {
		err = fmt.Errorf("%q has less than %d MiB", name, minMemoryMiB)
	}
	return err
}

// ParseSubnet splits a subnet into the name of its node and the name of its bridge or virtual network.
func ParseSubnet(text string) (node, bridge string, err error) {
	node, bridge, _ = strings.Cut(text, "/")
	if !objectName.MatchString(node) || !objectName.MatchString(bridge) {
		return "", "", fmt.Errorf("subnet %q is not NODE/BRIDGE, such as pve1/vmbr0", text)
	}
	if len(bridge) > maxInterface {
		return "", "", fmt.Errorf("bridge %q has more than %d characters", bridge, maxInterface)
	}
	return node, bridge, nil
}
