#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# site.sh DIR CACHE NODE...: a Slurm of one controller and some nodes, in namespaces of its own; tests/
# system/slurm_site.py starts it as process 1 of them and has written DIR/etc before. Each node has
# its own network, mount, UTS and IPC namespace. Ends when it is killed, and everything with it.

set -euo pipefail
dir=$1 cache=$2
shift 2

hostname ctl
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
for name in passwd group; do
	cat "/etc/$name" "$dir/etc/$name.more" >"$dir/etc/$name"
done
mkdir -p /etc/slurm /var/lib/nearmetal
touch /etc/hosts
for name in passwd group hosts slurm; do
	mount --bind "$dir/etc/$name" "/etc/$name"
done
# As udev makes it: virtual machines are processes of users.
mknod -m 666 "$dir/tun" c 10 200
mount --bind "$dir/tun" /dev/net/tun
# Where nodes look for images.
mount -t tmpfs -o mode=755 tmpfs /var/cache
mkdir /var/cache/nearmetal
mount --bind "$cache" /var/cache/nearmetal
if [[ -e $dir/groups ]]; then
	while read -r controller; do
		mount --bind "/sys/fs/cgroup/$controller/${dir##*/}" "/sys/fs/cgroup/$controller"
	done <"$dir/groups"
fi
ip link set lo up
ip link add br0 type bridge
ip addr add 10.78.0.254/24 dev br0
ip link set br0 up

mkdir -m 755 /run/munge
chown munge: /run/munge "$dir/munge" "$dir/munge/key"
# Without access to the group it cannot drop privileges by itself.
setpriv --reuid munge --regid munge --clear-groups munged --key-file="$dir/munge/key" \
	--log-file="$dir/munge/log" --pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" \
	--socket=/run/munge/munge.socket.2

export PATH=/usr/sbin:/usr/bin:/sbin:/bin
slurmctld
number=0
for node in "$@"; do
	number=$((number + 1))
	ip netns add "$node"
	ip link add "v$number" type veth peer name eth0 netns "$node"
	ip link set "v$number" master br0 up
	ip -n "$node" addr add "10.78.0.$number/24" dev eth0
	ip -n "$node" link set eth0 up
	ip -n "$node" link set lo up
	mkdir "$dir/spool/$node"
	# What keeps the namespaces of a node outlives its slurmd, which tests kill.
	nsenter --net="/run/netns/$node" unshare -m -u -i bash -ec '
		hostname "$1"
		mount -t tmpfs -o mode=1777 tmpfs /tmp
		mount -t tmpfs -o mode=1777 tmpfs /dev/shm
		mkdir -p /run/nearmetal
		mount -t tmpfs -o mode=755 tmpfs /run/nearmetal
		mount -t tmpfs -o mode=755 tmpfs /var/lib/nearmetal
		slurmd -N "$1"
		echo $$ > "$2"
		exec sleep infinity' - "$node" "$dir/spool/$node.pid" &
done
for node in "$@"; do
	until [[ -s $dir/spool/$node.pid ]]; do
		sleep 0.05
	done
done
touch "$dir/ready"
# Process 1: bash collects orphans while it waits.
sleep infinity
