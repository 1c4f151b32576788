#!/bin/sh
# Boot script of nstance-server, made by Terraform.
set -eu
umask 077
# put FILE CONTENT: the whole file or none of it.
put() { printf %s "$2" >"$1.new" && mv -f "$1.new" "$1"; }
mkdir -p -m 755 /etc/nstance
put /etc/nstance/server.env 'AWS_REGION="us-west-2"
NSTANCE_SERVER_ARGS="--shard us-west-2a --storage s3 --bucket my-bucket --prefix some/where --leader-interface eni-0123456789abcdef0 --cachedir /var/cache/nstance-server"
'
# Replies from the leader's addresses leave by the leader's interface.
mkdir -p -m 755 /etc/systemd/network
put /etc/systemd/network/05-nstance-leader.network '[Match]
MACAddress=02:00:00:ab:cd:ef
[Link]
RequiredForOnline=no
[Network]
IPv6AcceptRA=yes
[IPv6AcceptRA]
DHCPv6Client=no
RouteTable=1000
[Address]
Address=2001:db8::100/128
DuplicateAddressDetection=none
[RoutingPolicyRule]
From=2001:db8::100/128
Table=1000
[Address]
Address=10.0.1.100/32
[Route]
Gateway=10.0.1.1
GatewayOnLink=yes
Table=1000
[RoutingPolicyRule]
From=10.0.1.100/32
Table=1000
'
chmod 644 /etc/systemd/network/05-nstance-leader.network
networkctl reload || echo 'systemd-networkd does not run: the image must route the leader interface' >&2
systemctl enable nstance-server
# Without waiting: the unit may itself wait for cloud-init to end.
systemctl start --no-block nstance-server
