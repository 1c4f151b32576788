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
  hosts          = { a = "qemu+tls://a.example.com/system", b = "qemu+ssh://root@b.example.com/system" }
  subnet_pools   = { vms = ["a/vms", "b/vms"] }
}

run "shard" {
  assert {
    condition     = nstance_shard.this.server.provider.kind == "libvirt" && nstance_shard.this.server.provider.options == tomap({ hosts = "a=qemu+tls://a.example.com/system,b=qemu+ssh://root@b.example.com/system", pool = "default", domain_type = "kvm", reserved_mib = "1024" })
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

run "tcp" {
  command = plan
  variables {
    hosts        = { a = "qemu+tcp://a.example.com/system" }
    subnet_pools = { vms = ["a/vms"] }
  }
  expect_failures = [var.hosts]
}

run "unknown_host" {
  command = plan
  variables {
    subnet_pools = { vms = ["c/vms"] }
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
