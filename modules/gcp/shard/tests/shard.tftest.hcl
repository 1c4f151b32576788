mock_provider "google" {
  mock_data "google_client_config" {
    defaults = { project = "my-project", region = "us-central1" }
  }
  mock_data "google_compute_image" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/global/images/nstance-server-1" }
  }
  mock_resource "google_compute_address" {
    defaults = { address = "10.0.1.100", self_link = "https://www.googleapis.com/compute/v1/projects/my-project/regions/us-central1/addresses/leader" }
  }
  mock_resource "google_compute_health_check" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/global/healthChecks/server" }
  }
  mock_resource "google_compute_region_health_check" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/regions/us-central1/healthChecks/leader" }
  }
  mock_resource "google_compute_region_backend_service" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/regions/us-central1/backendServices/leader" }
  }
  mock_resource "google_compute_region_instance_template" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/my-project/regions/us-central1/instanceTemplates/server" }
  }
  mock_resource "google_compute_instance_group_manager" {
    defaults = { instance_group = "https://www.googleapis.com/compute/v1/projects/my-project/zones/us-central1-a/instanceGroups/server" }
  }
}

mock_provider "nstance" {
  mock_data "nstance_userdata" {
    defaults = { content = "#!/bin/sh\n" }
  }
}

variables {
  cluster = { id = "example", bucket = "my-bucket", encryption_key = { provider = "google-secret-manager", source = "projects/my-project/secrets/key" } }
  account = { servers = { us-central1-a = { email = "server@my-project.iam.gserviceaccount.com" } } }
  network = {
    vpc = "projects/my-project/global/networks/example"
    subnets = {
      servers = { us-central1 = [{ link = "projects/my-project/regions/us-central1/subnetworks/servers", leader_ipv4_cidr = "10.0.2.0/28" }] }
      workers = { us-central1 = [
        { link = "projects/my-project/regions/us-central1/subnetworks/workers" },
        { link = "projects/my-project/regions/us-central1/subnetworks/other", shards = ["other"] },
      ] }
    }
  }
  shard = "us-central1-a"
  zone  = "us-central1-a"
}

run "alias" {
  assert {
    condition     = nstance_shard.this.config.server.leader_network.kind == "alias" && nstance_shard.this.config.server.leader_network.ipv4 == "10.0.2.1" && nstance_shard.this.config.server.leader_network.secondary_range == "leader"
    error_message = "the leader's address is ${jsonencode(nstance_shard.this.config.server.leader_network)}"
  }
  assert {
    condition     = google_compute_instance_group_manager.server.target_size == 1 && google_compute_instance_group_manager.server.update_policy[0].max_surge_fixed == 1 && google_compute_instance_group_manager.server.update_policy[0].max_unavailable_fixed == 0 && google_compute_instance_group_manager.server.auto_healing_policies[0].initial_delay_sec == 600
    error_message = "the servers are ${jsonencode(google_compute_instance_group_manager.server)}"
  }
  assert {
    condition     = google_compute_health_check.server.http_health_check[0].request_path == "/health" && length(google_compute_forwarding_rule.leader) == 0
    error_message = "the health check is ${jsonencode(google_compute_health_check.server)}"
  }
  assert {
    condition     = google_compute_region_instance_template.server.metadata["startup-script"] == "#!/bin/sh\n" && google_compute_region_instance_template.server.service_account[0].email == "server@my-project.iam.gserviceaccount.com" && google_compute_region_instance_template.server.labels["nstance-server"] == "us-central1-a"
    error_message = "the template is ${jsonencode(google_compute_region_instance_template.server)}"
  }
  assert {
    condition     = jsonencode(nstance_shard.this.config.server.subnet_pools) == jsonencode({ servers = ["projects/my-project/regions/us-central1/subnetworks/servers"], workers = ["projects/my-project/regions/us-central1/subnetworks/workers"] })
    error_message = "the pools are ${jsonencode(nstance_shard.this.config.server.subnet_pools)}"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.args == { tags = { items = ["example-us-central1-a-agent"] } } && nstance_shard.this.config.server.provider.options == { project = "my-project" }
    error_message = "VMs are made with ${jsonencode(nstance_shard.this.config.defaults.args)}"
  }
  assert {
    condition     = google_compute_firewall.server["agents"].source_tags == toset(["example-us-central1-a-agent"]) && one(google_compute_firewall.server["agents"].allow).ports == tolist(["8992", "8994"]) && length(google_compute_firewall.server) == 2
    error_message = "the rules are ${jsonencode(keys(google_compute_firewall.server))}"
  }
}

