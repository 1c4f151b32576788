# Variables of the shard's VMs: the parts of the shard's configuration that the module cannot derive. They have the
# types of the resource nstance_shard. At plan time, that resource validates them with the servers' own rules.
# docs/reference/configuration.md describes them all.

variable "dynamic_subnet_pools" {
  description = "Subnet pools that dynamic groups may use. A dynamic group may use its template's pool only if the list has this pool. Default: all pools of the shard."
  type        = list(string)
  default     = null
}

variable "settings" {
  description = "Settings of the servers, as under `server` in the shard configuration. Unset fields have the servers' defaults."
  type = object({
    request_timeout            = optional(string)
    create_rate_limit          = optional(string)
    check_registration_address = optional(bool)
    health_check_interval      = optional(string)
    default_drain_timeout      = optional(string)
    shutdown_timeout           = optional(string)
    shutdown_grace             = optional(string)
    journal_retention          = optional(string)
    garbage_collection = optional(object({
      interval                 = optional(string)
      registration_timeout     = optional(string)
      deleted_record_retention = optional(string)
    }))
    expiry = optional(object({
      eligible_age = optional(string)
      forced_age   = optional(string)
      ondemand_age = optional(string)
    }))
    leader_election = optional(object({
      renew_interval = optional(string)
      lease_duration = optional(string)
      peer_interval  = optional(string)
      peer_lease     = optional(string)
    }))
    error_exit_jitter = optional(object({
      min_delay = optional(string)
      max_delay = optional(string)
    }))
  })
  default  = {}
  nullable = false
}

variable "tenants" {
  description = "Tenants, by name, with their quotas. The tenant `default` exists even if it is not listed."
  type = map(object({
    max_instances = optional(number)
    max_groups    = optional(number)
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue(flatten([for t in values(var.tenants) : [for n in [t.max_instances, t.max_groups] : n == null ? true : n >= 0 && floor(n) == n]]))
    error_message = "max_instances and max_groups of a tenant are whole numbers, 0 or more."
  }
}

variable "certificates" {
  description = "Templates of certificates for VMs. You choose the name of each template, and entries of `files` refer to the template by this name."
  type = map(object({
    kind         = string
    cn           = optional(string)
    organization = optional(list(string))
    country      = optional(list(string))
    province     = optional(list(string))
    locality     = optional(list(string))
    street       = optional(list(string))
    postal_code  = optional(list(string))
    dns          = optional(list(string))
    ip           = optional(list(string))
    uri          = optional(list(string))
    ttl          = number
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for c in values(var.certificates) : floor(c.ttl) == c.ttl])
    error_message = "ttl of a certificate is a whole number of hours."
  }
}

variable "defaults" {
  description = <<-TEXT
    Defaults of every template.

    * `args_json`: arguments of the VMs, as JSON. See docs/reference/libvirt.md.
    * `vars`: values of variables that templates use.
    * `userdata`: boot script of the VMs. Default: a script that starts nstance-agent from the image.
  TEXT
  type = object({
    args_json = optional(string, "{}")
    vars      = optional(map(string))
    userdata  = optional(object({ source = optional(string), encoding = optional(string), content = string }))
  })
  default  = {}
  nullable = false

  validation {
    condition     = can(keys(jsondecode(var.defaults.args_json)))
    error_message = "defaults.args_json is a JSON object, as jsonencode({ … }) makes it."
  }
}

variable "templates" {
  description = "Templates, by name. A template says how to make VMs, and groups refer to it by its name."
  type = map(object({
    kind           = string
    arch           = string
    args_json      = optional(string)
    vars           = optional(map(string))
    size           = optional(number)
    instance_type  = optional(string)
    instance_types = optional(list(string))
    subnet_pool    = optional(string)
    userdata       = optional(object({ source = optional(string), encoding = optional(string), content = string }))
    files = optional(map(object({
      kind     = string
      template = optional(string)
      key      = optional(object({ source = string, name = string, algorithm = optional(string) }))
      source   = optional(string)
      vars     = optional(map(string))
      json     = optional(string)
      content  = optional(string)
    })))
    health_checks = optional(map(object({
      exec              = optional(list(string))
      http              = optional(object({ port = number, path = optional(string), status = optional(number) }))
      interval          = optional(string)
      timeout           = optional(string)
      failure_threshold = optional(number)
      success_threshold = optional(number)
      start_period      = optional(string)
    })))
    tenants = optional(list(string))
    dynamic = optional(object({
      args           = optional(list(string))
      instance_types = optional(list(string))
      max_size       = optional(number)
      subnet_pools   = optional(list(string))
      vars           = optional(list(string))
    }))
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for t in values(var.templates) : t.args_json == null ? true : can(keys(jsondecode(t.args_json)))])
    error_message = "args_json of a template is a JSON object, as jsonencode({ … }) makes it."
  }

  validation {
    condition = alltrue(flatten([for t in values(var.templates) : [
      for n in [t.size, try(t.dynamic.max_size, null)] : n == null ? true : n >= 0 && floor(n) == n
    ]]))
    error_message = "size and dynamic.max_size of a template are whole numbers, 0 or more."
  }
}

variable "groups" {
  description = "The static groups of VMs, by `tenant/name`."
  type = map(object({
    template       = string
    size           = optional(number)
    instance_type  = optional(string)
    instance_types = optional(list(string))
    subnet_pool    = optional(string)
    vars           = optional(map(string))
    args_json      = optional(string)
    drain_timeout  = optional(string)
    max_surge      = optional(number)
    max_unhealthy  = optional(string)
    rollout = optional(object({
      paused           = optional(bool)
      canary           = optional(number)
      bake_time        = optional(string)
      halt_on_failures = optional(number)
      max_unavailable  = optional(number)
      revision         = optional(string)
      on_image_change  = optional(bool)
    }))
    disruption = optional(object({
      windows      = optional(list(string))
      max_per_hour = optional(number)
    }))
    schedules = optional(list(object({
      cron     = string
      timezone = optional(string)
      size     = optional(number)
    })))
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for name in keys(var.groups) : length(split("/", name)) == 2])
    error_message = "Groups are named tenant/name, such as \"default/workers\"."
  }

  validation {
    condition     = alltrue([for group in values(var.groups) : group.args_json == null ? true : can(keys(jsondecode(group.args_json)))])
    error_message = "args_json of a group is a JSON object, as jsonencode({ … }) makes it."
  }

  validation {
    condition     = alltrue(flatten([for group in values(var.groups) : [for n in [group.size, group.max_surge] : n == null ? true : n >= 0 && floor(n) == n]]))
    error_message = "size and max_surge of a group are whole numbers, 0 or more."
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
