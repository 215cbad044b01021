#!/bin/sh
# The programs that the tests need beside Python, from the system's packages: `make test` runs this first.
# program:package
set -eu
wanted="sshd:openssh-server ssh:openssh-client ssh-keygen:openssh-client ssh-agent:openssh-client ps:procps
    dropbear:dropbear-bin busybox:busybox fish:fish tcsh:tcsh zsh:zsh cc:gcc chromium:chromium chromedriver:chromium-driver
    slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client"
missing=""
PATH="$PATH:/usr/sbin:/sbin"
for pair in $wanted; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ]; then
    echo "installing:$missing"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    exit 0
fi
echo "The tests need:$missing" >&2
echo "Run this once as root, then make test again:" >&2
echo "    apt-get update && apt-get install -y --no-install-recommends$missing" >&2
exit 1