run "standby" {
  variables {
    server_count    = 2
    account         = { servers = { us-central1-a = { email = "server@my-project.iam.gserviceaccount.com" } }, agent_service_account = "agent@my-project.iam.gserviceaccount.com" }
    leader_network  = { ipv4 = "10.0.1.100" }
    operator_access = { ipv4_cidrs = ["10.0.0.0/16"] }
    agent_ingress   = { ssh = { protocol = "tcp", from_port = 22, self = true, ipv4_cidrs = ["10.9.0.0/16"] }, all = { protocol = "-1", tags = ["x"] } }
    subnet_pools    = ["workers"]
    labels          = { team = "a" }
  }

  assert {
    condition     = nstance_shard.this.config.server.leader_network.kind == "load_balancer" && nstance_shard.this.config.server.leader_network.secondary_range == null && nstance_shard.this.config.server.leader_network.ipv4 == "10.0.1.100"
    error_message = "the leader's address is ${jsonencode(nstance_shard.this.config.server.leader_network)}"
  }
  assert {
    condition     = google_compute_region_health_check.leader[0].http_health_check[0].request_path == "/leader" && google_compute_forwarding_rule.leader[0].ports == toset(["8990", "8992", "8993", "8994"]) && google_compute_region_backend_service.leader[0].load_balancing_scheme == "INTERNAL"
    error_message = "the load balancer is ${jsonencode(google_compute_forwarding_rule.leader)}"
  }
  assert {
    condition     = google_compute_instance_group_manager.server.target_size == 2 && contains(keys(google_compute_firewall.server), "operators")
    error_message = "the servers are ${jsonencode(google_compute_instance_group_manager.server)}"
  }
  assert {
    condition     = length(google_compute_firewall.agent) == 3 && google_compute_firewall.agent["in-ssh-tags"].source_tags == toset(["example-us-central1-a-agent"]) && one(google_compute_firewall.agent["in-ssh"].allow).ports == tolist(["22"]) && one(google_compute_firewall.agent["in-all-tags"].allow).protocol == "all"
    error_message = "the rules are ${jsonencode(keys(google_compute_firewall.agent))}"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.args.serviceAccounts[0].email == "agent@my-project.iam.gserviceaccount.com"
    error_message = "VMs are made with ${jsonencode(nstance_shard.this.config.defaults.args)}"
  }
}

run "balanced_groups" {
  variables {
    network = {
      vpc     = "projects/my-project/global/networks/example"
      subnets = { servers = { us-central1 = [{ link = "projects/my-project/regions/us-central1/subnetworks/servers", leader_ipv4_cidr = "10.0.2.0/28" }] } }
      load_balancers = {
        web   = { address = "203.0.113.1", sources = ["0.0.0.0/0"], instance_groups = { us-central1-a = "example-lb-web" }, backend_services = ["example-lb-web-http"], ports = [{ protocol = "tcp", port = 8080 }] }
        other = { address = "203.0.113.2", sources = ["0.0.0.0/0"], instance_groups = { us-central1-b = "example-lb-other" }, ports = [{ protocol = "tcp", port = 8081 }] }
      }
    }
    config = { load_balancers = { own = { provider = "gcp", instance_group_name = "mine" } } }
  }

  assert {
    condition     = nstance_shard.this.config.load_balancers.web.backend_service_names == tolist(["example-lb-web-http"])
    error_message = "the load balancers are ${jsonencode(nstance_shard.this.config.load_balancers)}"
  }
  assert {
    condition     = { for name, lb in nstance_shard.this.config.load_balancers : name => lb.instance_group_name } == { web = "example-lb-web", own = "mine" }
    error_message = "the load balancers are ${jsonencode(nstance_shard.this.config.load_balancers)}"
  }
  assert {
    condition     = keys(google_compute_firewall.agent) == ["lb-web-tcp"] && google_compute_firewall.agent["lb-web-tcp"].source_ranges == toset(["0.0.0.0/0"])
    error_message = "the rules are ${jsonencode(keys(google_compute_firewall.agent))}"
  }
}

