mock_provider "google" {
  mock_data "google_client_config" {
    defaults = { project = "my-project", region = "us-central1" }
  }
  mock_resource "google_iam_workload_identity_pool" {
    defaults = { name = "projects/123456789012/locations/global/workloadIdentityPools/nstance-example" }
  }
  mock_resource "google_iam_workload_identity_pool_provider" {
    defaults = { name = "projects/123456789012/locations/global/workloadIdentityPools/nstance-example/providers/aws-account" }
  }
  mock_resource "google_service_account" {
    defaults = { email = "mocked@my-project.iam.gserviceaccount.com", name = "projects/my-project/serviceAccounts/mocked@my-project.iam.gserviceaccount.com" }
  }
}

variables {
  cluster = {
    id             = "example"
    bucket         = "example"
    prefix         = "p"
    encryption_key = { provider = "google-secret-manager", source = "projects/my-project/secrets/key" }
  }
  shards = { us-west-2a = { role_arn = "arn:aws:iam::123456789012:role/nstance/example-nstance-server-us-west-2a", secrets = ["web-*"] } }
}

run "defaults" {
  assert {
    condition     = google_service_account_iam_member.server["us-west-2a"].member == "principalSet://iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/nstance-example/attribute.aws_role/arn:aws:sts::123456789012:assumed-role/example-nstance-server-us-west-2a"
    error_message = "another member may impersonate the account: ${google_service_account_iam_member.server["us-west-2a"].member}"
  }
  assert {
    condition     = google_iam_workload_identity_pool_provider.aws.aws[0].account_id == "123456789012" && google_iam_workload_identity_pool.this.workload_identity_pool_id == "nstance-example"
    error_message = "the pool trusts another account"
  }
  assert {
    condition = output.identities == { us-west-2a = {
      pool_provider   = "projects/123456789012/locations/global/workloadIdentityPools/nstance-example/providers/aws-account"
      service_account = "mocked@my-project.iam.gserviceaccount.com"
    } }
    error_message = "the identities are ${jsonencode(output.identities)}"
  }
  # The account reaches only the cluster's own objects.
  assert {
    condition     = alltrue([for binding in values(local.bucket_bindings) : alltrue([for term in split(" || ", binding.condition) : can(regex("/objects/p/(cluster/(ca.crt|key/|operator/|secret/(ca.key|registration-nonce.key|workload-ca.key|web-))|shard/us-west-2a/probe/)\"\\)$|startsWith\\(\"p/cluster/operator/\"\\)$", term))])])
    error_message = "the bindings are ${jsonencode(local.bucket_bindings)}"
  }
}

run "wrong" {
  command = plan
  variables {
    pool_id = "gcp-x"
    shards  = { a = { role_arn = "example" } }
  }
  expect_failures = [var.pool_id, var.shards]
}

run "accounts" {
  command = plan
  variables {
    shards = { a = { role_arn = "arn:aws:iam::123456789012:role/a" }, b = { role_arn = "arn:aws:iam::210987654321:role/b" } }
  }
  expect_failures = [var.shards]
}
