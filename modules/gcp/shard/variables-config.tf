# Variables of the shard's VMs: the parts of the shard's configuration that the module cannot derive. They have the
# types of the resource nstance_shard. At plan time, that resource validates them with the servers' own rules.
# docs/reference/configuration.md describes them all.

variable "subnet_pools" {
  description = "Roles of the module `network` whose subnets become subnet pools of the shard. Each pool has the name of its role. Default: every role that has a subnet for this shard in the shard's region."
  type        = list(string)
  default     = null

  validation {
    condition = var.subnet_pools == null ? true : length(var.subnet_pools) > 0 && alltrue([for role in var.subnet_pools :
      length([for s in try(var.network.subnets[role][regex("^(.+)-[a-z]$", var.zone)[0]], []) : s if s.shards == null ? true : contains(s.shards, var.shard)]) > 0
    ])
    error_message = "subnet_pools are roles, at least one, for each of which the network has a subnet in the shard's region that the shard may use (shards)."
  }
}

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
    attestation                = optional(object({ method = string }))
    health_check_interval      = optional(string)
    default_drain_timeout      = optional(string)
    image_refresh_interval     = optional(string)
    shutdown_timeout           = optional(string)
    shutdown_grace             = optional(string)
    journal_retention          = optional(string)
    provider_options           = optional(map(string))
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

variable "images" {
  description = "Queries that find machine images. You choose the name of each query. The servers repeat each query every `image_refresh_interval`. In a template, `{{ .Image.name }}` inserts the image that the query `name` found."
  type = map(object({
    owners   = optional(list(string))
    filters  = optional(list(object({ name = string, values = list(string) })))
    sort     = optional(string)
    order    = optional(string)
    fallback = optional(string)
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for name in keys(var.images) : can(regex("^[A-Za-z_][A-Za-z0-9_]*$", name))])
    error_message = "Names of images are identifiers, with letters, digits and underscores, since templates write {{ .Image.name }}."
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

    * `args_json`: the body of Compute Engine's instances.insert, as JSON. The module adds the network tag of agents and the agents' service account, if
      there is one, unless the body names others.
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
    load_balancer_health = optional(bool)
    tenants              = optional(list(string))
    dynamic = optional(object({
      args           = optional(list(string))
      instance_types = optional(list(string))
      max_size       = optional(number)
      subnet_pools   = optional(list(string))
      load_balancers = optional(list(string))
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
    load_balancers = optional(list(string))
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
    purchase = optional(object({
      spot_percent   = number
      on_demand_base = optional(number)
      fallback       = optional(string)
      return_to_spot = optional(string)
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

  validation {
    condition     = alltrue(flatten([for group in values(var.groups) : [for name in coalesce(group.load_balancers, []) : contains(concat(keys(var.network.load_balancers), keys(var.load_balancers)), name)]]))
    error_message = "load_balancers of a group are names of the network's load balancers, or of those in the variable load_balancers."
  }
}

variable "load_balancers" {
  description = <<-TEXT
    Unmanaged instance groups that the module `network` did not make. You choose the name of each, and groups of VMs refer to it by this name. Use
    `agent_ingress` to allow the traffic from the load balancers of these instance groups. For templates with `load_balancer_health`, also list the
    regional backend services of the instance group in `backend_service_names`.
  TEXT
  type        = map(object({ instance_group_name = string, backend_service_names = optional(list(string)) }))
  default     = {}
  nullable    = false

  validation {
    condition     = length(setintersection(keys(var.load_balancers), keys(var.network.load_balancers))) == 0
    error_message = "load_balancers names one that the network has already."
  }
}

variable "agent_ingress" {
  description = "Address ranges and VMs from which traffic may reach the shard's VMs. You choose the keys of the map. `protocol` is `tcp`, `udp`, `icmp`, or `-1` for all protocols; `-1` and `icmp` have no ports. `tags` are network tags of other VMs. `self = true` admits the shard's other VMs. The clients of the load balancers of the module `network` need no entry: they may always reach the ports of the listeners."
  type = map(object({
    protocol   = string
    from_port  = optional(number)
    to_port    = optional(number)
    self       = optional(bool, false)
    ipv4_cidrs = optional(list(string), [])
    tags       = optional(list(string), [])
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for rule in values(var.agent_ingress) : contains(["tcp", "udp", "icmp", "-1"], rule.protocol) && contains(["icmp", "-1"], rule.protocol) == (rule.from_port == null)])
    error_message = "protocol of agent_ingress is tcp or udp, with from_port (and to_port, where it is another); or icmp or \"-1\", without ports."
  }

  validation {
    condition     = alltrue([for name in keys(var.agent_ingress) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", name)) && length(name) <= 16])
    error_message = "Names in agent_ingress become parts of names of firewall rules: lower-case letters, digits and dashes inside, at most 16 characters."
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
