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
  mock_resource "google_compute_address" {
    defaults = { address = "10.0.1.100" }
  }
}

mock_provider "nstance" {
  mock_data "nstance_userdata" {
    defaults = { content = "#!/bin/sh\n" }
  }
}

run "one_server" {
  command = plan

  assert {
    condition     = module.shard.shard.leader_kind == "alias" && module.shard.shard.leader_ipv4 == "10.0.2.1"
    error_message = "the leader's address is ${module.shard.shard.leader_ipv4}"
  }
}

run "hot_standby" {
  command = plan

  variables {
    server_count = 2
  }

  assert {
    condition     = module.shard.shard.leader_kind == "load_balancer"
    error_message = "the leader's address is that of ${module.shard.shard.leader_kind}"
  }
}

run "zone_of_another_region" {
  command = plan

  variables {
    zone = "europe-west1-b"
  }

  expect_failures = [var.zone]
}
