variable "cluster" {
  description = "The cluster of the shard, which is the output `cluster` of the module `cluster`."
  type = object({
    id          = string
    bucket      = string
    prefix      = optional(string, "")
    region      = string
    kms_key_arn = optional(string)
    encryption_key = optional(object({
      provider = string
      source   = string
    }))
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
    secrets = optional(object({
      provider = string
      prefix   = string
    }), { provider = "object-storage", prefix = "" })
  })
  nullable = false
}

variable "identity" {
  description = "How the servers get credentials in the cloud of the cluster's bucket, if this is another cloud: the shard's element of the output `identities` of the module `federation` there. See docs/start/multi-cloud.md."
  type = object({
    role_arn        = optional(string)
    profile         = optional(string)
    pool_provider   = optional(string)
    service_account = optional(string)
  })
  default = null

  validation {
    condition     = (var.identity != null) == (var.cluster.primary != null)
    error_message = "identity is for a cluster whose bucket is in another cloud: set it exactly if the module cluster has primary."
  }
}

variable "account" {
  description = "The IAM roles of servers and agents, which are the output `account` of the module `account`."
  type = object({
    servers                    = map(object({ instance_profile_arn = string }))
    agent_instance_profile_arn = string
  })
  nullable = false

  validation {
    condition     = contains(keys(var.account.servers), var.shard)
    error_message = "account has no role for the servers of this shard: add the shard to the variable `shards` of the module account."
  }
}

variable "network" {
  description = "The network of the shard, which is the output `network` of the module `network`."
  type = object({
    vpc_id    = string
    ipv4_cidr = string
    ipv6_cidr = optional(string)
    ip_family = optional(string, "ipv4")
    subnets = map(map(list(object({
      id        = string
      ipv4_cidr = optional(string)
      native    = optional(bool, false)
      public    = optional(bool, false)
      shards    = optional(list(string))
    }))))
    load_balancers = optional(map(object({
      arn               = string
      security_group_id = string
      targets = map(object({
        arn         = string
        port        = number
        protocol    = string
        health_port = number
      }))
    })), {})
  })
  nullable = false
}

variable "shard" {
  description = "Name of the shard: lower-case letters, digits and single dashes, at most 32 characters. By convention, the only shard of a zone has the zone's name."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", var.shard)) && length(var.shard) <= 32 && !strcontains(var.shard, "--")
    error_message = "shard has lower-case letters, digits and single dashes inside, at most 32 characters, such as \"us-west-2a\"."
  }
}

variable "zone" {
  description = "The availability zone that the shard is in."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]+(-[a-z]+-[0-9]+)?[a-z]$", var.zone))
    error_message = "zone is the name of an availability zone, such as us-west-2a."
  }
}

