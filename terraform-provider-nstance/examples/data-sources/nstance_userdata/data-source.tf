# For user_data of an aws_launch_template: data.nstance_userdata.server.content_base64.
data "nstance_userdata" "server" {
  role             = "server"
  shard            = "us-west-2a"
  bucket           = "my-bucket"
  region           = "us-west-2"
  leader_interface = "eni-0123456789abcdef0"
  leader_network   = { mac_address = "02:00:00:ab:cd:ef", ipv4 = "10.0.1.100", ipv4_gateway = "10.0.1.1" }
}

# For defaults.userdata.content of an nstance_shard: a template that the server renders for each instance.
data "nstance_userdata" "agent" {
  role            = "agent"
  commands_before = ["hostnamectl set-hostname {{ quote .Instance.ID }}"]

  # Only for images without the program.
  binaries = {
    arm64 = {
      url    = "https://example.com/nstance-agent-arm64"
      sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    }
  }
}
