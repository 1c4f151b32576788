variable "cluster" {
  description = "Name of the cluster."
  type        = string
  default     = "example"
}

variable "aws_zone" {
  description = "Availability zone of the shard on AWS."
  type        = string
  default     = "us-west-2a"
}

variable "google_project" {
  description = "Project of the shard on Google Cloud. Default: GOOGLE_PROJECT in the environment."
  type        = string
  default     = null
}

variable "google_zone" {
  description = "Zone of the shard on Google Cloud."
  type        = string
  default     = "us-west1-a"
}

variable "worker_count" {
  description = "Number of VMs on each cloud."
  type        = number
  default     = 1
}

variable "aws_server_image" {
  description = "AMI of the servers on AWS. Default: the newest of aws_image_owners."
  type        = string
  default     = null
}

variable "aws_worker_image" {
  description = "AMI of the VMs on AWS, which has nstance-agent."
  type        = string
}

variable "aws_image_owners" {
  description = "Accounts that own the images."
  type        = list(string)
  default     = ["self"]
}

variable "google_server_image" {
  description = "Image of the servers on Google Cloud. Default: the newest of google_image_project."
  type        = string
  default     = null
}

variable "google_worker_image" {
  description = "Image of the VMs on Google Cloud, which has nstance-agent."
  type        = string
}

variable "google_image_project" {
  description = "Project that owns the images. Default: google_project."
  type        = string
  default     = null
}

variable "operator_cidrs" {
  description = "Networks from which nstance-operator and nstance-admin reach the servers of both shards."
  type        = list(string)
  default     = ["10.0.0.0/16", "10.1.0.0/16"]
}

variable "server_ready_timeout" {
  description = "Seconds that a new server may take until it is ready."
  type        = number
  default     = 300
}

variable "config" {
  description = "Configuration that is merged into that of both shards."
  type        = any
  default     = {}
}

variable "force_destroy" {
  description = "Let `tofu destroy` delete buckets that have objects."
  type        = bool
  default     = false
}