variable "config" {
  description = <<-TEXT
    The shard's configuration: templates, groups, settings of the servers (`server`), and all other fields of the
    [reference](../../../docs/reference/configuration.md#reference). It overrides what the module sets:

    * `defaults.args`: the security group of agents, and an instance profile without permissions.
    * `defaults.userdata`: a boot script that starts nstance-agent from the image.
    * `load_balancers`: those of the module `network`, by name.
    * `server.subnet_pools`: see `subnet_pools`.

    Only the module sets `cluster`, `server.shard`, `server.bind`, `server.leader_network`, and `kind`, `region` and `zone` of `server.provider`.
  TEXT
  type        = any
  default     = {}
  nullable    = false

  validation {
    condition = can(keys(var.config)) && !anytrue([
      can(var.config.cluster), can(var.config.server.shard), can(var.config.server.bind), can(var.config.server.leader_network),
      can(var.config.server.provider.kind), can(var.config.server.provider.region), can(var.config.server.provider.zone),
    ])
    error_message = "config is an object without cluster, server.shard, server.bind, server.leader_network, and server.provider's kind, region and zone. The module sets these from its other variables."
  }
}

variable "subnet_pools" {
  description = "Roles of the module `network` whose subnets become subnet pools of the shard. Each pool has the name of its role. Default: every role that has a subnet for this shard in the shard's zone."
  type        = list(string)
  default     = null

  validation {
    condition = var.subnet_pools == null ? true : length(var.subnet_pools) > 0 && alltrue([for role in var.subnet_pools :
      length([for s in try(var.network.subnets[role][var.zone], []) : s if s.shards == null ? true : contains(s.shards, var.shard)]) > 0
    ])
    error_message = "subnet_pools are roles, at least one, for each of which the network has a subnet in the shard's zone that the shard may use (shards)."
  }
}

variable "agent_ingress" {
  description = "Address ranges and security groups from which traffic may reach the VMs. You choose the keys of the map. `protocol` is `tcp`, `udp`, `icmp`, `icmpv6`, or `-1` for all protocols and ports. `self = true` admits the shard's other VMs. The load balancers of the module `network` need no entry: they may always reach the ports of their targets."
  type = map(object({
    protocol           = string
    from_port          = optional(number)
    to_port            = optional(number)
    self               = optional(bool, false)
    ipv4_cidrs         = optional(list(string), [])
    ipv6_cidrs         = optional(list(string), [])
    security_group_ids = optional(list(string), [])
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for rule in values(var.agent_ingress) : contains(["tcp", "udp", "icmp", "icmpv6", "-1"], rule.protocol) && (rule.protocol == "-1") == (rule.from_port == null)])
    error_message = "protocol of agent_ingress is tcp, udp, icmp or icmpv6, with from_port (and to_port, where it is another); or \"-1\", without ports."
  }

  validation {
    condition     = alltrue([for name in keys(var.agent_ingress) : can(regex("^[A-Za-z0-9 ._:/()#,@=+-]{1,100}$", name))])
    error_message = "Names in agent_ingress become descriptions of security group rules: letters, digits, spaces and ._:/()#,@=+-"
  }
}

variable "agent_security_group_ids" {
  description = "IDs of additional security groups of the VMs."
  type        = list(string)
  default     = []
  nullable    = false
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
  description = "Downloads of nstance-agent, by architecture, for VMs whose image does not contain it. The boot script checks the download's SHA-256, and installs the same systemd unit as the images of images/packer have. For Debian 12 and Amazon Linux 2023, see [What was tried](../../../docs/reference/aws.md#what-was-tried)."
  type        = map(object({ url = string, sha256 = string }))
  default     = {}
  nullable    = false
}

variable "server_count" {
  description = "Number of servers. With 1, there is no standby. With 2, one server is a hot standby, which takes over within seconds. With 0, existing VMs keep running, but lost ones are not replaced until there is a server again."
  type        = number
  default     = 1
  nullable    = false

  validation {
    condition     = contains([0, 1, 2], var.server_count)
    error_message = "server_count is 0, 1 or 2: one server leads, one more can stand by, and others would do nothing."
  }
}

variable "server_instance_type" {
  description = "Instance type of the servers. The smallest type is enough for hundreds of VMs."
  type        = string
  default     = "t4g.nano"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9-]+\\.[a-z0-9-]+$", var.server_instance_type))
    error_message = "server_instance_type is the name of an instance type, such as t4g.nano."
  }
}

variable "server_arch" {
  description = "Processor architecture of the servers' instance type: `arm64` or `amd64`."
  type        = string
  default     = "arm64"
  nullable    = false

  validation {
    condition     = contains(["arm64", "amd64"], var.server_arch)
    error_message = "server_arch is \"arm64\" or \"amd64\"."
  }
}

