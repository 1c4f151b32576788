mock_provider "proxmox" {}

variables {
  servers = {
    nstance-server-1 = { node = "pve1" }
    nstance-server-2 = { node = "pve2", vm_id = 802, ipv4_cidr = "10.0.0.12/24", ipv4_gateway = "10.0.0.1" }
  }
  server_userdata = "#!/bin/sh\nserver\n"
  template        = { node = "pve1", vm_id = 9000 }
}

run "servers" {
  assert {
    condition     = length(proxmox_virtual_environment_vm.server) == 2 && alltrue([for name, vm in proxmox_virtual_environment_vm.server : vm.name == name && vm.node_name == var.servers[name].node && vm.on_boot && vm.clone[0].vm_id == 9000 && vm.clone[0].node_name == "pve1" && vm.clone[0].full])
    error_message = "the VMs are ${jsonencode(proxmox_virtual_environment_vm.server)}"
  }
  assert {
    condition     = alltrue([for name, vm in proxmox_virtual_environment_vm.server : vm.initialization[0].user_data_file_id == proxmox_virtual_environment_file.userdata[name].id && vm.initialization[0].meta_data_file_id == proxmox_virtual_environment_file.metadata[name].id && length(vm.cdrom) == 0])
    error_message = "the VMs are ${jsonencode(proxmox_virtual_environment_vm.server)}"
  }
  assert {
    condition     = alltrue([for name, file in proxmox_virtual_environment_file.userdata : file.content_type == "snippets" && file.node_name == var.servers[name].node && file.source_raw[0].data == "#!/bin/sh\nserver\n" && strcontains(file.source_raw[0].file_name, substr(sha256("#!/bin/sh\nserver\n"), 0, 12))])
    error_message = "the boot scripts are ${jsonencode(proxmox_virtual_environment_file.userdata)}"
  }
  assert {
    condition     = alltrue([for name, file in proxmox_virtual_environment_file.metadata : jsondecode(file.source_raw[0].data)["local-hostname"] == name])
    error_message = "the metadata are ${jsonencode(proxmox_virtual_environment_file.metadata)}"
  }
  assert {
    condition     = proxmox_virtual_environment_vm.server["nstance-server-1"].initialization[0].ip_config[0].ipv4[0].address == "dhcp" && proxmox_virtual_environment_vm.server["nstance-server-2"].initialization[0].ip_config[0].ipv4[0].address == "10.0.0.12/24" && proxmox_virtual_environment_vm.server["nstance-server-2"].initialization[0].ip_config[0].ipv4[0].gateway == "10.0.0.1"
    error_message = "the VMs are ${jsonencode(proxmox_virtual_environment_vm.server)}"
  }
  assert {
    condition     = output.servers["nstance-server-2"] == { vm_id = 802, node = "pve2" }
    error_message = "the output is ${jsonencode(output.servers)}"
  }
}

run "secrets" {
  variables {
    secrets_iso = "local:iso/nstance-secrets.iso"
    vlan        = 20
  }
  assert {
    condition     = alltrue([for vm in proxmox_virtual_environment_vm.server : vm.cdrom[0].file_id == "local:iso/nstance-secrets.iso" && vm.network_device[0].vlan_id == 20])
    error_message = "the VMs are ${jsonencode(proxmox_virtual_environment_vm.server)}"
  }
}

run "gateway_without_address" {
  command = plan
  variables {
    servers = { nstance-server-1 = { node = "pve1", ipv4_gateway = "10.0.0.1" } }
  }
  expect_failures = [var.servers]
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
