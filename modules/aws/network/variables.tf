variable "name" {
  description = "Prefix of the names of all resources of this module, such as the cluster's name."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$", var.name)) && length(var.name) <= 40
    error_message = "name has letters, digits and dashes inside, at most 40 characters."
  }
}

variable "vpc" {
  description = <<-TEXT
    The VPC of the network: a new one, or an existing one.

    * `ipv4_cidr`: address range of a VPC that the module creates. A VPC always has IPv4 addresses, even if its subnets have IPv6 only.
    * `existing`: ID of an existing VPC. The ID must be known when planning. The module adds resources to this VPC and changes none of its existing ones.
    * `internet_gateway`, `egress_only_gateway`: IDs of the gateways of an existing VPC. A VPC has at most one internet gateway. If the VPC has none, the
      module creates one when a subnet needs it.
  TEXT
  type = object({
    ipv4_cidr           = optional(string, "10.0.0.0/16")
    existing            = optional(string)
    internet_gateway    = optional(string)
    egress_only_gateway = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = can(cidrnetmask(var.vpc.ipv4_cidr)) && try(tonumber(split("/", var.vpc.ipv4_cidr)[1]) >= 16 && tonumber(split("/", var.vpc.ipv4_cidr)[1]) <= 28, false)
    error_message = "vpc.ipv4_cidr is an IPv4 network with 16 to 28 bits, such as 10.0.0.0/16."
  }

  validation {
    condition     = var.vpc.existing == null ? true : can(regex("^vpc-[0-9a-f]+$", var.vpc.existing))
    error_message = "vpc.existing is the ID of a VPC, such as vpc-0a1b2c3d."
  }

  validation {
    condition     = var.vpc.existing != null || (var.vpc.internet_gateway == null && var.vpc.egress_only_gateway == null)
    error_message = "vpc.internet_gateway and vpc.egress_only_gateway belong to an existing VPC: set vpc.existing too, or leave them out."
  }
}

variable "ip_family" {
  description = "Kind of addresses of the subnets: `ipv4`, `dualstack` or `ipv6`. With `dualstack` every subnet has IPv4 and IPv6 addresses. With `ipv6`, subnets without an `ipv4_cidr` have only IPv6 addresses."
  type        = string
  default     = "ipv4"
  nullable    = false

  validation {
    condition     = contains(["ipv4", "dualstack", "ipv6"], var.ip_family)
    error_message = "ip_family is \"ipv4\", \"dualstack\" or \"ipv6\"."
  }
}

variable "subnets" {
  description = <<-TEXT
    The subnets, by role and then by zone. A role is any name, such as `public`, `servers` or `workers`. In each zone, the subnets of a role become a
    subnet pool of the zone's shards. In a zone, a role may have a list of subnets. The index in the list identifies a subnet, so add new subnets at
    the end.

    * `ipv4_cidr`: address range of a subnet that the module creates.
    * `existing`: ID of an existing subnet. The ID must be known when planning. The module does not change the subnet's routes and settings.
    * `ipv6_netnum`: number of the subnet's /64 within the VPC's /56, from 0 to 255. Or set the /64 itself with `ipv6_cidr`.
    * `public`: the subnet is reachable from the internet, through the internet gateway.
    * `nat_gateway`: the subnet has a NAT gateway (if `nat_mode` is `provider`). Only public subnets can have one.
    * `nat_subnet`: the subnet whose NAT gateway this subnet uses, as `role/zone` or `role/zone/INDEX`. Default: a subnet with a NAT gateway in the same
      zone, or if there is none, the first subnet with a NAT gateway.
    * `shards`: the shards that may use the subnet. Default: all shards in its zone.
  TEXT
  type = map(map(list(object({
    ipv4_cidr   = optional(string)
    existing    = optional(string)
    ipv6_netnum = optional(number)
    ipv6_cidr   = optional(string)
    public      = optional(bool, false)
    nat_gateway = optional(bool, false)
    nat_subnet  = optional(string)
    shards      = optional(list(string))
  }))))
  nullable = false

  validation {
    condition     = length(var.subnets) > 0
    error_message = "subnets has to name at least one role with a subnet, such as { servers = { us-west-2a = [{ ipv4_cidr = \"10.0.0.0/24\" }] } }."
  }

  validation {
    condition     = alltrue([for role in keys(var.subnets) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", role)) && length(role) <= 32 && !strcontains(role, "--")])
    error_message = "Roles, the outer keys of subnets, become names of subnet pools: lower-case letters, digits and single dashes inside, at most 32 characters."
  }

  validation {
    condition     = alltrue(flatten([for zones in values(var.subnets) : [for zone, list in zones : can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]+(-[a-z]+-[0-9]+)?[a-z]$", zone)) && length(list) > 0]]))
    error_message = "The inner keys of subnets are zones, such as us-west-2a, each with a list of at least one subnet."
  }

  validation {
    condition = alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list :
      s.existing == null ? true : can(regex("^subnet-[0-9a-f]+$", s.existing)) && s.ipv4_cidr == null && s.ipv6_netnum == null && s.ipv6_cidr == null
    ]]]))
    error_message = "A subnet with existing, such as subnet-0a1b2c3d, has its addresses already: leave out ipv4_cidr, ipv6_netnum and ipv6_cidr."
  }

  validation {
    condition     = alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list : s.ipv4_cidr == null ? true : can(cidrnetmask(s.ipv4_cidr))]]]))
    error_message = "ipv4_cidr of a subnet is an IPv4 network, such as 10.0.1.0/24."
  }

  validation {
    condition = alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list :
      s.ipv6_netnum == null ? true : s.ipv6_netnum >= 0 && s.ipv6_netnum <= 255 && floor(s.ipv6_netnum) == s.ipv6_netnum && s.ipv6_cidr == null
    ]]]))
    error_message = "ipv6_netnum of a subnet is a whole number from 0 to 255, instead of ipv6_cidr."
  }

  validation {
    condition     = alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list : s.ipv6_cidr == null ? true : can(cidrhost(s.ipv6_cidr, 0)) && endswith(s.ipv6_cidr, "/64")]]]))
    error_message = "ipv6_cidr of a subnet is a /64, such as 2001:db8:0:1::/64."
  }

  validation {
    condition     = alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list : !s.nat_gateway || s.public]]]))
    error_message = "A subnet with nat_gateway has to be public: a NAT gateway goes out through the internet gateway."
  }

  # Validations that depend on ip_family.
  validation {
    condition = var.ip_family == "ipv6" ? true : alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list :
      s.existing != null || s.ipv4_cidr != null
    ]]]))
    error_message = "Every subnet needs an ipv4_cidr, or existing, unless ip_family is \"ipv6\"."
  }

  validation {
    condition = var.ip_family == "ipv4" ? true : alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list :
      s.existing != null || s.ipv6_netnum != null || s.ipv6_cidr != null
    ]]]))
    error_message = "Every subnet needs an ipv6_netnum or ipv6_cidr, or existing, when ip_family is \"dualstack\" or \"ipv6\"."
  }

  validation {
    condition = var.ip_family != "ipv4" ? true : alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list :
      s.ipv6_netnum == null && s.ipv6_cidr == null
    ]]]))
    error_message = "ipv6_netnum and ipv6_cidr need ip_family = \"dualstack\" or \"ipv6\"."
  }

  validation {
    condition = alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list :
      s.nat_subnet == null ? true : try(var.subnets[split("/", s.nat_subnet)[0]][split("/", s.nat_subnet)[1]][try(tonumber(split("/", s.nat_subnet)[2]), 0)].nat_gateway, false)
    ]]]))
    error_message = "nat_subnet names a subnet with nat_gateway = true as role/zone, such as \"public/us-west-2a\", or role/zone/INDEX if the role has several subnets in the zone."
  }

  validation {
    condition = alltrue(flatten([for zones in values(var.subnets) : [for list in values(zones) : [for s in list :
      !s.nat_gateway || s.ipv4_cidr != null || s.existing != null
    ]]]))
    error_message = "A subnet with nat_gateway needs an ipv4_cidr: NAT gateways have an IPv4 address, also where they translate from IPv6."
  }
}