variable "server_image" {
  description = <<-TEXT
    The servers' image, which `images/packer` makes.

    * `id`: the ID of an image.
    * `name`, `owners`: without an `id`, the newest image whose name matches and whose owner is one of these accounts. If there is a newer image, the next apply rolls the servers.
  TEXT
  type = object({
    id     = optional(string)
    name   = optional(string, "nstance-server-*")
    owners = optional(list(string), ["self"])
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.server_image.id == null ? true : can(regex("^ami-[0-9a-f]+$", var.server_image.id))
    error_message = "server_image.id is the ID of an image, such as ami-0a1b2c3d."
  }
}

variable "server_volume" {
  description = "The servers' disk: `size` in GiB (default: the image's size), `type`, and `kms_key_arn` (default: the account's key for disks). The disk is always encrypted. Nothing on it needs a backup."
  type = object({
    size        = optional(number)
    type        = optional(string, "gp3")
    kms_key_arn = optional(string)
  })
  default  = {}
  nullable = false
}

variable "server_subnets" {
  description = "Role of the subnets in which the servers and the leader's address are. This role is a key in `subnets` of the module `network`."
  type        = string
  default     = "servers"
  nullable    = false

  validation {
    condition     = length([for s in try(var.network.subnets[var.server_subnets][var.zone], []) : s if s.shards == null ? true : contains(s.shards, var.shard)]) > 0
    error_message = "server_subnets is a role for which the network has a subnet in the shard's zone, and which the shard may use (shards)."
  }
}

variable "server_args" {
  description = "More arguments of nstance-server, such as `--debug`."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "server_environment" {
  description = "Environment variables of nstance-server."
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
  description = "Downloads of nstance-server, by architecture, for machines whose image does not contain it. The boot script checks the download's SHA-256, and installs the systemd units that images from images/packer also contain. For Debian 12 and Amazon Linux 2023, see [What was tried](../../../docs/reference/aws.md#what-was-tried)."
  type        = map(object({ url = string, sha256 = string }))
  default     = {}
  nullable    = false
}

variable "server_security_group_ids" {
  description = "IDs of additional security groups of the servers."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "leader_network" {
  description = "The leader's fixed addresses, `ipv4` and `ipv6`. They must be in the first subnet of the role `server_subnets`. Default: addresses that AWS picks when it creates the network interface."
  type = object({
    ipv4 = optional(string)
    ipv6 = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.leader_network.ipv4 == null ? true : can(cidrnetmask("${var.leader_network.ipv4}/32"))
    error_message = "leader_network.ipv4 is an IPv4 address, such as 10.0.0.100."
  }

  validation {
    condition     = var.leader_network.ipv6 == null ? true : var.network.ip_family != "ipv4" && strcontains(var.leader_network.ipv6, ":") && can(cidrhost("${var.leader_network.ipv6}/128", 0))
    error_message = "leader_network.ipv6 is an IPv6 address, in a network whose ip_family is \"dualstack\" or \"ipv6\"."
  }
}

variable "server_ready_timeout" {
  description = "Time limit in seconds for a new server to become ready, and for an unhealthy server to recover. After this time, the auto-scaling group replaces the server's machine. If the servers' settings change, an old server stays until a new one is ready."
  type        = number
  default     = 600
  nullable    = false

  validation {
    condition     = var.server_ready_timeout >= 10 && var.server_ready_timeout <= 7140 && floor(var.server_ready_timeout) == var.server_ready_timeout
    error_message = "server_ready_timeout is a whole number of seconds from 10 to 7140."
  }
}

variable "leader_dns" {
  description = "A DNS name for the leader's address: `name`, in the Route 53 zone `zone_id` (usually a private zone of the VPC), with a TTL of `ttl` seconds. With this name, agents and operators find the leader even after a change of its address."
  type = object({
    zone_id = string
    name    = string
    ttl     = optional(number, 10)
  })
  default = null

  validation {
    condition     = var.leader_dns == null ? true : can(regex("^[a-z0-9-]+(\\.[a-z0-9-]+)+$", var.leader_dns.name)) && var.leader_dns.ttl >= 1 && floor(var.leader_dns.ttl) == var.leader_dns.ttl
    error_message = "leader_dns.name is a DNS name in lower case without a final dot, such as leader.example.internal; ttl is a whole number of seconds."
  }
}

variable "health_check" {
  description = <<-TEXT
    How the auto-scaling group detects an unhealthy server.

    * `type`: with `EC2`, a server is healthy if its machine runs and reports that the server's `/health` answers 200 (see `server_ready_timeout`). With
      `ELB`, `/health` on port 8990 must also answer 200 to a load balancer.
    * `grace_period`: seconds after a server has become ready in which it is not replaced, and in which a roll of the servers waits.
    * `load_balancer_arn`: for `ELB`, a network load balancer with subnets in this zone. Its port `listener_port` must be unused. Shards that share a load balancer need different ports.
    * `security_group_ids`: security groups of the load balancer. Default: health checks may come from any address in the VPC.
  TEXT
  type = object({
    type               = optional(string, "EC2")
    grace_period       = optional(number, 30)
    load_balancer_arn  = optional(string)
    listener_port      = optional(number, 8990)
    security_group_ids = optional(list(string), [])
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["EC2", "ELB"], var.health_check.type)
    error_message = "health_check.type is \"EC2\" or \"ELB\"."
  }

  validation {
    condition     = (var.health_check.type == "ELB") == (var.health_check.load_balancer_arn != null)
    error_message = "health_check.load_balancer_arn is needed for type \"ELB\", and has no meaning for \"EC2\"."
  }

  validation {
    condition     = var.health_check.grace_period >= 0 && floor(var.health_check.grace_period) == var.health_check.grace_period && floor(var.health_check.listener_port) == var.health_check.listener_port && var.health_check.listener_port >= 1 && var.health_check.listener_port <= 65535
    error_message = "health_check.grace_period is a whole number of seconds, and listener_port a port from 1 to 65535."
  }
}

variable "health_access" {
  description = "Address ranges and security groups that may reach port 8990 of the servers, for health checks or metrics. The health checks that the modules set up need no entry."
  type = object({
    ipv4_cidrs         = optional(list(string), [])
    ipv6_cidrs         = optional(list(string), [])
    security_group_ids = optional(list(string), [])
  })
  default  = {}
  nullable = false
}

variable "operator_access" {
  description = "Address ranges and security groups that may reach the servers' ports for operators, 8992 and 8993. Operators also need a certificate."
  type = object({
    ipv4_cidrs         = optional(list(string), [])
    ipv6_cidrs         = optional(list(string), [])
    security_group_ids = optional(list(string), [])
  })
  default  = {}
  nullable = false
}

variable "security_group_rules" {
  description = "The account's quota \"Inbound or outbound rules per security group\". A plan with more rules is refused."
  type        = number
  default     = 60
  nullable    = false
}

variable "wait_for_leader" {
  description = "Let `tofu apply` wait until a server has applied the shard's configuration and, after a change of the servers' settings, until a new server is ready."
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

variable "tags" {
  description = "Tags of all resources of this module that can have tags. For tags of the groups' VMs, use `args` in `config`."
  type        = map(string)
  default     = {}
  nullable    = false
}
