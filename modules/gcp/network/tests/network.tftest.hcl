mock_provider "google" {
  mock_resource "google_compute_network" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/p/global/networks/example" }
  }
  mock_resource "google_compute_subnetwork" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1/subnetworks/s" }
  }
  mock_data "google_compute_network" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/p/global/networks/mine" }
  }
  mock_data "google_compute_subnetwork" {
    defaults = { self_link = "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1/subnetworks/mine" }
  }
}

variables {
  name = "example"
  subnets = {
    servers = { us-central1 = [{ ipv4_cidr = "10.0.1.0/24", leader_ipv4_cidr = "10.0.2.0/28" }] }
    workers = { us-central1 = [{ ipv4_cidr = "10.0.16.0/20" }, { ipv4_cidr = "10.0.32.0/20", nat = false, shards = ["one"] }] }
  }
}

run "defaults" {
  assert {
    condition     = google_compute_subnetwork.this["servers/us-central1/0"].secondary_ip_range == tolist([{ range_name = "leader", ip_cidr_range = "10.0.2.0/28" }]) && alltrue([for s in google_compute_subnetwork.this : s.private_ip_google_access])
    error_message = "the servers' subnet is ${jsonencode(google_compute_subnetwork.this["servers/us-central1/0"])}"
  }
  assert {
    condition     = length(google_compute_router_nat.this["us-central1"].subnetwork) > 0 && keys(google_compute_router.this) == ["us-central1"] && length(local.nat["us-central1"]) == 2
    error_message = "behind the gateway are ${jsonencode(local.nat)}"
  }
  assert {
    condition     = google_compute_firewall.health_checks.source_ranges == toset(["35.191.0.0/16", "130.211.0.0/22"]) && one(google_compute_firewall.health_checks.allow).ports == tolist(["8990"]) && length(google_compute_firewall.iap) == 0
    error_message = "health checks are permitted as ${jsonencode(google_compute_firewall.health_checks)}"
  }
  assert {
    condition     = output.network.subnets.workers.us-central1[1].shards == tolist(["one"]) && output.network.subnets.servers.us-central1[0].leader_ipv4_cidr == "10.0.2.0/28"
    error_message = "the network is ${jsonencode(output.network)}"
  }
}

run "choices" {
  variables {
    vpc       = { existing = "mine" }
    ip_family = "dualstack"
    nat_mode  = "none"
    iap_ssh   = true
    subnets = {
      servers = { us-central1 = [{ existing = "mine", leader_ipv4_cidr = "10.0.2.0/28" }] }
      workers = { us-central1 = [{ ipv4_cidr = "10.0.16.0/20" }] }
    }
    load_balancers = {
      web = {
        zones     = ["us-central1-a", "us-central1-b"]
        listeners = { http = { port = 8080, health_check = { path = "/", port = 8081 } }, dns = { port = 53, protocol = "UDP" } }
      }
      db = { zones = ["us-central1-a"], internal = true, listeners = { pg = { port = 5432 } } }
    }
  }

  assert {
    condition     = length(google_compute_network.this) == 0 && keys(google_compute_subnetwork.this) == ["workers/us-central1/0"] && length(google_compute_router_nat.this) == 0
    error_message = "the subnets are ${jsonencode(keys(google_compute_subnetwork.this))}"
  }
  assert {
    condition     = google_compute_subnetwork.this["workers/us-central1/0"].stack_type == "IPV4_IPV6" && google_compute_subnetwork.this["workers/us-central1/0"].ipv6_access_type == "EXTERNAL"
    error_message = "there is no IPv6"
  }
  assert {
    condition     = one(google_compute_firewall.health_checks.allow).ports == tolist(["53", "5432", "8081", "8990"]) && one(google_compute_firewall.iap[0].allow).ports == tolist(["22"])
    error_message = "health checks reach ${jsonencode(one(google_compute_firewall.health_checks.allow).ports)}"
  }
  assert {
    condition     = keys(google_compute_instance_group.balancer) == ["db/us-central1-a", "web/us-central1-a", "web/us-central1-b"] && google_compute_forwarding_rule.balancer["web/dns"].ip_protocol == "UDP" && google_compute_forwarding_rule.balancer["web/http"].port_range == "8080"
    error_message = "the groups are ${jsonencode(keys(google_compute_instance_group.balancer))}"
  }
  assert {
    condition     = google_compute_region_backend_service.balancer["db/pg"].load_balancing_scheme == "INTERNAL" && google_compute_region_backend_service.balancer["web/http"].load_balancing_scheme == "EXTERNAL" && length(google_compute_region_backend_service.balancer["web/http"].backend) == 2
    error_message = "the backend services are ${jsonencode(google_compute_region_backend_service.balancer)}"
  }
  assert {
    condition     = output.network.load_balancers.web.backend_services == [for key in ["dns", "http"] : google_compute_region_backend_service.balancer["web/${key}"].name]
    error_message = "the backend services are ${jsonencode(output.network.load_balancers)}"
  }
  assert {
    condition     = output.network.load_balancers.web.instance_groups == { us-central1-a = "example-lb-web", us-central1-b = "example-lb-web" } && output.network.load_balancers.web.sources == tolist(["0.0.0.0/0"])
    error_message = "the load balancers are ${jsonencode(output.network.load_balancers)}"
  }
}

# Names that do not fit are shortened, and stay different.
run "long_names" {
  variables {
    name    = "a-network-with-a-rather-longer"
    subnets = { a-role-of-exactly-32-characters0 = { northamerica-northeast1 = [{ ipv4_cidr = "10.0.16.0/20" }, { ipv4_cidr = "10.0.32.0/20" }] } }
    load_balancers = { one-of-sixteen-a = { zones = ["northamerica-northeast1-a"], listeners = {
      a-listener-with-a-long-name = { port = 80 }, a-listener-with-a-long-name-too = { port = 81 }
    } } }
  }

  assert {
    condition = alltrue([for name in concat([for s in google_compute_subnetwork.this : s.name], [for r in google_compute_forwarding_rule.balancer : r.name], [for h in google_compute_region_health_check.balancer : h.name],
    [for b in google_compute_region_backend_service.balancer : b.name], [for a in google_compute_address.balancer : a.name]) : can(regex("^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", name))])
    error_message = "the names are ${jsonencode(local.names)}"
  }
  assert {
    condition     = length(distinct(values(local.names))) == 4
    error_message = "two have one name: ${jsonencode(local.names)}"
  }
}

run "refusals" {
  command = plan

  variables {
    name      = "Example"
    ip_family = "ipv6"
    nat_mode  = "instance"
    subnets   = { servers = { us-west-2a = [{ ipv4_cidr = "10.0.1.0/24" }] } }
  }

  expect_failures = [var.name, var.ip_family, var.nat_mode, var.subnets]
}

run "two_regions" {
  command = plan

  variables {
    load_balancers = { web = { zones = ["us-central1-a", "us-east1-b"], listeners = { http = { port = 80 } } } }
  }

  expect_failures = [var.load_balancers]
}

run "listener_name" {
  command = plan

  variables {
    load_balancers = { web = { zones = ["us-central1-a"], listeners = { HTTP = { port = 80 } } } }
  }

  expect_failures = [var.load_balancers]
}
