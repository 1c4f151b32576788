#!/bin/sh
# Renew the pictures of the documentation: the recording of `make demo`, and the screenshots of the page, which the browser test makes. Run it on a
# quiet machine, because the recording shows measured times. scripts/pictures.sh demo renews only the recording.
set -eu
cd "$(dirname -- "$0")/.."
# shellcheck source=scripts/progress.sh
. scripts/progress.sh

prepare
# shellcheck disable=SC2016 # the $ is a prompt
go run ./scripts/record -out docs/start/images/demo.svg -title '$ make demo' bin/trial/nstance-dev demo --root=. --terraform="${terraform:?}"
[ "${1:-}" = demo ] || screenshots=$PWD/docs/how-to/images scripts/test.sh web