variable "nat_mode" {
  description = "Whether the module makes NAT gateways. If `provider`, it makes one in each subnet whose `nat_gateway` is true. If `none`, private subnets cannot reach the internet over IPv4."
  type        = string
  default     = "provider"
  nullable    = false

  validation {
    condition     = contains(["provider", "none"], var.nat_mode)
    error_message = "nat_mode is \"provider\" or \"none\"."
  }
}

variable "elastic_ips" {
  description = "The account's quota \"EC2-VPC Elastic IPs\" in the region. A plan with more NAT gateways is refused."
  type        = number
  default     = 5
  nullable    = false
}

variable "endpoints" {
  description = <<-TEXT
    VPC endpoints, through which machines reach AWS's services without the internet.

    * `s3`: a gateway endpoint for S3, which costs nothing.
    * `interface`: names of AWS services that get an interface endpoint, which costs by the hour. Servers in subnets without internet access need `ec2`,
      `autoscaling` and, if they use these services, `secretsmanager`, `ssm` and `elasticloadbalancing`. A name may also be a full one, such as
      `com.amazonaws.us-west-2.ec2`.
    * `subnets`: the role of the subnets that interface endpoints are in, one for each zone.
  TEXT
  type = object({
    s3        = optional(bool, true)
    interface = optional(set(string), [])
    subnets   = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = length(var.endpoints.interface) == 0 || (var.endpoints.subnets != null && contains(keys(var.subnets), coalesce(var.endpoints.subnets, "-")))
    error_message = "endpoints.interface needs endpoints.subnets, one of the roles in subnets."
  }
}

variable "load_balancers" {
  description = <<-TEXT
    Network load balancers, by name. Groups refer to a load balancer by this name. The servers then register the group's healthy VMs with the target group
    of each listener.

    * `subnets`: the role of the load balancer's subnets, one for each zone. A load balancer that loses a zone is replaced, and gets another DNS name.
    * `internal`: the load balancer is reachable only from the VPC.
    * `allow_ipv4_cidrs`, `allow_ipv6_cidrs`: addresses that may connect. Default: all, or the VPC's addresses if the load balancer is internal.
    * `listeners`: listeners by name. `protocol` is `TCP`, `UDP`, `TCP_UDP` or `TLS`. `TLS` needs a `certificate_arn`, and its targets get TCP. The default
      of `target_port` is `port`. A `health_check` with a `path` uses HTTP, otherwise a TCP connection.
  TEXT
  type = map(object({
    subnets             = optional(string, "public")
    internal            = optional(bool, false)
    allow_ipv4_cidrs    = optional(list(string))
    allow_ipv6_cidrs    = optional(list(string))
    cross_zone          = optional(bool, true)
    deletion_protection = optional(bool, false)
    listeners = map(object({
      port                 = number
      protocol             = optional(string, "TCP")
      certificate_arn      = optional(string)
      target_port          = optional(number)
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
    condition     = alltrue([for lb in values(var.load_balancers) : contains(keys(var.subnets), lb.subnets)])
    error_message = "subnets of a load balancer is one of the roles in subnets."
  }

  validation {
    condition     = alltrue([for lb in values(var.load_balancers) : length(lb.listeners) > 0])
    error_message = "A load balancer needs at least one listener."
  }

  validation {
    condition     = alltrue(flatten([for lb in values(var.load_balancers) : [for key in keys(lb.listeners) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", key))]]))
    error_message = "Names of listeners have lower-case letters, digits and dashes inside."
  }

  validation {
    condition = alltrue(flatten([for lb in values(var.load_balancers) : [for l in values(lb.listeners) : alltrue([
      for port in [l.port, coalesce(l.target_port, l.port), coalesce(l.health_check.port, l.port)] : port >= 1 && port <= 65535 && floor(port) == port
    ])]]))
    error_message = "Ports of listeners are whole numbers from 1 to 65535."
  }

  validation {
    condition     = alltrue(flatten([for lb in values(var.load_balancers) : [for l in values(lb.listeners) : contains(["TCP", "UDP", "TCP_UDP", "TLS"], l.protocol) && (l.protocol == "TLS") == (l.certificate_arn != null)]]))
    error_message = "protocol of a listener is TCP, UDP, TCP_UDP or TLS. TLS needs a certificate_arn, and the others have none."
  }

  validation {
    condition     = alltrue([for lb in values(var.load_balancers) : length(distinct([for l in values(lb.listeners) : l.port])) == length(lb.listeners)])
    error_message = "Two listeners of one load balancer cannot have the same port."
  }
}

variable "tags" {
  description = "Tags of all resources of this module that can have tags."
  type        = map(string)
  default     = {}
  nullable    = false
}
