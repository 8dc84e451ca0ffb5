#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run by the image build inside the new Debian 13 tree, after its packages: users, and what nobody
# needs at run time. What changes with nearmetal itself comes later, from the initial RAM disk.
# Leaves in /nearmetal-build what the build takes out of the tree: kernel, modules for the initial
# RAM disk in the order of loading, busybox, and a record of all packages.
set -eu

boot_modules='virtio_blk squashfs overlay'
taken=/nearmetal-build

groupadd --gid 960 nearmetal
useradd --uid 1000 --user-group --groups nearmetal --create-home --shell /bin/bash mpi
# A locked password ("!") would lock the account for keys as well; "*" only matches no password.
usermod --password '*' mpi
usermod --password '*' root

mkdir -p "$taken/modules"
# Version and hash of every package, as the signed index had them.
dpkg-query --show --showformat '${Package}:${Architecture}=${Version}\n' |
	xargs apt-cache show --no-all-versions >"$taken/packages"

kernel=$(ls /usr/lib/modules)
mv "/boot/vmlinuz-$kernel" "$taken/vmlinux"
cp /usr/bin/busybox "$taken/busybox"
order=10
for name in $boot_modules; do
	modprobe --set-version "$kernel" --show-depends "$name" >"$taken/needed"
	while read -r verb path _; do
		[ "$verb" = insmod ] || continue
		ls "$taken/modules" | grep -q "^[0-9]*-${path##*/}$" && continue
		cp "$path" "$taken/modules/$order-${path##*/}"
		order=$((order + 1))
	done <"$taken/needed"
done
rm "$taken/needed"

rm -rf /boot/* /initrd.img* /vmlinuz*
rm -f /etc/ssh/ssh_host_* /etc/machine-id
: >/etc/hostname
: >/etc/resolv.conf
# Times and orders of a build have no place in an image that is to come out the same again.
rm -rf /var/cache/ldconfig /var/lib/systemd /var/log/*
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
