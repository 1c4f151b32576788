variable "name" {
  description = "Prefix of the names of all resources of this module, such as the cluster's name."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]*[a-z0-9])?$", var.name)) && length(var.name) <= 30
    error_message = "name has lower-case letters, digits and dashes inside, at most 30 characters, and begins with a letter."
  }
}

variable "vpc" {
  description = "The VPC. If `existing` names a VPC, the module adds its resources to this VPC instead of making one. On Google Cloud, subnets have address ranges, but a VPC has none."
  type = object({
    existing = optional(string)
  })
  default  = {}
  nullable = false
}

variable "ip_family" {
  description = "Kind of addresses of the subnets: `ipv4`, or `dualstack` for both IPv4 and IPv6. Google chooses the IPv6 `/64` of each subnet."
  type        = string
  default     = "ipv4"
  nullable    = false

  validation {
    condition     = contains(["ipv4", "dualstack"], var.ip_family)
    error_message = "ip_family is \"ipv4\" or \"dualstack\"."
  }
}

variable "subnets" {
  description = <<-TEXT
    The subnets, by role and then by region. A role is any name, such as `servers` or `workers`. In each region, the subnets of a role become a subnet
    pool of the region's shards. The subnets of a role in a region are a list. An index in this list identifies a subnet, so add new subnets at the
    end.

    * `ipv4_cidr`: address range of a subnet that the module creates.
    * `leader_ipv4_cidr`: the subnet's secondary range `leader`, for the leader addresses of shards that have their servers in this subnet.
    * `existing`: name of an existing subnet. The module does not change its settings. Set `leader_ipv4_cidr` if it has a secondary range `leader`.
    * `nat`: whether the subnet's VMs use the NAT gateway (if `nat_mode` is `provider`).
    * `shards`: the shards that may use the subnet. Default: all shards in its region.
  TEXT
  type = map(map(list(object({
    ipv4_cidr        = optional(string)
    leader_ipv4_cidr = optional(string)
    existing         = optional(string)
    nat              = optional(bool, true)
    shards           = optional(list(string))
  }))))
  nullable = false

  validation {
    condition     = length(var.subnets) > 0
    error_message = "subnets has to name at least one role with a subnet, such as { servers = { us-central1 = [{ ipv4_cidr = \"10.0.0.0/24\" }] } }."
  }

  validation {
    condition     = alltrue([for role in keys(var.subnets) : can(regex("^[a-z]([a-z0-9-]*[a-z0-9])?$", role)) && length(role) <= 32 && !strcontains(role, "--")])
    error_message = "Roles, the outer keys of subnets, become names of subnet pools: lower-case letters, digits and single dashes inside, at most 32 characters."
  }

  validation {
    condition     = alltrue(flatten([for regions in values(var.subnets) : [for region, list in regions : can(regex("^[a-z]+-[a-z]+[0-9]+$", region)) && length(list) > 0]]))
    error_message = "The inner keys of subnets are regions, such as us-central1, each with a list of at least one subnet."
  }

  validation {
    condition     = alltrue(flatten([for regions in values(var.subnets) : [for list in values(regions) : [for s in list : (s.existing == null) != (s.ipv4_cidr == null)]]]))
    error_message = "A subnet has either ipv4_cidr or existing."
  }

  validation {
    condition     = alltrue(flatten([for regions in values(var.subnets) : [for list in values(regions) : [for s in list : [for cidr in [s.ipv4_cidr, s.leader_ipv4_cidr] : cidr == null ? true : can(cidrnetmask(cidr))]]]]))
    error_message = "ipv4_cidr and leader_ipv4_cidr of a subnet are IPv4 networks, such as 10.0.1.0/24."
  }
}

variable "nat_mode" {
  description = "Whether the module makes NAT gateways. If `provider`, it makes a Cloud NAT gateway in each region. If `none`, VMs without external addresses reach only Google's APIs."
  type        = string
  default     = "provider"
  nullable    = false

  validation {
    condition     = contains(["provider", "none"], var.nat_mode)
    error_message = "nat_mode is \"provider\" or \"none\"."
  }
}

variable "iap_ssh" {
  description = "Permit SSH to all VMs of the network through Identity-Aware Proxy."
  type        = bool
  default     = false
  nullable    = false
}

variable "load_balancers" {
  description = <<-TEXT
    Passthrough network load balancers, by name. Groups refer to a load balancer by this name. The servers then add the group's healthy VMs to the
    load balancer's instance group in the shard's zone. A VM can be in the instance group of one load balancer only.

    * `zones`: the zones of the load balancer's VMs, in one region.
    * `internal`: the load balancer is reachable only from the VPC. Its address is in the first subnet of the role `subnets`.
    * `allow_ipv4_cidrs`: addresses that may connect. Default: all, or private addresses if the load balancer is internal.
    * `listeners`: listeners by name. `protocol` is `TCP` or `UDP`. VMs get connections at the listener's own port. A `health_check` with a `path` uses
      HTTP, otherwise a TCP connection.
  TEXT
  type = map(object({
    zones            = list(string)
    subnets          = optional(string, "workers")
    internal         = optional(bool, false)
    allow_ipv4_cidrs = optional(list(string))
    listeners = map(object({
      port                 = number
      protocol             = optional(string, "TCP")
      deregistration_delay = optional(number, 30)
      health_check = optional(object({
        port                = optional(number)
        path                = optional(string)
        interval            = optional(number, 10)
        healthy_threshold   = optional(number, 2)
        unhealthy_threshold = optional(number, 2)
      }), {})
    }))
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for name in keys(var.load_balancers) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", name)) && length(name) <= 16])
    error_message = "Names of load_balancers have lower-case letters, digits and dashes inside, at most 16 characters."
  }

  validation {
    condition     = alltrue([for lb in values(var.load_balancers) : length(lb.zones) > 0 && length(distinct([for zone in lb.zones : try(regex("^([a-z]+-[a-z]+[0-9]+)-[a-z]$", zone)[0], "")])) == 1 && can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", lb.zones[0]))])
    error_message = "zones of a load balancer are zones of one region, such as us-central1-a, at least one."
  }

  validation {
    condition     = alltrue([for lb in values(var.load_balancers) : !lb.internal || contains(keys(var.subnets), lb.subnets)])
    error_message = "subnets of an internal load balancer is one of the roles in subnets."
  }

  validation {
    condition     = alltrue([for lb in values(var.load_balancers) : length(lb.listeners) > 0 && length(distinct([for l in values(lb.listeners) : "${l.protocol}/${l.port}"])) == length(lb.listeners)])
    error_message = "A load balancer needs at least one listener, and two listeners cannot have the same protocol and port."
  }

  validation {
    condition     = alltrue(flatten([for lb in values(var.load_balancers) : [for name in keys(lb.listeners) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", name))]]))
    error_message = "Names of listeners become parts of names: lower-case letters, digits and dashes inside."
  }

  validation {
    condition     = alltrue(flatten([for lb in values(var.load_balancers) : [for l in values(lb.listeners) : contains(["TCP", "UDP"], l.protocol) && alltrue([for port in [l.port, coalesce(l.health_check.port, l.port)] : port >= 1 && port <= 65535 && floor(port) == port])]]))
    error_message = "protocol of a listener is TCP or UDP, and its ports are whole numbers from 1 to 65535."
  }
}
