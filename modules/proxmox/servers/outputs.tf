output "servers" {
  description = "The servers' VMs, by name, each with its `vm_id` and its `node`."
  value       = { for name, vm in proxmox_virtual_environment_vm.server : name => { vm_id = vm.vm_id, node = vm.node_name } }
}
