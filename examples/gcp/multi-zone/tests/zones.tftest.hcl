mock_provider "google" {
  mock_data "google_client_config" {
    defaults = { project = "my-project", region = "us-central1" }
  }
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
  mock_data "google_compute_image" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/global/images/nstance-server-amd64-1" }
  }
  mock_resource "google_compute_network" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/global/networks/example" }
  }
  mock_resource "google_compute_subnetwork" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/regions/us-central1/subnetworks/s" }
  }
}

mock_provider "nstance" {
  mock_data "nstance_userdata" {
    defaults = { content = "#!/bin/sh\n" }
  }
}

run "all_zones" {
  command = plan

  assert {
    condition     = { for zone, shard in module.shard : zone => shard.shard.zone } == { us-central1-a = "us-central1-a", us-central1-b = "us-central1-b", us-central1-c = "us-central1-c" } && alltrue([for shard in module.shard : shard.shard.leader_kind == "load_balancer"])
    error_message = "the shards are ${jsonencode(keys(module.shard))}"
  }
  assert {
    condition     = module.network.network.load_balancers["web"].instance_groups == { us-central1-a = "example-lb-web", us-central1-b = "example-lb-web", us-central1-c = "example-lb-web" }
    error_message = "the instance groups are ${jsonencode(module.network.network.load_balancers["web"].instance_groups)}"
  }
}

# Removing a zone changes nothing in the other zones.
run "without_the_first_zone" {
  command = plan

  variables {
    zones = { us-central1-b = 1, us-central1-c = 2 }
  }

  assert {
    condition     = keys(module.shard) == ["us-central1-b", "us-central1-c"] && keys(module.network.network.load_balancers["web"].instance_groups) == ["us-central1-b", "us-central1-c"]
    error_message = "the shards are ${jsonencode(keys(module.shard))}"
  }
}

run "bad_zones" {
  command = plan

  variables {
    zones = { us-central1-a = 1, europe-west1-b = 2 }
  }

  expect_failures = [var.zones]
}

run "same_number" {
  command = plan

  variables {
    zones = { us-central1-a = 1, us-central1-b = 1 }
  }

  expect_failures = [var.zones]
}
