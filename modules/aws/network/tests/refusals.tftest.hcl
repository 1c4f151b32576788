# Every validation fails in one of these runs. Each run covers several variables, with one validation of each.

mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d", "us-west-2e", "us-west-2f"] }
  }
}

variables {
  name    = "example"
  subnets = { servers = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24" }] } }
}

run "balancer_name" {
  command = plan

  variables {
    name           = "-"
    vpc            = { ipv4_cidr = "10.0.0.0/8" }
    nat_mode       = "instance"
    endpoints      = { interface = ["ec2"], subnets = "web" }
    load_balancers = { Web = { subnets = "servers", listeners = { a = { port = 80 } } } }
  }

  expect_failures = [var.name, var.vpc, var.nat_mode, var.endpoints, var.load_balancers]
}

run "balancer_subnets" {
  command = plan

  variables {
    vpc            = { existing = "my-vpc" }
    load_balancers = { web = { subnets = "web", listeners = { a = { port = 80 } } } }
  }

  expect_failures = [var.vpc, var.load_balancers]
}

run "no_listener" {
  command = plan

  variables {
    vpc            = { internet_gateway = "igw-0a" }
    load_balancers = { web = { subnets = "servers", listeners = {} } }
  }

  expect_failures = [var.vpc, var.load_balancers]
}

run "listener_name" {
  command = plan

  variables {
    load_balancers = { web = { subnets = "servers", listeners = { "a/b" = { port = 80 } } } }
  }

  expect_failures = [var.load_balancers]
}

run "listener_port" {
  command = plan

  variables {
    load_balancers = { web = { subnets = "servers", listeners = { a = { port = 0 } } } }
  }

  expect_failures = [var.load_balancers]
}

run "tls_without_certificate" {
  command = plan

  variables {
    load_balancers = { web = { subnets = "servers", listeners = { a = { port = 443, protocol = "TLS" } } } }
  }

  expect_failures = [var.load_balancers]
}

run "same_port" {
  command = plan

  variables {
    load_balancers = { web = { subnets = "servers", listeners = { a = { port = 80 }, b = { port = 80 } } } }
  }

  expect_failures = [var.load_balancers]
}

run "no_subnets" {
  command = plan

  variables {
    subnets = {}
  }

  expect_failures = [var.subnets]
}

run "role" {
  command = plan

  variables {
    subnets = { Web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24" }] } }
  }

  expect_failures = [var.subnets]
}

run "zone" {
  command = plan

  variables {
    subnets = { web = { us-west-2 = [{ ipv4_cidr = "10.0.2.0/24" }] } }
  }

  expect_failures = [var.subnets]
}

run "empty_zone" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [] } }
  }

  expect_failures = [var.subnets]
}

run "existing_with_addresses" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ existing = "subnet-0a", ipv4_cidr = "10.0.2.0/24" }] } }
  }

  expect_failures = [var.subnets]
}

run "subnet_cidr" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0" }] } }
  }

  expect_failures = [var.subnets]
}

run "netnum" {
  command = plan

  variables {
    ip_family = "dualstack"
    subnets   = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24", ipv6_netnum = 256 }] } }
  }

  expect_failures = [var.subnets]
}

run "ipv6_cidr" {
  command = plan

  variables {
    ip_family = "dualstack"
    subnets   = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24", ipv6_cidr = "2001:db8::/56" }] } }
  }

  expect_failures = [var.subnets]
}

run "private_nat_gateway" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24", nat_gateway = true }] } }
  }

  expect_failures = [var.subnets]
}

run "no_ipv4_cidr" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ public = true }] } }
  }

  expect_failures = [var.subnets]
}

run "no_ipv6" {
  command = plan

  variables {
    ip_family = "ipv6"
    subnets   = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24" }] } }
  }

  expect_failures = [var.subnets]
}

run "ipv6_in_ipv4" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24", ipv6_netnum = 1 }] } }
  }

  expect_failures = [var.subnets]
}

run "nat_subnet" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24", nat_subnet = "public/us-west-2a" }] } }
  }

  expect_failures = [var.subnets]
}

run "nat_without_ipv4" {
  command = plan

  variables {
    ip_family = "ipv6"
    subnets   = { web = { us-west-2a = [{ ipv6_netnum = 1, public = true, nat_gateway = true }] } }
  }

  expect_failures = [var.subnets]
}

run "ip_family" {
  command = plan

  variables {
    ip_family = "ipv5"
  }

  expect_failures = [var.ip_family]
}

run "outside_the_vpc" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ ipv4_cidr = "10.1.2.0/24" }] } }
  }

  expect_failures = [aws_subnet.this["web/us-west-2a/0"]]
}

run "overlap" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/24" }] }, db = { us-west-2a = [{ ipv4_cidr = "10.0.2.128/25" }] } }
  }

  expect_failures = [aws_subnet.this["web/us-west-2a/0"], aws_subnet.this["db/us-west-2a/0"]]
}

run "too_small" {
  command = plan

  variables {
    subnets = { web = { us-west-2a = [{ ipv4_cidr = "10.0.2.0/29" }] } }
  }

  expect_failures = [aws_subnet.this["web/us-west-2a/0"]]
}

run "no_such_zone" {
  command = plan

  variables {
    subnets = { web = { us-west-2z = [{ ipv4_cidr = "10.0.0.0/24" }] } }
  }

  expect_failures = [aws_subnet.this["web/us-west-2z/0"]]
}

run "elastic_ips" {
  command = plan

  variables {
    elastic_ips = 1
    subnets     = { public = { us-west-2a = [{ ipv4_cidr = "10.0.0.0/24", public = true, nat_gateway = true }], us-west-2b = [{ ipv4_cidr = "10.0.1.0/24", public = true, nat_gateway = true }] } }
  }

  expect_failures = [aws_eip.nat]
}
