variable "servers" {
  description = "The servers' VMs, by name. The name is also the VM's host name and the server's ID. Each VM has a `node`, and optionally a `vm_id`, and an address `ipv4_cidr` with an `ipv4_gateway`. A VM without an address uses DHCP."
  type = map(object({
    node         = string
    vm_id        = optional(number)
    ipv4_cidr    = optional(string)
    ipv4_gateway = optional(string)
  }))
  nullable = false

  validation {
    condition     = length(var.servers) > 0 && alltrue([for name in keys(var.servers) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", name)) && length(name) <= 63])
    error_message = "servers has at least one VM, and a name has lower-case letters, digits and dashes inside, at most 63 characters, such as \"nstance-server-1\"."
  }
  validation {
    condition     = alltrue([for s in values(var.servers) : s.ipv4_cidr == null ? s.ipv4_gateway == null : can(cidrnetmask(s.ipv4_cidr))])
    error_message = "ipv4_cidr is an address with the length of its network's prefix, such as 10.0.0.11/24, and ipv4_gateway needs it."
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

variable "template" {
  description = "The VM template with the server's image: its `node` and `vm_id`. The servers' VMs are full clones of this template. The template must have no cloud-init drive."
  type        = object({ node = string, vm_id = number })
  nullable    = false
}

variable "storage" {
  description = "Storage of Proxmox VE for the VMs' disks."
  type        = string
  default     = "local-lvm"
  nullable    = false
}

variable "snippets_storage" {
  description = "Storage for the boot scripts. Every node must have it, and it must allow snippets. The provider bpg/proxmox writes the snippets over SSH."
  type        = string
  default     = "local"
  nullable    = false
}

variable "bridge" {
  description = "The bridge to the servers' network, which must contain the leader's address."
  type        = string
  default     = "vmbr0"
  nullable    = false
}

variable "vlan" {
  description = "VLAN tag of the network interfaces."
  type        = number
  default     = null
}

variable "secrets_iso" {
  description = "Volume of a CD-ROM image, such as `local:iso/nstance-secrets.iso`. The CD-ROM has the label `nstance`. The boot script copies the files on the CD-ROM, such as `secrets.env` and `proxmox-token`, to /etc/nstance. Without the CD-ROM, the VM template must have these files."
  type        = string
  default     = null

  validation {
    condition     = var.secrets_iso == null ? true : can(regex("^[^:/]+:iso/.+\\.iso$", var.secrets_iso))
    error_message = "secrets_iso is a volume STORAGE:iso/NAME.iso, such as local:iso/nstance-secrets.iso."
  }
}

variable "cores" {
  description = "Number of CPUs of a VM."
  type        = number
  default     = 2
  nullable    = false
}

variable "cpu_type" {
  description = "Type of a VM's CPUs, as Proxmox VE names it."
  type        = string
  default     = "x86-64-v2-AES"
  nullable    = false
}

variable "memory_mib" {
  description = "Memory of a VM in MiB."
  type        = number
  default     = 1024
  nullable    = false
}
