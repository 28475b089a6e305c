#!/bin/sh
# Installs what the tests need and this system lacks. Silent when nothing is
# missing; otherwise it needs root, or sudo without a password. Debian and its
# kin only: elsewhere it says what is missing and stops.
set -eu

PATH=$PATH:/usr/sbin:/sbin
export PATH

# One line a tool: a command that shows it is there, and the package it is in.
# gcc and libc6-dev are for the race detector alone; the product needs neither.
tools='
gcc gcc
qemu-img qemu-utils
qemu-io qemu-utils
qemu-nbd qemu-utils
qemu-storage-daemon qemu-system-common
qemu-system-x86_64 qemu-system-x86
xz xz-utils
lz4 lz4
zstd zstd
nbdkit nbdkit
nbdcopy libnbd-bin
nbdinfo libnbd-bin
nbd-server nbd-server
fio fio
mkfs.ext4 e2fsprogs
mkfs.xfs xfsprogs
mkfs.btrfs btrfs-progs
openssl openssl
chromium chromium
losetup mount
unshare util-linux
'

missing=
need() {
	case " $missing " in
	*" $1 "*) ;;
	*) missing="$missing $1" ;;
	esac
}

while read -r command package; do
	[ -z "$command" ] && continue
	command -v "$command" >/dev/null 2>&1 || need "$package"
done <<EOF
$tools
EOF
[ -e /usr/include/stdlib.h ] || need libc6-dev
/usr/bin/python3 -c 'import nbd' 2>/dev/null || need python3-libnbd

[ -z "$missing" ] && exit 0

by_hand() {
	echo "deps: these packages are missing:$missing" >&2
	echo "deps: $1; as root: apt-get update && apt-get install$missing" >&2
	exit 1
}

command -v apt-get >/dev/null 2>&1 || by_hand "no apt-get here: install them by this system's own means"
sudo=
if [ "$(id -u)" -ne 0 ]; then
	sudo -n true 2>/dev/null || by_hand "not root, and sudo would ask for a password"
	sudo="sudo -n"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT INT TERM
apt() {
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 && return 0
	cat "$log" >&2
	echo "deps: apt-get $* failed (its output is above); wanted:$missing" >&2
	exit 1
}

echo "deps: installing$missing"
apt update
# shellcheck disable=SC2086 # one word a package
apt install -y --no-install-recommends $missing
