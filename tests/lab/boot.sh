#!/usr/bin/env bash
# Owns the start of a lab host: is its pid 1 in namespaces of its own, makes its root, starts sshd, reaps orphans. Touches nothing outside them.
set -euo pipefail
root=$LAB_FOLDER/root
disk=$LAB_FOLDER/disk
# shellcheck source=tests/lab/root.sh
source "$LAB_SOURCE/root.sh"

echo "$LAB_NAME" >/proc/sys/kernel/hostname
make_root
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/run" && mkdir -p "$root/run/sshd" "$root/run/lock"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
share
mount --rbind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t sysfs -o ro sysfs "$root/sys"
cd "$root" && mkdir -p .outside && pivot_root . .outside
cd / && umount -l /.outside && rmdir /.outside

env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 /usr/sbin/sshd -D -e &
trap 'exit 0' TERM
while :; do
  sleep infinity &
  wait || true # bash reaps what is handed to pid 1 meanwhile
done