# Names that do not fit are shortened, and stay different.
run "long_names" {
  variables {
    cluster         = { id = "a-cluster-with-a-rather-long-n", bucket = "b", encryption_key = { provider = "google-secret-manager", source = "projects/p/secrets/key" } }
    account         = { servers = { northamerica-south1 = { email = "server@my-project.iam.gserviceaccount.com" } } }
    shard           = "northamerica-south1"
    operator_access = { ipv4_cidrs = ["10.0.0.0/16"], tags = ["x"] }
    agent_ingress   = { one-of-sixteen-a = { protocol = "tcp", from_port = 22, tags = ["x"] }, one-of-sixteen-b = { protocol = "tcp", from_port = 23, tags = ["x"] } }
  }

  assert {
    condition     = alltrue([for rule in concat(values(google_compute_firewall.server), values(google_compute_firewall.agent)) : can(regex("^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", rule.name))])
    error_message = "the rules are ${jsonencode(concat([for rule in google_compute_firewall.server : rule.name], [for rule in google_compute_firewall.agent : rule.name]))}"
  }
  assert {
    condition     = length(distinct(concat([for rule in google_compute_firewall.server : rule.name], [for rule in google_compute_firewall.agent : rule.name]))) == 6
    error_message = "two rules have one name"
  }
  assert {
    condition     = length(google_compute_instance_group_manager.server.base_instance_name) <= 58
    error_message = "the servers are called ${google_compute_instance_group_manager.server.base_instance_name}"
  }
}

run "refusals" {
  command = plan

  variables {
    server_count   = 3
    leader_network = { kind = "eni", ipv4 = "x" }
    agent_ingress  = { ssh = { protocol = "tcp" } }
    labels         = { Team = "a" }
    config         = { server = { bind = { health_addr = ":80" } } }
  }

  expect_failures = [var.server_count, var.leader_network, var.agent_ingress, var.labels, var.config]
}

run "shard_too_long" {
  command = plan

  variables {
    cluster = { id = "a-cluster-with-a-rather-long-n", bucket = "b", encryption_key = { provider = "google-secret-manager", source = "projects/p/secrets/key" } }
    account = { servers = { northamerica-south1-a = { email = "server@my-project.iam.gserviceaccount.com" } } }
    shard   = "northamerica-south1-a"
  }

  expect_failures = [var.shard]
}

run "region_without_a_zone" {
  command = plan

  variables {
    zone = "us-central1"
  }

  expect_failures = [var.zone]
}

run "other_shard" {
  command = plan

  variables {
    shard = "other"
  }

  expect_failures = [var.account]
}

run "address_outside" {
  command = plan

  variables {
    leader_network = { ipv4 = "10.0.9.1" }
  }

  expect_failures = [google_compute_region_instance_template.server]
}

run "waits" {
  variables {
    wait_for_leader = true
  }
  assert {
    condition     = nstance_servers_ready.this[0].machine_group.kind == "gcp" && nstance_servers_ready.this[0].machine_group.project == "my-project" && nstance_servers_ready.this[0].machine_group.zone == "us-central1-a" && nstance_servers_ready.this[0].machine_group.name == "example-us-central1-a-server" && nstance_servers_ready.this[0].timeout == "900s"
    error_message = "a roll does not notice that a server's machine cannot start: ${jsonencode(nstance_servers_ready.this)}"
  }
}

run "health_checks" {
  variables {
    config = { templates = { web = { kind = "web", arch = "amd64", instance_type = "e2-small", health_checks = { app = { http = { port = 8080, path = "/healthz" }, failure_threshold = 2 } } } } }
  }
  assert {
    condition     = nstance_shard.this.config.templates["web"].health_checks["app"].http.path == "/healthz" && nstance_shard.this.config.templates["web"].health_checks["app"].failure_threshold == 2
    error_message = "the health checks are ${jsonencode(nstance_shard.this.config.templates["web"].health_checks)}"
  }
}
