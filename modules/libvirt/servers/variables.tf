variable "servers" {
  description = "The servers' VMs on this host, by name. The name is also the VM's host name and the server's ID. A VM can have a `mac` address, and a `network_config` of cloud-init if it does not use DHCP."
  type = map(object({
    mac            = optional(string)
    network_config = optional(string)
  }))
  nullable = false

  validation {
    condition     = length(var.servers) > 0 && alltrue([for name in keys(var.servers) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", name)) && length(name) <= 63])
    error_message = "servers has at least one VM, and a name has lower-case letters, digits and dashes inside, at most 63 characters, such as \"nstance-server-1\"."
  }
}

variable "server_userdata" {
  description = "The boot script of a server, which is the output `server_userdata` of the module `shard`."
  type        = string
  nullable    = false

  validation {
    condition     = startswith(var.server_userdata, "#!/bin/sh\n")
    error_message = "server_userdata is a script that begins with #!/bin/sh: the output server_userdata of the module shard."
  }
}

variable "image" {
  description = "Name of the volume with the server's image. The volume is in the storage pool `pool`. The disk of each new VM is a copy of this volume."
  type        = string
  nullable    = false
}

variable "pool" {
  description = "The storage pool of libvirt that has the server's image. The VMs' disks are also made in this pool."
  type        = string
  default     = "default"
  nullable    = false
}

variable "network" {
  description = "The servers' network, which must contain the leader's address: the `name` of a network of libvirt, or a `bridge` of the host. Servers on several hosts need a bridge to the same network."
  type = object({
    name   = optional(string)
    bridge = optional(string)
  })
  nullable = false

  validation {
    condition     = (var.network.name == null) != (var.network.bridge == null)
    error_message = "network has either a name or a bridge."
  }
}

variable "secrets_iso" {
  description = "Path of a CD-ROM image on the host. The CD-ROM has the label `nstance`. The boot script copies the files on the CD-ROM, such as `secrets.env`, to /etc/nstance. Without the CD-ROM, the server's image must have these files."
  type        = string
  default     = null

  validation {
    condition     = var.secrets_iso == null ? true : can(regex("^/.*\\.iso$", var.secrets_iso))
    error_message = "secrets_iso is an absolute path that ends in .iso, such as /var/lib/libvirt/images/nstance-secrets.iso."
  }
}

variable "vcpu" {
  description = "Number of CPUs of a VM."
  type        = number
  default     = 2
  nullable    = false
}

variable "memory_mib" {
  description = "Memory of a VM in MiB."
  type        = number
  default     = 1024
  nullable    = false
}

variable "disk_gib" {
  description = "Size of a server's disk in GiB. Default: the image's size."
  type        = number
  default     = null
}

variable "domain_type" {
  description = "Type of the VMs: `kvm`, or `qemu` for hosts without hardware support for VMs. `qemu` is many times slower."
  type        = string
  default     = "kvm"
  nullable    = false

  validation {
    condition     = contains(["kvm", "qemu"], var.domain_type)
    error_message = "domain_type is kvm or qemu."
  }
}
