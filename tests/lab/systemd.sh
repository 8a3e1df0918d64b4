#!/usr/bin/env bash
# Owns the start of a lab host that has a systemd of its own: makes its root, then systemd-nspawn boots it as a container on the host's network.
set -euo pipefail
root=$LAB_FOLDER/root
disk=$LAB_FOLDER/disk
# shellcheck source=tests/lab/root.sh
source "$LAB_SOURCE/root.sh"

for tree in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do # a branch of its own: two hosts must not meet in one
  [ -f $tree/cgroup.procs ] || continue
  mkdir -p "$tree/$LAB_GROUP" && echo $$ >"$tree/$LAB_GROUP/cgroup.procs"
done
make_root
share
exec systemd-nspawn --quiet --boot --register=no --keep-unit --console=pipe --directory="$root" --machine="$LAB_NAME" --hostname="$LAB_NAME" \
  --network-namespace-path="$LAB_NETWORK" --resolv-conf=off --timezone=off --link-journal=no
