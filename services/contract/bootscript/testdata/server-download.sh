#!/bin/sh
# Boot script of nstance-server, made by Terraform.
set -eu
umask 077
# put FILE CONTENT: the whole file or none of it.
put() { printf %s "$2" >"$1.new" && mv -f "$1.new" "$1"; }
mkdir -p -m 755 /etc/nstance
put /etc/nstance/server.env 'AWS_REGION="us-west-2"
NSTANCE_SCALING_GROUP="aws/example-server"
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
bin=/usr/local/bin/nstance-server
if ! [ -x $bin ]; then
  case $(uname -m) in
  x86_64 | amd64) url='https://example.com/releases/v1.0.0/program' sum=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 ;;
  aarch64 | arm64) url='https://example.com/releases/v1.0.0/program' sum=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 ;;
  *) echo "no nstance-server for $(uname -m)" >&2 && exit 1 ;;
  esac
  fetch() {
    if command -v curl >/dev/null; then
      curl -fsSL --connect-timeout 10 -o $bin.new "$url"
    else
      python3 -c 'import sys, urllib.request as r; r.urlretrieve(*sys.argv[1:])' "$url" $bin.new
    fi
  }
  for pause in 1 2 4 8 0; do ! fetch || break; sleep $pause; done
  echo "$sum  $bin.new" | sha256sum -c -
  chmod 755 $bin.new
  mv -f $bin.new $bin
fi
# unit NAME TEXT: a unit that the image lacks.
unit() {
  [ -e /usr/lib/systemd/system/$1.service ] || [ -e /etc/systemd/system/$1.service ] ||
    { put /etc/systemd/system/$1.service "$2" && chmod 644 /etc/systemd/system/$1.service; }
}
getent passwd nstance-server >/dev/null || useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nstance-server
unit nstance-server '[Unit]
Description=Nstance server: keeps the VMs of one zone shard alive
Documentation=https://github.com/nstance-kit/nstance
After=network-online.target
Wants=network-online.target
ConditionPathExists=/etc/nstance/server.env
StartLimitIntervalSec=0
[Service]
Type=notify
NotifyAccess=main
TimeoutStartSec=10min
WatchdogSec=30s
Restart=always
RestartSec=2s
TimeoutStopSec=30s
User=nstance-server
Group=nstance-server
Environment=GOGC=50
EnvironmentFile=/etc/nstance/server.env
ExecStart=/usr/local/bin/nstance-server $NSTANCE_SERVER_ARGS
CacheDirectory=nstance-server
CacheDirectoryMode=0700
UMask=0077
LimitNOFILE=65536
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
[Install]
WantedBy=multi-user.target
'
unit nstance-server-health '[Unit]
Description=Reports the health of nstance-server to the machine'\''s scaling group
Documentation=https://github.com/nstance-kit/nstance
After=network-online.target
Wants=network-online.target
ConditionPathExists=/etc/nstance/server.env
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=5s
StandardOutput=journal+console
User=nstance-server
Group=nstance-server
SupplementaryGroups=systemd-journal
EnvironmentFile=/etc/nstance/server.env
ExecStart=/usr/local/bin/nstance-server --report-health $NSTANCE_SERVER_ARGS
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
[Install]
WantedBy=multi-user.target
'
systemctl daemon-reload
systemctl enable nstance-server
# Without waiting: the unit may itself wait for cloud-init to end.
systemctl start --no-block nstance-server
systemctl enable nstance-server-health
# Without waiting: the unit may itself wait for cloud-init to end.
systemctl start --no-block nstance-server-health
