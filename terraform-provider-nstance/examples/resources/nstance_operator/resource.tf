# openssl genpkey -algorithm ed25519 -out identity.key && openssl pkey -in identity.key -pubout -out identity.pub
variable "public_key_pem" {
  description = "The operator's public key. Its private key stays where it was made."
  type        = string
}

resource "nstance_operator" "kubernetes" {
  cluster_id     = "example"
  tenant         = "default"
  public_key_pem = var.public_key_pem
  ttl            = "90d"
  renew_before   = "30d"
}

output "certificate" {
  value = nstance_operator.kubernetes.certificate_pem
}
