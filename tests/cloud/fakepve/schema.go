package fakepve

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// param is a parameter of a call.
type param struct {
	kind      string // string, integer or boolean
	required  bool
	min, max  int // of an integer
	maxLength int // of a string
	pattern   *regexp.Regexp
	enum      []string
	requires  string // another parameter that must be given with this one
}

// check returns what is wrong with a value, in the words of PVE::JSONSchema, or "" if the value is valid.
func (p param) check(value string) string {
	switch p.kind {
	case "integer":
		n, err := strconv.Atoi(value)
		switch {
		case err != nil:
			return fmt.Sprintf("type check ('integer') failed - got '%s'", value)
		case n < p.min:
			return fmt.Sprintf("value must have a minimum value of %d", p.min)
		case p.max > 0 && n > p.max:
			return fmt.Sprintf("value must have a maximum value of %d", p.max)
		}
	case "boolean":
		if !slices.Contains([]string{"0", "1", "yes", "no", "on", "off", "true", "false"}, value) {
			return fmt.Sprintf("type check ('boolean') failed - got '%s'", value)
		}
	}
	switch {
	case p.maxLength > 0 && len(value) > p.maxLength:
		return fmt.Sprintf("value may only be %d characters long", p.maxLength)
	case p.pattern != nil && !p.pattern.MatchString(value):
		return "value does not match the regex pattern"
	case p.enum != nil && !slices.Contains(p.enum, value):
		return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", value,
			strings.Join(p.enum, ", "))
	}
	return ""
}

