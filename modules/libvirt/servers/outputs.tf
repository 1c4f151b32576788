output "servers" {
  description = "The VMs, by name: the `id` of the domain, which is its UUID."
  value       = { for name, domain in libvirt_domain.server : name => { id = domain.id } }
}
