mock_provider "nstance" {
  mock_data "nstance_userdata" {
    defaults = { content = "#!/bin/sh\n" }
  }
}

variables {
  endpoint    = "https://s3.example.com"
  bucket      = "nstance"
  leader_ipv4 = "10.0.0.100"
  size        = 3
}

# Even when it is mocked, the provider nstance checks the configuration with the servers' own rules.
run "example" {
  assert {
    condition     = output.shard.operator_addr == "10.0.0.100:8993" && output.server_userdata == "#!/bin/sh\n"
    error_message = "the outputs are ${jsonencode(output.shard)}"
  }
}