// These expressions are the formats of parameters. The formats for a VM's settings are defined in PVE::QemuServer, and
// the others in PVE::JSONSchema.
var (
	dnsName   = regexp.MustCompile(`^(?i:[a-z0-9]([a-z0-9-]*[a-z0-9])?)(\.(?i:[a-z0-9]([a-z0-9-]*[a-z0-9])?))*$`)
	nodeName  = regexp.MustCompile(`^(?i:[a-z0-9]([a-z0-9-]*[a-z0-9])?)$`)
	storageID = regexp.MustCompile(`^(?i:[a-z][a-z0-9._-]*[a-z0-9])$`)
	poolID    = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$`)
	tagList   = regexp.MustCompile(`^(?i:[a-z0-9_][a-z0-9_+.-]*)([;, ](?i:[a-z0-9_][a-z0-9_+.-]*))*$`)
	digest    = regexp.MustCompile(`^[0-9a-f]{40}$`)
	configIDs = regexp.MustCompile(`^[a-z][a-z0-9_-]+(,[a-z][a-z0-9_-]+)*$`)
	netDevice = regexp.MustCompile(`^(virtio|e1000)(=([0-9A-F]{2}:){5}[0-9A-F]{2})?,bridge=[^,]+(,tag=[0-9]+)?` +
		`(,firewall=[01])?$`)
	cdrom  = regexp.MustCompile(`^(none|[a-z][^:,]*:iso/[^,/]+\.iso),media=cdrom$`)
	smbios = regexp.MustCompile(`^uuid=[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}` +
		`(,(serial|manufacturer|product|version|sku|family)=[A-Za-z0-9+/]+=*)*(,base64=1)?$`)

	templateVolume = regexp.MustCompile(`^[^ ]* ?[^ :]+:base-[0-9]+-disk-[0-9]+$`)
)

var (
	aNode    = param{kind: "string", required: true, pattern: nodeName}
	aVMID    = param{kind: "integer", required: true, min: 100, max: 999999999}
	aStorage = param{kind: "string", required: true, pattern: storageID}
	aText    = param{kind: "string"}
	aFlag    = param{kind: "boolean"}
)

// need is a privilege that the caller must have on a path of the access control list, such as /vms/{vmid}. Names in
// braces stand for the parameters of the call.
type need struct{ path, privilege string }

// operation is a call of the API: its parameters, and the privileges that the API checks before it runs the call's
// code. The caller must have all privileges in needs. If oneOf is not empty, the caller must also have one of those.
type operation struct {
	params map[string]param
	needs  []need
	oneOf  []need
	// anyNode is true if every node can answer the call. Then the call is not forwarded to the node in its path.
	anyNode bool
	run     func(*Cluster, request) (any, *apiError)
}

// operations maps METHOD PATH to a call of the API. The parameters and permissions of the calls are those of Proxmox VE
// 8 and 9. They come from these files: PVE/API2/Qemu.pm and PVE/QemuServer.pm (git.proxmox.com, qemu-server),
// PVE/API2/Cluster.pm, PVE/API2/Tasks.pm and PVE/API2/Network.pm (pve-manager), PVE/API2/Storage/Status.pm and
// Content.pm (pve-storage), PVE/API2/AccessControl.pm (pve-access-control).
var operations = makeOperations()

func makeOperations() map[string]operation {
	onVM := func(more map[string]param) map[string]param {
		all := map[string]param{"node": aNode, "vmid": aVMID}
		for name, p := range more {
			all[name] = p
		}
		return all
	}
	const vmPath = "/vms/{vmid}"
	return map[string]operation{
		"GET /version": {anyNode: true, run: (*Cluster).version},
		"GET /access/permissions": {anyNode: true, params: map[string]param{"path": aText},
			run: (*Cluster).permissions},
		"GET /cluster/status": {anyNode: true, needs: []need{{"/", "Sys.Audit"}}, run: (*Cluster).clusterStatus},
		"GET /cluster/resources": {anyNode: true, params: map[string]param{
			"type": {kind: "string", enum: []string{"vm", "storage", "node", "sdn"}}}, run: (*Cluster).resources},
		"GET /nodes/{node}/qemu": {params: map[string]param{"node": aNode, "full": aFlag}, run: (*Cluster).listVMs},
		"GET /nodes/{node}/network": {params: map[string]param{"node": aNode, "type": {kind: "string",
			enum: []string{"bridge", "any_bridge", "any_local_bridge", "vnet"}}}, run: (*Cluster).listNetworks},
		"GET /nodes/{node}/storage": {params: map[string]param{"node": aNode, "content": aText,
			"enabled": aFlag}, run: (*Cluster).listStorages},
		"GET /nodes/{node}/tasks/{upid}/status": {params: map[string]param{"node": aNode,
			"upid": {kind: "string", required: true}}, run: (*Cluster).taskStatus},
		"POST /nodes/{node}/qemu/{vmid}/clone": {params: onVM(map[string]param{"newid": aVMID,
			"name": {kind: "string", pattern: dnsName}, "description": aText,
			"pool": {kind: "string", pattern: poolID}, "snapname": aText,
			"storage": {kind: "string", pattern: storageID},
			"format":  {kind: "string", enum: []string{"raw", "qcow2", "vmdk"}}, "full": aFlag,
			"target": {kind: "string", pattern: nodeName}, "bwlimit": {kind: "integer"}}),
			needs: []need{{vmPath, "VM.Clone"}},
			oneOf: []need{{"/vms/{newid}", "VM.Allocate"}, {"/pool/{pool}", "VM.Allocate"}}, run: (*Cluster).clone},
		"GET /nodes/{node}/qemu/{vmid}/config": {params: onVM(map[string]param{"current": aFlag, "snapshot": aText}),
			needs: []need{{vmPath, "VM.Audit"}}, run: (*Cluster).readConfig},
		"PUT /nodes/{node}/qemu/{vmid}/config": {params: onVM(map[string]param{
			"delete": {kind: "string", pattern: configIDs}, "force": {kind: "boolean", requires: "delete"},
			"digest": {kind: "string", maxLength: 40, pattern: digest},
			"name":   {kind: "string", pattern: dnsName}, "description": {kind: "string", maxLength: 8 << 10},
			"tags": {kind: "string", pattern: tagList}, "onboot": aFlag, "protection": aFlag,
			"cores": {kind: "integer", min: 1}, "sockets": {kind: "integer", min: 1},
			"memory": {kind: "integer", min: 16}, "balloon": {kind: "integer", min: 0},
			"smbios1": {kind: "string", maxLength: 512, pattern: smbios},
			"net0":    {kind: "string", pattern: netDevice}, "ide2": {kind: "string", pattern: cdrom}}),
			run: (*Cluster).writeConfig},
		"GET /nodes/{node}/qemu/{vmid}/status/current": {params: onVM(nil), needs: []need{{vmPath, "VM.Audit"}},
			run: (*Cluster).vmStatus},
		"POST /nodes/{node}/qemu/{vmid}/status/start": {params: onVM(map[string]param{"timeout": {kind: "integer"}}),
			needs: []need{{vmPath, "VM.PowerMgmt"}}, run: (*Cluster).start},
		"POST /nodes/{node}/qemu/{vmid}/status/stop": {params: onVM(map[string]param{"timeout": {kind: "integer"},
			"overrule-shutdown": aFlag}), needs: []need{{vmPath, "VM.PowerMgmt"}}, run: (*Cluster).stop},
		"POST /nodes/{node}/qemu/{vmid}/status/suspend": {params: onVM(map[string]param{"todisk": aFlag,
			"statestorage": {kind: "string", pattern: storageID, requires: "todisk"}}),
			needs: []need{{vmPath, "VM.PowerMgmt"}}, run: (*Cluster).suspend},
		"DELETE /nodes/{node}/qemu/{vmid}": {params: onVM(map[string]param{"purge": aFlag,
			"destroy-unreferenced-disks": aFlag}), needs: []need{{vmPath, "VM.Allocate"}}, run: (*Cluster).destroy},
		"POST /nodes/{node}/storage/{storage}/upload": {params: map[string]param{"node": aNode, "storage": aStorage,
			"content":  {kind: "string", required: true, enum: []string{"iso", "vztmpl", "import"}},
			"filename": {kind: "string", required: true, maxLength: 255},
			"checksum": {kind: "string", requires: "checksum-algorithm"},
			"checksum-algorithm": {kind: "string", requires: "checksum",
				enum: []string{"md5", "sha1", "sha224", "sha256", "sha384", "sha512"}}},
			needs: []need{{"/storage/{storage}", "Datastore.AllocateTemplate"}}, run: (*Cluster).upload},
		"DELETE /nodes/{node}/storage/{storage}/content/{volume}": {params: map[string]param{"node": aNode,
			"storage": aStorage, "volume": {kind: "string", required: true},
			"delay": {kind: "integer", min: 1, max: 30}}, run: (*Cluster).deleteVolume},
	}
}

// findOperation finds the operation of a request, and the parameters in its path.
func findOperation(method, path string) (name string, op operation, params url.Values) {
	have := strings.Split(path, "/")
	for name, op := range operations {
		wantMethod, wantPath, _ := strings.Cut(name, " ")
		want := strings.Split(wantPath, "/")
		if method != wantMethod || len(want) != len(have) {
			continue
		}
		params = url.Values{}
		for i, part := range want {
			if key, ok := strings.CutPrefix(part, "{"); ok {
				value, err := url.PathUnescape(have[i])
				if err != nil {
					params = nil
					break
				}
				params.Set(strings.TrimSuffix(key, "}"), value)
			} else if part != have[i] {
				params = nil
				break
			}
		}
		if params != nil {
			return name, op, params
		}
	}
	return "", operation{}, nil
}

// checkParams checks the parameters of a call. It returns a map from the name of each wrong parameter to an error text.
func (op operation) checkParams(given url.Values) map[string]string {
	wrong := map[string]string{}
	for name, values := range given {
		p, known := op.params[name]
		switch text := p.check(values[0]); {
		case !known:
			wrong[name] = "property is not defined in schema and the schema does not allow additional properties"
		case len(values) > 1:
			wrong[name] = "duplicate parameter"
		case text != "":
			wrong[name] = text
		case p.requires != "" && !given.Has(p.requires):
			wrong[p.requires] = fmt.Sprintf("missing property - '%s' requires this property", name)
		}
	}
	for name, p := range op.params {
		if p.required && !given.Has(name) {
			wrong[name] = "property is missing and it is not optional"
		}
	}
	return wrong
}
