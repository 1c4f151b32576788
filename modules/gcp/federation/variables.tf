variable "cluster" {
  description = "The cluster. Its bucket is on Google Cloud. The value is the output `cluster` of the module `cluster`."
  type = object({
    id     = string
    bucket = string
    prefix = optional(string, "")
    encryption_key = object({
      provider = string
      source   = string
    })
  })
  nullable = false

  validation {
    condition     = var.cluster.encryption_key != null
    error_message = "cluster has no encryption key: the secrets of a cluster in two clouds are in its bucket, sealed with a key. Set encryption_key of the module cluster."
  }
}

variable "shards" {
  description = <<-TEXT
    The shards on AWS, by name.

    * `role_arn`: ARN of the role of the shard's servers: `servers[SHARD].role_arn` in the output `account` of the module `account` for AWS.
    * `secrets`: names of the secrets that the shard's templates use. A `*` at the end of a name stands for any characters. Default: all secrets of the cluster.
  TEXT
  type = map(object({
    role_arn = string
    secrets  = optional(list(string), ["*"])
  }))
  nullable = false

  validation {
    condition     = alltrue([for grant in values(var.shards) : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:role/", grant.role_arn))])
    error_message = "shards[...].role_arn is the ARN of a role, such as \"arn:aws:iam::123456789012:role/example-nstance-server-us-west-2a\"."
  }

  validation {
    condition     = length(distinct([for grant in values(var.shards) : try(split(":", grant.role_arn)[4], "")])) == 1
    error_message = "shards has roles of one AWS account, which the pool trusts: use this module once for each account, with another pool_id."
  }
}

variable "name" {
  description = "Prefix of the names of service accounts and roles. Default: the cluster's name."
  type        = string
  default     = null
}

variable "pool_id" {
  description = "ID of the workload identity pool. Google keeps the ID of a deleted pool for 30 days: to create the cluster again within this time, choose another ID. Default: `nstance-` and the name."
  type        = string
  default     = null

  validation {
    condition     = var.pool_id == null ? true : can(regex("^[a-z][a-z0-9-]{3,31}$", var.pool_id)) && !startswith(var.pool_id, "gcp-")
    error_message = "pool_id has 4 to 32 lower-case letters, digits and dashes, and does not begin with gcp-."
  }
}
