mock_provider "libvirt" {}

variables {
  servers         = { nstance-server-1 = {}, nstance-server-2 = { mac = "52:54:00:00:00:02", network_config = "version: 2\n" } }
  server_userdata = "#!/bin/sh\nserver\n"
  image           = "nstance-server.qcow2"
  network         = { bridge = "br0" }
}

run "servers" {
  assert {
    condition     = length(libvirt_domain.server) == 2 && alltrue([for name, d in libvirt_domain.server : d.name == name && d.autostart && d.cloudinit == libvirt_cloudinit_disk.server[name].id && d.disk[0].volume_id == libvirt_volume.server[name].id])
    error_message = "the domains are ${jsonencode(libvirt_domain.server)}"
  }
  assert {
    condition     = alltrue([for d in libvirt_domain.server : length(d.disk) == 1 && d.network_interface[0].bridge == "br0" && d.cpu[0].mode == "host-passthrough"])
    error_message = "the domains are ${jsonencode(libvirt_domain.server)}"
  }
  assert {
    condition     = libvirt_domain.server["nstance-server-2"].network_interface[0].mac == "52:54:00:00:00:02" && libvirt_cloudinit_disk.server["nstance-server-2"].network_config == "version: 2\n"
    error_message = "the second server's network is ${jsonencode(libvirt_cloudinit_disk.server["nstance-server-2"])}"
  }
  assert {
    condition     = libvirt_cloudinit_disk.server["nstance-server-1"].user_data == "#!/bin/sh\nserver\n" && jsondecode(libvirt_cloudinit_disk.server["nstance-server-1"].meta_data)["local-hostname"] == "nstance-server-1"
    error_message = "the first server's seed is ${jsonencode(libvirt_cloudinit_disk.server["nstance-server-1"])}"
  }
  assert {
    condition     = alltrue([for v in libvirt_volume.server : v.base_volume_name == "nstance-server.qcow2" && v.base_volume_pool == "default"])
    error_message = "the disks are ${jsonencode(libvirt_volume.server)}"
  }
}

run "secrets" {
  variables {
    secrets_iso = "/var/lib/libvirt/images/secrets.iso"
    network     = { name = "vms" }
    domain_type = "qemu"
    disk_gib    = 4
  }
  assert {
    condition     = alltrue([for d in libvirt_domain.server : d.disk[1].file == "/var/lib/libvirt/images/secrets.iso" && d.network_interface[0].network_name == "vms" && d.type == "qemu"])
    error_message = "the domains are ${jsonencode(libvirt_domain.server)}"
  }
  assert {
    condition     = libvirt_volume.server["nstance-server-1"].size == 4294967296
    error_message = "the disk has ${libvirt_volume.server["nstance-server-1"].size} bytes"
  }
}

run "no_network" {
  command = plan
  variables {
    network = {}
  }
  expect_failures = [var.network]
}

run "no_script" {
  command = plan
  variables {
    server_userdata = "server"
  }
  expect_failures = [var.server_userdata]
}

run "secrets_of_another_kind" {
  command = plan
  variables {
    secrets_iso = "/etc/secrets.env"
  }
  expect_failures = [var.secrets_iso]
}

run "name" {
  command = plan
  variables {
    servers = { "Server_1" = {} }
  }
  expect_failures = [var.servers]
}
