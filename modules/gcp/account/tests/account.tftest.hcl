mock_provider "google" {
  mock_data "google_client_config" {
    defaults = { project = "my-project", region = "us-central1" }
  }
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
  mock_resource "google_service_account" {
    defaults = { email = "agent-1@my-project.iam.gserviceaccount.com", name = "projects/my-project/serviceAccounts/agent-1@my-project.iam.gserviceaccount.com" }
  }
  mock_resource "google_project_iam_custom_role" {
    defaults = { id = "projects/my-project/roles/r" }
  }
}

variables {
  cluster = {
    id             = "example"
    bucket         = "my-bucket"
    encryption_key = { provider = "google-secret-manager", source = "projects/my-project/secrets/key" }
  }
  shards = { us-central1-a = {}, us-central1-b = {} }
}

run "sealed" {
  assert {
    condition     = !contains(keys(google_project_iam_member.server), "us-central1-a/balancer")
    error_message = "the servers may use load balancers, and no variable says so"
  }
  assert {
    condition     = google_service_account.server["us-central1-a"].account_id == "example-us-central1-a" && length(google_service_account.agent) == 0 && output.account.agent_service_account == null
    error_message = "the accounts are ${jsonencode(google_service_account.server)}"
  }
  assert {
    condition     = google_project_iam_custom_role.this["instances"].role_id == "example_nstance_instances" && !contains(keys(google_project_iam_custom_role.this), "secret_reader")
    error_message = "the roles are ${jsonencode(keys(google_project_iam_custom_role.this))}"
  }
  # A server changes VMs in its own zone, except the servers of the shards there.
  assert {
    condition     = google_project_iam_member.server["us-central1-a/instances"].condition[0].expression == "resource.name.startsWith(\"projects/my-project/zones/us-central1-a/\") && !(resource.name.startsWith(\"projects/my-project/zones/us-central1-a/instances/example-us-central1-a-server-\"))"
    error_message = google_project_iam_member.server["us-central1-a/instances"].condition[0].expression
  }
  assert {
    condition     = google_project_iam_member.server["us-central1-b/leader"].condition[0].expression == "resource.name.startsWith(\"projects/my-project/zones/us-central1-b/instances/example-us-central1-b-server-\")"
    error_message = google_project_iam_member.server["us-central1-b/leader"].condition[0].expression
  }
  # A server never writes the configuration or the state of another shard.
  assert {
    condition     = !strcontains(google_storage_bucket_iam_member.server["us-central1-a/writer"].condition[0].expression, "config/") && !strcontains(google_storage_bucket_iam_member.server["us-central1-a/writer"].condition[0].expression, "us-central1-b")
    error_message = google_storage_bucket_iam_member.server["us-central1-a/writer"].condition[0].expression
  }
  assert {
    condition     = strcontains(google_storage_bucket_iam_member.server["us-central1-a/reader"].condition[0].expression, "resource.name.startsWith(\"projects/_/buckets/my-bucket/objects/config/us-central1-a.jsonc\")")
    error_message = google_storage_bucket_iam_member.server["us-central1-a/reader"].condition[0].expression
  }
  assert {
    condition     = google_secret_manager_secret_iam_member.key["us-central1-a"].secret_id == "projects/my-project/secrets/key" && length(google_service_account_iam_member.agent) == 0
    error_message = "the key's readers are ${jsonencode(google_secret_manager_secret_iam_member.key)}"
  }
}

run "secrets_service" {
  variables {
    cluster = {
      id      = "a-cluster-with-a-rather-long-na"
      bucket  = "my-bucket"
      prefix  = "x"
      secrets = { provider = "google-secret-manager", prefix = "nstance-example-" }
    }
    shards                = { one = { zone = "us-central1-a", secrets = ["web_*"], service_accounts = ["web-server@my-project.iam.gserviceaccount.com"] } }
    agent_service_account = true
    load_balancers        = true
  }

  assert {
    condition     = length(google_service_account.server["one"].account_id) <= 30 && google_service_account.agent[0].account_id != google_service_account.server["one"].account_id
    error_message = google_service_account.server["one"].account_id
  }
  assert {
    condition     = endswith(google_project_iam_member.server["one/secret_reader"].condition[0].expression, " || resource.name.startsWith(\"projects/123456789012/secrets/nstance-example-web_5f\")")
    error_message = google_project_iam_member.server["one/secret_reader"].condition[0].expression
  }
  assert {
    condition     = strcontains(google_project_iam_member.server["one/secret_writer"].condition[0].expression, "/secrets/nstance-example-ca_2ekey\")")
    error_message = google_project_iam_member.server["one/secret_writer"].condition[0].expression
  }
  assert {
    condition     = strcontains(google_storage_bucket_iam_member.server["one/lister"].condition[0].expression, ".startsWith(\"x/shard/\")") && !strcontains(google_storage_bucket_iam_member.server["one/reader"].condition[0].expression, "cluster/secret")
    error_message = google_storage_bucket_iam_member.server["one/lister"].condition[0].expression
  }
  assert {
    condition     = toset(keys(google_service_account_iam_member.agent)) == toset(["one/agent", "one/web-server@my-project.iam.gserviceaccount.com"]) && contains(keys(google_project_iam_member.server), "one/balancer")
    error_message = "the VMs' accounts are ${jsonencode(keys(google_service_account_iam_member.agent))}"
  }
}

run "refusals" {
  command = plan

  variables {
    cluster = { id = "example", bucket = "b", secrets = { provider = "google-secret-manager", prefix = "" } }
    shards  = { one = { secrets = ["a b"], service_accounts = ["web"] } }
  }

  expect_failures = [var.cluster, var.shards]
}

# IAM refuses a condition with more than 12 logical operators.
run "conditions_stay_short" {
  variables {
    shards = merge(
      { for i in range(10) : "shard-${i}" => { zone = "us-central1-a", secrets = [for n in range(30) : "own-${n}"] } },
      { for i in range(10) : "other-${i}" => { zone = "us-central1-b" } },
    )
  }

  assert {
    condition = alltrue([
      for binding in concat(values(google_storage_bucket_iam_member.server), values(google_project_iam_member.server)) :
      alltrue([for condition in binding.condition : length(regexall("&&|\\|\\||!", condition.expression)) <= 12])
    ])
    error_message = "too long: ${jsonencode([for binding in google_storage_bucket_iam_member.server : binding.condition[0].expression])}"
  }
  assert {
    condition = alltrue([for n in range(30) : strcontains(join(" ", [
      for key, binding in google_storage_bucket_iam_member.server : binding.condition[0].expression if startswith(key, "shard-3/reader")
    ]), "cluster/secret/own-${n}\"")])
    error_message = "a secret is missing"
  }
}
