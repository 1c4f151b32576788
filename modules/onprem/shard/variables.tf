variable "cluster" {
  description = "The cluster of the shard: its `id`, and where its encryption key is stored. The cluster's secrets are in the bucket, sealed with this key. If the cluster's bucket is in a cloud, `primary` is the output `primary` of the module `cluster` there, and `encryption_key` is not used. See docs/start/multi-cloud.md."
  type = object({
    id = string
    encryption_key = optional(object({
      provider = string
      source   = string
    }), { provider = "env", source = "NSTANCE_ENCRYPTION_KEY" })
    primary = optional(object({
      id = string
      storage = object({
        provider = string
        bucket   = string
        prefix   = optional(string)
        region   = optional(string)
        endpoint = optional(string)
      })
      secrets = object({
        provider   = string
        prefix     = optional(string)
        project_id = optional(string)
      })
      encryption_key = optional(object({
        provider = string
        source   = string
      }))
    }))
  })
  nullable = false
}

variable "identity" {
  description = "How the servers get credentials in the cloud of the cluster's bucket, if these are not those of the shard's own bucket: the `profile` in the file of the variable AWS_CONFIG_FILE, and optionally the `role_arn` that the servers assume with it. For Google Cloud, leave it out and set GOOGLE_APPLICATION_CREDENTIALS in server_environment."
  type = object({
    profile  = optional(string)
    role_arn = optional(string)
  })
  default = null
}

variable "shard" {
  description = "Name of the shard: lower-case letters, digits and single dashes, at most 32 characters."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", var.shard)) && length(var.shard) <= 32 && !strcontains(var.shard, "--")
    error_message = "shard has lower-case letters, digits and single dashes inside, at most 32 characters, such as \"rack-1\"."
  }
}

variable "leader_network" {
  description = "The leader's address, which each new leader takes over by ARP or NDP (docs/reference/arp.md): `ipv4`, `ipv6` or both, and optionally a `dns_name`. The address must be in the servers' own network, and no other machine may use it."
  type = object({
    ipv4     = optional(string)
    ipv6     = optional(string)
    dns_name = optional(string)
  })
  nullable = false

  validation {
    condition     = var.leader_network.ipv4 != null || var.leader_network.ipv6 != null
    error_message = "leader_network has an ipv4 or an ipv6 address."
  }
}

variable "bucket" {
  description = "The cluster's bucket, for the servers' boot script: the object store's `endpoint`, and the bucket's `name`, `prefix` and `region`."
  type = object({
    endpoint = string
    name     = string
    prefix   = optional(string)
    region   = optional(string, "us-east-1")
  })
  nullable = false
}

variable "config" {
  description = "The shard's configuration, as in docs/reference/configuration.md. It has `server.provider`: [libvirt](../../../docs/reference/libvirt.md) or [Proxmox VE](../../../docs/reference/proxmox.md) with its options. The module adds `cluster`, `server.shard`, `server.leader_network`, and in `defaults.userdata` a boot script that starts nstance-agent from the image. The plan validates the configuration with the servers' own rules."
  type        = any
  nullable    = false

  validation {
    condition     = can(keys(var.config)) && !anytrue([can(var.config.cluster), can(var.config.server.shard), can(var.config.server.leader_network)])
    error_message = "config is an object without cluster, server.shard and server.leader_network. The module sets these from its variables cluster, shard and leader_network."
  }
}

variable "agent_environment" {
  description = "Environment variables of nstance-agent on the VMs, such as NSTANCE_RECV_EXTENSIONS."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "agent_commands" {
  description = "Lines of `sh` that a VM runs when it boots, before it starts nstance-agent. They are part of a template, so they can use variables: `{{ quote .Vars.name }}`."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "agent_binaries" {
  description = "Downloads of nstance-agent, by architecture, for VMs whose image does not contain it. The boot script checks the download's SHA-256, and installs the same systemd unit as the images of images/packer have."
  type        = map(object({ url = string, sha256 = string }))
  default     = {}
  nullable    = false
}

variable "server_args" {
  description = "More arguments of nstance-server, such as `--debug`."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "server_environment" {
  description = "Additional environment variables of nstance-server. Do not put secrets here, because they would be in the state: put them into /etc/nstance/secrets.env on the servers."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "server_commands" {
  description = "Lines of `sh` that a server runs when it boots, before it starts nstance-server."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "server_binaries" {
  description = "Downloads of nstance-server, by architecture, for machines whose image does not contain it. The boot script checks the download's SHA-256, and installs the systemd units that images from images/packer also contain."
  type        = map(object({ url = string, sha256 = string }))
  default     = {}
  nullable    = false
}

variable "wait_for_leader" {
  description = "Let `tofu apply` wait until a server has applied the shard's configuration."
  type        = bool
  default     = false
  nullable    = false
}

variable "deletion_protection" {
  description = "Refuse every plan that destroys the shard, until an apply has set this variable to `false`."
  type        = bool
  default     = false
  nullable    = false
}

variable "force_destroy" {
  description = "Let `tofu destroy` remove the records of the shard's VMs even if no server is left that could terminate the VMs. The VMs then keep running, and `tofu destroy` lists them."
  type        = bool
  default     = false
  nullable    = false
}

variable "destroy_timeout" {
  description = "How long `tofu destroy` waits until the leader has deleted all VMs of the shard."
  type        = string
  default     = "15m"
  nullable    = false

  validation {
    condition     = can(regex("^([0-9]+(h|m|s))+$", var.destroy_timeout))
    error_message = "destroy_timeout is a duration, such as \"15m\"."
  }
}
