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
bin=/usr/local/bin/nstance-server unit=/etc/systemd/system/nstance-server.service
if ! [ -x $bin ]; then
  case $(uname -m) in
  x86_64 | amd64) url='https://example.com/releases/v1.0.0/program' sum=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 ;;
  aarch64 | arm64) url='https://example.com/releases/v1.0.0/program' sum=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 ;;
  *) echo "no nstance-server for $(uname -m)" >&2 && exit 1 ;;
  esac
  if command -v curl >/dev/null; then curl -fsSL --retry 5 -o $bin.new "$url"; else wget -q -O $bin.new "$url"; fi
  echo "$sum  $bin.new" | sha256sum -c - >/dev/null
  chmod 755 $bin.new
  mv -f $bin.new $bin
fi
if ! [ -e $unit ] && ! [ -e /usr/lib/systemd/system/nstance-server.service ]; then
  put $unit '[Unit]
Description=Nstance server
Wants=network-online.target
After=network-online.target
[Service]
EnvironmentFile=/etc/nstance/server.env
ExecStart=/usr/local/bin/nstance-server $NSTANCE_SERVER_ARGS
DynamicUser=yes
CacheDirectory=nstance-server
Restart=always
RestartSec=2
[Install]
WantedBy=multi-user.target
'
  chmod 644 $unit
  systemctl daemon-reload
fi
systemctl enable nstance-server
# Without waiting: the unit may itself wait for cloud-init to end.
systemctl start --no-block nstance-server
if [ -e /etc/systemd/system/nstance-server-health.service ]; then
  systemctl enable nstance-server-health
  systemctl start --no-block nstance-server-health
fi
