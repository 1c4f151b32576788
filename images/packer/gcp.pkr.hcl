source "googlecompute" "nstance" {
  project_id = var.gcp_project
  zone       = var.gcp_zone
  subnetwork = var.gcp_subnetwork

  # The module shard finds the servers' image by its family, and the examples find the VMs' image by its name.
  image_name        = local.gcp_name
  image_family      = "nstance-${var.role}-${var.arch}"
  image_description = "nstance-${var.role} ${var.version} on Debian, ${var.arch}"
  image_labels      = local.gcp_labels

  source_image            = local.bases.googlecompute
  source_image_project_id = ["debian-cloud"]

  # Of the machine and its disk, which has no labels. Default: a random name.
  instance_name = var.run == "" ? null : "${var.run}-image-${var.role}"

  machine_type = var.arch == "arm64" ? "t2a-standard-1" : "e2-small"
  disk_size    = 10
  labels       = local.gcp_labels
  ssh_username = "packer"

  # Packer's temporary key is in the machine's metadata, not in the image. The machine needs no access to Google's APIs.
  metadata                        = { block-project-ssh-keys = "true" }
  disable_default_service_account = true

  enable_secure_boot          = var.arch == "amd64"
  enable_vtpm                 = true
  enable_integrity_monitoring = true
}
