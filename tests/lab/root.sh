# Owns the root of a lab host: this machine's root with the unpacked programs over it, writes on the host's own disk, private places hidden.
# Sourced by boot.sh and systemd.sh inside a mount namespace of the host's own; starts nothing.
# LAB_LOWER: layers, the top one first. LAB_HIDE: folders that are empty in the host. LAB_SHARE: folders that it sees read-only.

make_root() {
  local path hidden=0
  mount -t overlay overlay -o "lowerdir=$LAB_LOWER,upperdir=$disk/upper,workdir=$disk/work,xino=off" "$root"
  for path in $LAB_HIDE; do
    hidden=$((hidden + 1))
    [ -d "$root$path" ] || continue
    mkdir -p "$disk/own/$hidden" && mount --bind "$disk/own/$hidden" "$root$path"
  done
  mount --bind "$disk/root" "$root/root"
  mount --bind "$disk/home" "$root/home"
}

share() { # after all that would cover it: a checkout may lie below /tmp
  local path
  for path in $LAB_SHARE; do
    mkdir -p "$root$path"
    mount --bind "$path" "$root$path" && mount -o remount,bind,ro "$root$path"
  done
}
