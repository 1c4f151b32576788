variable "cluster" {
  description = "The cluster of the shard, which is the output `cluster` of the module `cluster`."
  type = object({
    id     = string
    bucket = string
    prefix = optional(string, "")
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
      provider   = string
      prefix     = string
      project_id = optional(string)
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
  description = "The service accounts of the servers, which are the output `account` of the module `account`."
  type = object({
    servers               = map(object({ email = string }))
    agent_service_account = optional(string)
  })
  nullable = false

  validation {
    condition     = contains(keys(var.account.servers), var.shard)
    error_message = "account has no service account for the servers of this shard: add the shard to the variable `shards` of the module account."
  }
}

variable "network" {
  description = "The network of the shard, which is the output `network` of the module `network`."
  type = object({
    vpc       = string
    ip_family = optional(string, "ipv4")
    subnets = map(map(list(object({
      link             = string
      ipv4_cidr        = optional(string)
      leader_ipv4_cidr = optional(string)
      shards           = optional(list(string))
    }))))
    load_balancers = optional(map(object({
      address          = string
      sources          = list(string)
      instance_groups  = map(string)
      backend_services = optional(list(string), [])
      ports            = list(object({ protocol = string, port = number }))
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
    error_message = "shard has lower-case letters, digits and single dashes inside, at most 32 characters, such as \"us-central1-a\"."
  }

  # Names of servers' VMs are this long: Compute Engine appends a dash and four characters.
  validation {
    condition     = length("${var.cluster.id}-${var.shard}-server-xxxx") <= 63
    error_message = "The names of the cluster and of the shard have at most 50 characters together: they are part of the servers' names."
  }
}

variable "zone" {
  description = "The zone that the shard is in."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", var.zone))
    error_message = "zone is the name of a zone, such as us-central1-a."
  }
}

variable "config" {
  description = <<-TEXT
    The shard's configuration: templates, groups, settings of the servers (`server`), and all other fields of the
    [reference](../../../docs/reference/configuration.md#reference). It overrides what the module sets:

    * `defaults.args`: the network tag of agents, and the agents' service account, if there is one.
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
  description = "Machine type of the servers. The smallest type is enough for hundreds of VMs."
  type        = string
  default     = "e2-micro"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]+(-[a-z0-9]+)+$", var.server_instance_type))
    error_message = "server_instance_type is the name of a machine type, such as e2-micro."
  }
}

variable "server_image" {
  description = <<-TEXT
    The servers' image, which `images/packer` makes. It must have the architecture of `server_instance_type`.

    * `id`: the name of an image, `projects/…/global/images/…`.
    * `family`, `project`: without an `id`, the newest image of this family in this project. If there is a newer image, the next apply rolls the servers.
  TEXT
  type = object({
    id      = optional(string)
    family  = optional(string, "nstance-server-amd64")
    project = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.server_image.id == null ? true : can(regex("projects/[^/]+/global/images/[^/]+$", var.server_image.id))
    error_message = "server_image.id is the name of an image, such as projects/my-project/global/images/nstance-server-1."
  }
}

variable "server_volume" {
  description = "The servers' disk: `size` in GB (default: the image's size), `type`, and `kms_key_name` (default: Google's own key). The disk is always encrypted. Nothing on it needs a backup."
  type = object({
    size         = optional(number)
    type         = optional(string, "pd-balanced")
    kms_key_name = optional(string)
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
    condition     = length([for s in try(var.network.subnets[var.server_subnets][regex("^(.+)-[a-z]$", var.zone)[0]], []) : s if s.shards == null ? true : contains(s.shards, var.shard)]) > 0
    error_message = "server_subnets is a role for which the network has a subnet in the shard's region, and which the shard may use (shards)."
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
  description = "Downloads of nstance-server, by architecture, for machines whose image does not contain it. The boot script checks the download's SHA-256, and installs the systemd units that images from images/packer also contain."
  type        = map(object({ url = string, sha256 = string }))
  default     = {}
  nullable    = false
}

variable "server_tags" {
  description = "Additional network tags of the servers."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "leader_network" {
  description = <<-TEXT
    The fixed address of the shard's leader.

    * `kind`: `alias` is an alias address that the leader moves to its own VM, free of charge. `load_balancer` is the address of an internal load
      balancer, which costs by the hour and fails over without an API call. Default: `load_balancer` for two servers, `alias` for one.
    * `ipv4`: the address, in the first of the servers' subnets. An alias is in the subnet's range for leader addresses. Default: the second address of
      that range. Shards of one region need different addresses. The address of a load balancer is in the subnet's primary range. Default: an address
      that Google picks when it creates the address.
  TEXT
  type = object({
    kind = optional(string)
    ipv4 = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = var.leader_network.kind == null ? true : contains(["alias", "load_balancer"], var.leader_network.kind)
    error_message = "leader_network.kind is \"alias\" or \"load_balancer\"."
  }

  validation {
    condition     = var.leader_network.ipv4 == null ? true : can(cidrnetmask("${var.leader_network.ipv4}/32"))
    error_message = "leader_network.ipv4 is an IPv4 address, such as 10.0.2.1."
  }
}

variable "server_ready_timeout" {
  description = "Number of seconds that a new server may take to become healthy. After this time, the instance group replaces the server's machine."
  type        = number
  default     = 600
  nullable    = false

  validation {
    condition     = var.server_ready_timeout >= 0 && var.server_ready_timeout <= 3600 && floor(var.server_ready_timeout) == var.server_ready_timeout
    error_message = "server_ready_timeout is a whole number of seconds from 0 to 3600."
  }
}

variable "leader_dns" {
  description = "A DNS name for the leader's address: `name`, in the Cloud DNS zone `managed_zone` (usually a private zone of the VPC), with a TTL of `ttl` seconds. With this name, agents and operators find the leader even after a change of its address."
  type = object({
    managed_zone = string
    name         = string
    ttl          = optional(number, 10)
  })
  default = null
}

variable "operator_access" {
  description = "Address ranges and VMs that may reach the servers' ports for operators, 8992 and 8993. Operators also need a certificate. `tags` are network tags of VMs."
  type = object({
    ipv4_cidrs = optional(list(string), [])
    tags       = optional(list(string), [])
  })
  default  = {}
  nullable = false
}

variable "health_access" {
  description = "Address ranges and VMs that may reach port 8990 of the servers, for health checks or metrics. `tags` are network tags of VMs. The health checks that the modules set up need no entry."
  type = object({
    ipv4_cidrs = optional(list(string), [])
    tags       = optional(list(string), [])
  })
  default  = {}
  nullable = false
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

variable "labels" {
  description = "Labels of the servers' VMs. For labels of the groups' VMs, use `args` in `config`."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for key, value in var.labels : can(regex("^[\\p{Ll}\\p{Lo}][\\p{Ll}\\p{Lo}\\p{N}_-]{0,62}$", key)) && can(regex("^[\\p{Ll}\\p{Lo}\\p{N}_-]{0,63}$", value))])
    error_message = "Keys and values of labels have at most 63 lower-case letters, digits, underscores and dashes, and keys begin with a letter."
  }
}
