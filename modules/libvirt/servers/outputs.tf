output "servers" {
  description = "The servers' VMs, by name, each with its `id`, which is the UUID of the libvirt domain."
  value       = { for name, domain in libvirt_domain.server : name => { id = domain.id } }
}
