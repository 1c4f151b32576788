mock_provider "nstance" {
  mock_data "nstance_userdata" {
    defaults = { content = "#!/bin/sh\n" }
  }
}

variables {
  cluster        = { id = "example" }
  shard          = "rack-1"
  bucket         = { endpoint = "https://s3.example.com", name = "nstance" }
  leader_network = { ipv4 = "10.0.0.100" }
  endpoints      = ["https://pve1.example.com:8006"]
  fingerprints   = ["AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA"]
  subnet_pools   = { vms = ["pve1/vmbr0"] }
}

run "shard" {
  assert {
    condition     = nstance_shard.this.server.provider.kind == "proxmox" && nstance_shard.this.server.provider.options == tomap({ endpoints = "https://pve1.example.com:8006", fingerprints = "AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA:AA", token_file = "/etc/nstance/proxmox-token", seed_storage = "local" })
    error_message = "the provider is ${jsonencode(nstance_shard.this.server.provider)}"
  }
  assert {
    condition     = nstance_shard.this.server.leader_network.kind == "arp" && nstance_shard.this.server.leader_network.ipv4 == "10.0.0.100" && output.shard.agent_addr == "10.0.0.100:8994"
    error_message = "the leader's address is ${jsonencode(nstance_shard.this.server.leader_network)}"
  }
  assert {
    condition     = nstance_shard.this.defaults.userdata.content == "#!/bin/sh\n" && output.server_userdata == "#!/bin/sh\n"
    error_message = "the boot script is ${nstance_shard.this.defaults.userdata.content}"
  }
  assert {
    condition     = data.nstance_userdata.server.environment["AWS_ENDPOINT_URL"] == "https://s3.example.com" && strcontains(join("\n", data.nstance_userdata.server.commands_before), "AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW") && strcontains(join("\n", data.nstance_userdata.server.commands_before), "mount -o ro /dev/disk/by-label/nstance /mnt")
    error_message = "the servers boot with ${jsonencode(data.nstance_userdata.server)}"
  }
}

run "ipv6" {
  variables {
    leader_network = { ipv6 = "fd00::100" }
  }
  assert {
    condition     = output.shard.operator_addr == "[fd00::100]:8993"
    error_message = "the address is ${output.shard.operator_addr}"
  }
}

run "no_address" {
  command = plan
  variables {
    leader_network = {}
  }
  expect_failures = [var.leader_network]
}

run "plain_http" {
  command = plan
  variables {
    endpoints = ["http://pve1.example.com:8006"]
  }
  expect_failures = [var.endpoints]
}

run "no_bridge" {
  command = plan
  variables {
    subnet_pools = { vms = ["pve1"] }
  }
  expect_failures = [var.subnet_pools]
}

run "health_checks" {
  variables {
    templates = { web = { kind = "web", arch = "amd64", instance_type = "2x2048", health_checks = { app = { http = { port = 8080, path = "/healthz" }, failure_threshold = 2 } } } }
  }
  assert {
    condition     = nstance_shard.this.templates["web"].health_checks["app"].http.path == "/healthz" && nstance_shard.this.templates["web"].health_checks["app"].failure_threshold == 2
    error_message = "the health checks are ${jsonencode(nstance_shard.this.templates["web"].health_checks)}"
  }
}
