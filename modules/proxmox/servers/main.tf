# Servers of a shard, as VMs of a cluster of Proxmox VE.

locals {
  version = substr(sha256(var.server_userdata), 0, 12)
}

# The file of a changed boot script has a new name, so the VM is replaced, as on the clouds. A server keeps nothing on
# its disk.
resource "proxmox_virtual_environment_file" "userdata" {
  for_each     = var.servers
  content_type = "snippets"
  datastore_id = var.snippets_storage
  node_name    = each.value.node

  source_raw {
    data      = var.server_userdata
    file_name = "${each.key}-${local.version}-user.sh"
  }
}

# Proxmox puts the host name into its own user data, but the boot script replaces that. cloud-init runs the boot script
# once for each instance-id.
resource "proxmox_virtual_environment_file" "metadata" {
  for_each     = var.servers
  content_type = "snippets"
  datastore_id = var.snippets_storage
  node_name    = each.value.node

  source_raw {
    data      = jsonencode({ instance-id = "${each.key}-${local.version}", local-hostname = each.key })
    file_name = "${each.key}-${local.version}-meta.json"
  }
}

resource "proxmox_virtual_environment_vm" "server" {
  for_each    = var.servers
  name        = each.key
  description = "Server of a shard of Nstance"
  node_name   = each.value.node
  vm_id       = each.value.vm_id
  on_boot     = true

  clone {
    node_name    = var.template.node
    vm_id        = var.template.vm_id
    datastore_id = var.storage
    full         = true
  }

  agent {
    enabled = false
  }

  cpu {
    cores = var.cores
    type  = var.cpu_type
  }

  memory {
    dedicated = var.memory_mib
  }

  network_device {
    bridge  = var.bridge
    vlan_id = var.vlan
  }

  operating_system {
    type = "l26"
  }

  initialization {
    datastore_id      = var.storage
    interface         = "ide2"
    user_data_file_id = proxmox_virtual_environment_file.userdata[each.key].id
    meta_data_file_id = proxmox_virtual_environment_file.metadata[each.key].id

    ip_config {
      ipv4 {
        address = coalesce(each.value.ipv4_cidr, "dhcp")
        gateway = each.value.ipv4_gateway
      }
    }
  }

  dynamic "cdrom" {
    for_each = var.secrets_iso == null ? [] : [var.secrets_iso]

    content {
      file_id   = cdrom.value
      interface = "ide3"
    }
  }
}
