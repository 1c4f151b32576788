variable "cluster" {
  description = "The cluster whose shards get the roles. The value is the output `cluster` of the module `cluster`."
  type = object({
    id          = string
    bucket_arn  = string
    prefix      = optional(string, "")
    kms_key_arn = optional(string)
    encryption_key = optional(object({
      provider = string
      arn      = string
    }))
    primary = optional(object({ id = string }))
    secrets = optional(object({
      provider = string
      prefix   = string
    }), { provider = "object-storage", prefix = "" })
  })
  nullable = false

  validation {
    condition     = var.cluster.encryption_key == null ? true : contains(["aws-secrets-manager", "aws-parameter-store"], var.cluster.encryption_key.provider)
    error_message = "cluster.encryption_key.provider is \"aws-secrets-manager\" or \"aws-parameter-store\"."
  }

  validation {
    condition     = var.cluster.secrets.provider == "object-storage" ? var.cluster.encryption_key != null || var.cluster.primary != null : contains(["aws-secrets-manager", "aws-parameter-store"], var.cluster.secrets.provider) && length(var.cluster.secrets.prefix) > 0
    error_message = "cluster.secrets is in the object storage, with an encryption_key, or in aws-secrets-manager or aws-parameter-store, with a prefix: without one the servers could read every secret of the account."
  }
}

variable "shards" {
  description = <<-TEXT
    The shards, by name. The servers of each shard get an IAM role with permissions for this shard only.

    * `secrets`: names of the secrets that the shard's templates use. `*` stands for any characters. Default: all secrets of the cluster.
    * `pass_role_arns`: roles that the shard's VMs may have, in addition to the agents' role. Templates name the roles' instance profiles in `args`.
  TEXT
  type = map(object({
    secrets        = optional(list(string), ["*"])
    pass_role_arns = optional(list(string), [])
  }))
  nullable = false

  validation {
    condition     = alltrue([for shard in keys(var.shards) : can(regex("^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", shard)) && length(shard) <= 32 && !strcontains(shard, "--")])
    error_message = "shards has names of shards: lower-case letters, digits and single dashes inside, at most 32 characters, such as \"us-west-2a\"."
  }

  validation {
    condition     = alltrue(flatten([for grant in values(var.shards) : [for name in grant.secrets : can(regex("^[A-Za-z0-9_.*-]+$", name))]]))
    error_message = "shards[...].secrets has names of secrets, or parts of names with \"*\", such as \"web-*\"."
  }

  validation {
    condition     = alltrue(flatten([for grant in values(var.shards) : [for arn in grant.pass_role_arns : can(regex("^arn:[a-z-]+:iam::[0-9]{12}:role/[^*?]+$", arn))]]))
    error_message = "shards[...].pass_role_arns has ARNs of roles, without wildcards, such as \"arn:aws:iam::123456789012:role/web\"."
  }
}

variable "name" {
  description = "Prefix of the names of roles and instance profiles. Default: the cluster's name."
  type        = string
  default     = null

  validation {
    condition     = var.name == null ? true : can(regex("^[A-Za-z0-9_.@-]{1,40}$", var.name))
    error_message = "name has letters, digits and \"_.@-\", at most 40 of them."
  }
}

variable "vpc_id" {
  description = "ID of the VPC that the servers may start VMs in. Default: any VPC of the account."
  type        = string
  default     = null

  validation {
    condition     = var.vpc_id == null ? true : can(regex("^vpc-[0-9a-f]+$", var.vpc_id))
    error_message = "vpc_id is the ID of a VPC, such as vpc-0a1b2c3d."
  }
}

variable "target_group_arns" {
  description = "ARNs of the target groups that the servers may register VMs with, such as the output `target_group_arns` of the module `network`. The variable is a map, and you choose its keys."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "load_balancer_health" {
  description = "Permit the servers to read the health of the targets of all target groups, for templates with `load_balancer_health`. AWS cannot limit this permission to some target groups."
  type        = bool
  default     = false
  nullable    = false
}

variable "image_owners" {
  description = "AWS accounts (or aliases such as `amazon`) that own the images from which the servers may start VMs. Default: any account."
  type        = list(string)
  default     = null
}

variable "snapshot_owners" {
  description = "AWS accounts that own the snapshots from which the servers may make disks of VMs. Default: any account."
  type        = list(string)
  default     = null
}

variable "security_group_ids" {
  description = "Security groups that VMs may have, in addition to those that the module `shard` makes with the cluster's tag `nstance:cluster`. Default: any security group."
  type        = list(string)
  default     = null

  validation {
    condition     = var.security_group_ids == null ? true : alltrue([for id in var.security_group_ids : can(regex("^sg-[0-9a-f]+$", id))])
    error_message = "security_group_ids are IDs of security groups, such as sg-0a1b2c3d."
  }
}

variable "key_pairs" {
  description = "Names of the EC2 key pairs that VMs may have. Default: any key pair."
  type        = list(string)
  default     = null
}

variable "ebs_kms_key_arns" {
  description = "ARNs of your own KMS keys that encrypt disks, snapshots or images of VMs. The account's key for EBS needs no entry in this list. See [Keys for disks](#keys-for-disks)."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for arn in var.ebs_kms_key_arns : can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", arn))])
    error_message = "ebs_kms_key_arns are ARNs of KMS keys, not of aliases, such as \"arn:aws:kms:us-west-2:123456789012:key/0a1b2c3d-...\"."
  }
}

variable "launch_resource_arns" {
  description = "ARNs of launch templates, dedicated hosts, host resource groups and licence configurations to which the `args` of VMs may refer. If the list has a dedicated host or a host resource group, VMs may use all dedicated hosts of the account, because EC2 does not check permissions for each host."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for arn in var.launch_resource_arns : can(regex("^arn:[a-z-]+:(ec2:[^:]+:[0-9]{12}:(launch-template|dedicated-host)/|resource-groups:[^:]+:[0-9]{12}:group/|license-manager:[^:]+:[0-9]{12}:license-configuration:)[^*?]+$", arn))])
    error_message = "launch_resource_arns are ARNs of launch templates, dedicated hosts, host resource groups or licence configurations, without wildcards."
  }
}

variable "server_ssm" {
  description = "Let the servers' machines register with AWS Systems Manager, for sessions with Session Manager. The image needs the SSM agent: Amazon Linux has it, and images of images/packer that were made with `aws_ssm_agent`. See [Reach a leader from a laptop](../../../docs/how-to/reach-a-leader.md)."
  type        = bool
  default     = false
  nullable    = false
}

variable "tag_keys" {
  description = "Keys of the tags that templates and groups may set on VMs in `args`, in addition to the tags that servers set. `*` matches any characters. Default: any key except `nstance:server` and `nstance:leader`."
  type        = list(string)
  default     = null
}

variable "path" {
  description = "Path of the roles and instance profiles."
  type        = string
  default     = "/"
  nullable    = false

  validation {
    condition     = can(regex("^/([A-Za-z0-9_.,+@=-]+/)*$", var.path))
    error_message = "path begins and ends with a slash, such as \"/nstance/\"."
  }
}

variable "permissions_boundary" {
  description = "ARN of a permissions boundary for the roles, if the account requires one."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of all resources of this module that can have tags."
  type        = map(string)
  default     = {}
  nullable    = false
}
