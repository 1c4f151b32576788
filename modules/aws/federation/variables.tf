variable "cluster" {
  description = "The cluster. Its bucket is on AWS. The value is the output `cluster` of the module `cluster`."
  type = object({
    id          = string
    bucket_arn  = string
    prefix      = optional(string, "")
    kms_key_arn = optional(string)
    encryption_key = object({
      provider = string
      arn      = string
    })
  })
  nullable = false

  validation {
    condition     = var.cluster.encryption_key != null
    error_message = "cluster has no encryption key: the secrets of a cluster in two clouds are in its bucket, sealed with a key. Leave out `secrets` of the module cluster."
  }
}

variable "shards" {
  description = <<-TEXT
    The shards on Google Cloud, by name.

    * `service_account_id`: the unique ID (a number) of the service account of the shard's servers: `servers[SHARD].unique_id` in the output `account` of the module `account` for Google Cloud. The email is not enough, because a deleted account's email can be used again.
    * `secrets`: names of the secrets that the shard's templates use. `*` stands for any characters. Default: all secrets of the cluster.
  TEXT
  type = map(object({
    service_account_id = string
    secrets            = optional(list(string), ["*"])
  }))
  nullable = false

  validation {
    condition     = alltrue([for grant in values(var.shards) : can(regex("^[0-9]{5,30}$", grant.service_account_id))])
    error_message = "shards[...].service_account_id is the unique ID of a Google service account, such as \"112233445566778899000\"."
  }
}

variable "name" {
  description = "Prefix of the names of roles. Default: the cluster's name."
  type        = string
  default     = null
}

variable "path" {
  description = "Path of the roles, which begins and ends with a slash."
  type        = string
  default     = "/"
  nullable    = false

  validation {
    condition     = can(regex("^/([A-Za-z0-9_+=,.@-]+/)*$", var.path))
    error_message = "path begins and ends with a slash, such as \"/nstance/\"."
  }
}

variable "permissions_boundary" {
  description = "ARN of a policy that limits the roles."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of all resources of this module."
  type        = map(string)
  default     = {}
  nullable    = false
}
