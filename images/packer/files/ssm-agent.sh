#!/bin/sh
# Install the agent of AWS Systems Manager from AWS's Debian package. It must have the given checksum.
#
#   files/ssm-agent.sh VERSION SHA256
#
#   NSTANCE_SSM_URL    where AWS publishes the package (default: the bucket ec2-downloads-windows)
#
# The package starts the agent on the machine that becomes the image, and the agent registers itself there. The script ends the agent and removes what it
# has kept, so that each VM registers under its own ID.
set -eu

[ $# -eq 2 ] || {
	echo "usage: ssm-agent.sh VERSION SHA256" >&2
	exit 2
}
url=${NSTANCE_SSM_URL:-https://s3.amazonaws.com/ec2-downloads-windows/SSMAgent}/$1/debian_$(dpkg --print-architecture)/amazon-ssm-agent.deb
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

/usr/lib/apt/apt-helper download-file "$url" "$work/amazon-ssm-agent.deb" "SHA256:$2"
dpkg --install "$work/amazon-ssm-agent.deb"
systemctl stop amazon-ssm-agent
systemctl enable amazon-ssm-agent
rm -rf /var/lib/amazon/ssm /var/log/amazon/ssm
