variable "cluster" {
  description = "ID of the cluster."
  type        = string
  default     = "example"
}

variable "endpoint" {
  description = "URL of the object store. docs/reference/object-stores.md says which stores work."
  type        = string
}

variable "bucket" {
  description = "Name of an existing bucket for the cluster."
  type        = string
}

variable "leader_ipv4" {
  description = "A free address in the servers' network, which the leader takes."
  type        = string
}

variable "image" {
  description = "Name of the volume with the VMs' image, in the storage pool of each host. Each VM's disk starts as a copy of this volume."
  type        = string
  default     = "nstance-agent-debian-12.qcow2"
}

variable "size" {
  description = "Number of VMs."
  type        = number
  default     = 2
}
