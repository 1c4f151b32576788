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
  config = { server = {
    provider     = { kind = "libvirt", options = { hosts = "a=qemu+tls://a.example.com/system,b=qemu+ssh://root@b.example.com/system" } }
    subnet_pools = { vms = ["a/vms", "b/vms"] }
  } }
}

run "shard" {
  assert {
    condition     = nstance_shard.this.config.server.provider == var.config.server.provider && nstance_shard.this.config.server.shard == "rack-1"
    error_message = "the provider is ${jsonencode(nstance_shard.this.config.server.provider)}"
  }
  assert {
    condition     = nstance_shard.this.config.server.leader_network.kind == "arp" && nstance_shard.this.config.server.leader_network.ipv4 == "10.0.0.100" && output.shard.agent_addr == "10.0.0.100:8994"
    error_message = "the leader's address is ${jsonencode(nstance_shard.this.config.server.leader_network)}"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.userdata.content == "#!/bin/sh\n" && output.server_userdata == "#!/bin/sh\n"
    error_message = "the boot script is ${nstance_shard.this.config.defaults.userdata.content}"
  }
  assert {
    condition     = data.nstance_userdata.server.environment["AWS_ENDPOINT_URL"] == "https://s3.example.com" && strcontains(join("\n", data.nstance_userdata.server.commands_before), "AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW") && strcontains(join("\n", data.nstance_userdata.server.commands_before), "mount -o ro /dev/disk/by-label/nstance /mnt")
    error_message = "the servers boot with ${jsonencode(data.nstance_userdata.server)}"
  }
}

run "primary" {
  variables {
    cluster = { id = "example", primary = {
      id             = "example"
      storage        = { provider = "s3", bucket = "example", region = "us-west-2" }
      secrets        = { provider = "object-storage" }
      encryption_key = { provider = "aws-secrets-manager", source = "key" }
    } }
    identity = { profile = "cluster" }
  }
  assert {
    condition     = nstance_shard.this.config.cluster.storage.endpoint == "https://s3.us-west-2.amazonaws.com" && nstance_shard.this.config.cluster.storage.identity.profile == "cluster" && nstance_shard.this.config.cluster.secrets.encryption_key.source == "key"
    error_message = "the cluster is ${jsonencode(nstance_shard.this.config.cluster)}"
  }
  assert {
    condition     = data.nstance_userdata.server.environment["AWS_ENDPOINT_URL_S3"] == "https://s3.example.com" && !contains(keys(data.nstance_userdata.server.environment), "AWS_ENDPOINT_URL")
    error_message = "other services of AWS are expected at the shard's object store"
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

run "config" {
  variables {
    config = {
      server    = { provider = { kind = "libvirt", options = { hosts = "a=qemu+tls://a.example.com/system" } }, subnet_pools = { vms = ["a/vms"] }, health_check_interval = "5s" }
      defaults  = { args = { image = "nstance-agent-debian-12.qcow2", disk_gib = 20 }, userdata = { content = "#!/bin/bash\n" } }
      templates = { web = { kind = "web", arch = "amd64", instance_type = "2x2048", subnet_pool = "vms" } }
      groups    = { default = { web = { template = "web", size = 2 } } }
    }
  }
  assert {
    condition     = nstance_shard.this.config.server.leader_network.kind == "arp" && nstance_shard.this.config.server.health_check_interval == "5s"
    error_message = "the servers have ${jsonencode(nstance_shard.this.config.server)}"
  }
  assert {
    condition     = nstance_shard.this.config.defaults.userdata.content == "#!/bin/bash\n" && nstance_shard.this.config.groups.default.web.size == 2
    error_message = "the VMs have ${jsonencode(nstance_shard.this.config)}"
  }
}

run "proxmox" {
  variables {
    config = {
      server    = { provider = { kind = "proxmox", options = { endpoints = "https://pve1.example.com:8006", ca_file = "/etc/nstance/pve-root-ca.pem" } }, subnet_pools = { vms = ["pve1/vmbr0"] } }
      templates = { web = { kind = "web", arch = "amd64", instance_type = "2x2048", subnet_pool = "vms", args = { template = "nstance-agent-debian-12" } } }
    }
  }
  assert {
    condition     = nstance_shard.this.config.server.provider.options.ca_file == "/etc/nstance/pve-root-ca.pem" && nstance_shard.this.config.templates.web.args.template == "nstance-agent-debian-12"
    error_message = "the shard has ${jsonencode(nstance_shard.this.config)}"
  }
}

run "no_object" {
  command = plan
  variables {
    config = "{}"
  }
  expect_failures = [var.config]
}

run "module_sets_cluster" {
  command = plan
  variables {
    config = { cluster = { id = "other" } }
  }
  expect_failures = [var.config]
}

run "module_sets_shard" {
  command = plan
  variables {
    config = { server = { shard = "other" } }
  }
  expect_failures = [var.config]
}

run "module_sets_leader_network" {
  command = plan
  variables {
    config = { server = { leader_network = { ipv4 = "10.0.0.101" } } }
  }
  expect_failures = [var.config]
}
