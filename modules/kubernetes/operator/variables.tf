variable "cluster_id" {
  description = "ID of the Nstance cluster."
  type        = string
  nullable    = false
}

variable "tenant" {
  description = "The tenant that the operator manages."
  type        = string
  nullable    = false
  default     = "default"
}

variable "shards" {
  description = "The shards, by ID. The value for each shard is the output `shard` of the module `shard`, which has the addresses of the shard's leader."
  type = map(object({
    registration_addr = string
    operator_addr     = string
  }))
  nullable = false
  validation {
    condition     = length(var.shards) > 0
    error_message = "The operator needs at least one shard."
  }
}

variable "ca_certificate_pem" {
  description = "The CA's certificate, in PEM, which is the output `ca_certificate_pem` of the module `cluster`."
  type        = string
  nullable    = false
}

variable "namespace" {
  description = "Namespace of the ConfigMap. It must be the namespace of the HelmRelease or Kustomization that reads the ConfigMap."
  type        = string
  nullable    = false
  default     = "nstance-system"
}

variable "name" {
  description = "Name of the ConfigMap with the operator's values."
  type        = string
  nullable    = false
  default     = "nstance-operator-values"
}
