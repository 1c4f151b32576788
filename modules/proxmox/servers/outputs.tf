output "servers" {
  description = "The VMs, by name: the `vm_id` and the `node` of each."
  value       = { for name, vm in proxmox_virtual_environment_vm.server : name => { vm_id = vm.vm_id, node = vm.node_name } }
}
