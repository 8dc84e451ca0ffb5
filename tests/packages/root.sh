#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# root.sh TAR DIR COMMAND...: runs COMMAND as root in a fresh copy of the root file system TAR, which
# sees the folder DIR, read-only, as /given, the network, and nothing else of this machine. The copy
# lies in memory, in a mount namespace that ends with COMMAND, so nothing is left.

set -euo pipefail
tar=$1 dir=$2
shift 2

if [[ ${IN_NAMESPACE-} != yes ]]; then
	export IN_NAMESPACE=yes
	exec unshare --mount --pid --ipc --uts --fork --kill-child --mount-proc "$0" "$tar" "$dir" "$@"
fi
unset IN_NAMESPACE

at=/mnt
mount -t tmpfs -o mode=755,size=6g tmpfs "$at"
tar -C "$at" --numeric-owner -xpf "$tar"
mkdir -p "$at"/{dev,proc,sys,run,given,old,tmp}
mount --bind "$dir" "$at/given"
mount -o remount,bind,ro "$at/given"
mount -t proc proc "$at/proc"
mount --rbind -o ro /sys "$at/sys"
mount -t tmpfs -o mode=755,nosuid tmpfs "$at/dev"
for name in null zero full random urandom tty fuse net kvm; do
	[[ -e /dev/$name ]] || continue
	if [[ -d /dev/$name ]]; then mkdir "$at/dev/$name"; else : >"$at/dev/$name"; fi
	mount --rbind "/dev/$name" "$at/dev/$name"
done
mkdir "$at/dev/pts" "$at/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$at/dev/pts"
ln -s pts/ptmx "$at/dev/ptmx"
ln -s /proc/self/fd "$at/dev/fd"
mount -t tmpfs -o mode=1777 tmpfs "$at/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$at/run"
cp --remove-destination /etc/resolv.conf "$at/etc/resolv.conf"
cp --remove-destination /etc/ssl/certs/ca-certificates.crt "$at/etc/ssl/certs/ca-certificates.crt"
hostname bare
echo "127.0.0.1 localhost bare" >"$at/etc/hosts"
cd "$at"
pivot_root . old
umount --lazy /old
rmdir /old
cd /root
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
	SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
	PIP_DISABLE_PIP_VERSION_CHECK=1 DEBIAN_FRONTEND=noninteractive "$@"
