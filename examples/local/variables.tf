variable "cluster" {
  description = "Name of the cluster."
  type        = string
  default     = "example-cluster"
  nullable    = false
}

variable "shard" {
  description = "Name of the shard, which is the value of --shard of its servers."
  type        = string
  default     = "dev-1"
  nullable    = false
}

variable "endpoint" {
  description = "URL of the object store, dev-s3."
  type        = string
  default     = "http://127.0.0.1:8989"
  nullable    = false
}

variable "bucket" {
  description = "Name of the bucket."
  type        = string
  default     = "dev"
  nullable    = false
}

variable "first_port" {
  description = "The first of the five successive ports that a server listens on: health, election, registration, operators, agents."
  type        = number
  default     = 8990
  nullable    = false

  validation {
    condition     = var.first_port >= 1 && var.first_port <= 65531 && floor(var.first_port) == var.first_port
    error_message = "first_port has to be a whole number from 1 to 65531, so that the four ports after it exist."
  }
}

variable "servers" {
  description = "Number of servers of the shard on this machine."
  type        = number
  default     = 2
  nullable    = false
}

variable "agents" {
  description = "Options of the provider tmux: `dir` (where the VMs' disks are), `session`, `socket` (of a separate tmux server), `agent` (path of nstance-agent) or `command`, and `nodes_dir`."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "size" {
  description = "Number of VMs in the group workers."
  type        = number
  default     = 2
  nullable    = false
}

variable "scaling" {
  description = "By which numbers the leader scales the group workers. Null: it has the size."
  type        = any
  default     = null
}

variable "spares" {
  description = "The warm spares of the group workers. Null: it has none."
  type        = any
  default     = null
}

variable "greeting" {
  description = "Content of the file app.env on the VMs. A change is pushed to running VMs."
  type        = string
  default     = "hello"
  nullable    = false
}

variable "operator_key" {
  description = "Content of the file operators.pub on the VMs."
  type        = string
  default     = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA example"
  nullable    = false
}

variable "api_token" {
  description = "A secret that the VMs receive as a file. The default is an example and protects nothing."
  type        = string
  default     = "an-example-token"
  ephemeral   = true
  nullable    = false
}

variable "wait_for_leader" {
  description = "Let `tofu apply` wait until a server has applied the shard's configuration. The servers must already run."
  type        = bool
  default     = false
  nullable    = false
}
