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
systemctl enable nstance-server
# Without waiting: the unit may itself wait for cloud-init to end.
systemctl start --no-block nstance-server
