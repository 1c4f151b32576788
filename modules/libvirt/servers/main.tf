# Servers of a shard, as VMs of one host.

# cloud-init runs the boot script once for each instance-id.
resource "libvirt_cloudinit_disk" "server" {
  for_each       = var.servers
  name           = "${each.key}-seed.iso"
  pool           = var.pool
  user_data      = var.server_userdata
  meta_data      = jsonencode({ instance-id = "${each.key}-${substr(sha256(var.server_userdata), 0, 12)}", local-hostname = each.key })
  network_config = each.value.network_config
}

resource "libvirt_volume" "server" {
  for_each         = var.servers
  name             = "${each.key}.qcow2"
  pool             = var.pool
  base_volume_name = var.image
  base_volume_pool = var.pool
  size             = var.disk_gib == null ? null : var.disk_gib * 1024 * 1024 * 1024

  # A server keeps nothing on its disk. A changed boot script replaces the VM, as on the clouds.
  lifecycle {
    replace_triggered_by = [libvirt_cloudinit_disk.server[each.key]]
  }
}

resource "libvirt_domain" "server" {
  for_each  = var.servers
  name      = each.key
  type      = var.domain_type
  vcpu      = var.vcpu
  memory    = var.memory_mib
  autostart = true
  cloudinit = libvirt_cloudinit_disk.server[each.key].id

  dynamic "cpu" {
    for_each = var.domain_type == "kvm" ? ["host-passthrough"] : []

    content {
      mode = cpu.value
    }
  }

  disk {
    volume_id = libvirt_volume.server[each.key].id
  }

  dynamic "disk" {
    for_each = var.secrets_iso == null ? [] : [var.secrets_iso]

    content {
      file = disk.value
    }
  }

  network_interface {
    network_name = var.network.name
    bridge       = var.network.bridge
    mac          = each.value.mac
  }

  console {
    type        = "pty"
    target_port = "0"
    target_type = "serial"
  }

  # The provider's default is SPICE, which QEMU of Debian lacks without further packages. Only root reaches the socket.
  graphics {
    type        = "vnc"
    listen_type = "socket"
  }

  lifecycle {
    replace_triggered_by = [libvirt_volume.server[each.key]]
  }
}
