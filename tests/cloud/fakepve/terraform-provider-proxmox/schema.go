package main

import "github.com/hashicorp/terraform-plugin-framework/resource/schema"

// The schemas of this fake provider have the arguments that modules/proxmox/servers sets. Each argument has the same
// type as in bpg/proxmox, and is required if it is required there. The fake has no defaults, so a plan shows an
// argument without a value as known after apply.
var (
	id       = schema.StringAttribute{Computed: true}
	required = schema.StringAttribute{Required: true}
	text     = schema.StringAttribute{Optional: true, Computed: true}
	number   = schema.Int64Attribute{Optional: true, Computed: true}
	boolean  = schema.BoolAttribute{Optional: true, Computed: true}
)

type attributes = map[string]schema.Attribute

func list(of attributes, blocks map[string]schema.Block) schema.ListNestedBlock {
	return schema.ListNestedBlock{NestedObject: schema.NestedBlockObject{Attributes: of, Blocks: blocks}}
}

var fileSchema = schema.Schema{
	Attributes: attributes{"id": id, "content_type": text, "datastore_id": required, "node_name": required},
	Blocks:     map[string]schema.Block{"source_raw": list(attributes{"data": required, "file_name": required}, nil)},
}

var vmSchema = schema.Schema{
	Attributes: attributes{"id": id, "name": text, "description": text, "node_name": required, "vm_id": number,
		"on_boot": boolean},
	Blocks: map[string]schema.Block{
		"clone": list(attributes{"vm_id": schema.Int64Attribute{Required: true}, "node_name": text,
			"datastore_id": text, "full": boolean}, nil),
		"agent":            list(attributes{"enabled": boolean}, nil),
		"cpu":              list(attributes{"cores": number, "type": text}, nil),
		"memory":           list(attributes{"dedicated": number}, nil),
		"network_device":   list(attributes{"bridge": text, "vlan_id": number}, nil),
		"operating_system": list(attributes{"type": text}, nil),
		"cdrom":            list(attributes{"file_id": text, "interface": required}, nil),
		"initialization": list(attributes{"datastore_id": text, "interface": text, "user_data_file_id": text,
			"meta_data_file_id": text},
			map[string]schema.Block{"ip_config": list(nil, map[string]schema.Block{
				"ipv4": list(attributes{"address": text, "gateway": text}, nil),
			})}),
	},
}
