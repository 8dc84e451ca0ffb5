#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cloud_guest.sh FOLDER NAME MAC NETWORK [FAST]: the first boot of a cloud image, by its own
# systemd in namespaces.
#
# FOLDER has `root.ext4`, the image; `drive`, the content of a config drive; and `console`, a link
# to a terminal. `layer`, if it is there, is what the image has in addition. NAME is that of its
# control group. Its card has this MAC, and is on the bridge `lan` of the network namespace NETWORK;
# with FAST, a second one has that MAC, and is on the bridge `fast`.
set -eu
folder=$1 name=$2 mac=$3 network=$4 fast=${5-}
groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)/$name

cat >"$folder/enter" <<'ENTER'
set -eu
mount --make-rprivate /
cd "$folder"
mkdir -p lower upper work root
mount -o loop,ro root.ext4 lower
lowers=lower
[ ! -e layer ] || lowers=layer:lower
mount -t overlay -o "lowerdir=$lowers,upperdir=upper,workdir=work" guest root
# In namespaces cloud-init looks for no disks, but here.
mkdir -p root/var/lib/cloud/seed
cp -R drive root/var/lib/cloud/seed/config_drive
# netplan matches the permanent address of a card, and this card has none.
echo 'system_info: {network: {renderers: [networkd]}}' >root/etc/cloud/cloud.cfg.d/91_card.cfg
mount -t proc proc root/proc
mount -t sysfs -o ro sysfs root/sys
mount -t cgroup2 cgroup2 root/sys/fs/cgroup
mount -t tmpfs -o mode=0755 dev root/dev
for device in null zero full random urandom tty; do
	: >"root/dev/$device"
	mount --bind "/dev/$device" "root/dev/$device"
done
: >root/dev/console
mount --bind "$(readlink console)" root/dev/console
mkdir root/dev/pts root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts root/dev/pts
ln -s pts/ptmx root/dev/ptmx
ln -s /proc/self/fd root/dev/fd
mount -t tmpfs -o mode=1777 shm root/dev/shm
mount -t tmpfs -o mode=0755 run root/run
tries=0
until ip link show eth0 >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ "$tries" -lt 600 ] || exit 1
	sleep 0.05
done
cd root
mkdir -p old
pivot_root . old
umount -l /old
exec env -i PATH=/usr/sbin:/usr/bin container=nearmetal /lib/systemd/systemd
ENTER

mkdir "$groups"
echo 0 >"$groups/cgroup.procs"
(
	# The cards go into the guest's network when that exists.
	own=$(readlink /proc/self/ns/net)
	tries=0
	until there=$(readlink "/proc/$$/ns/net") && [ "$there" != "$own" ]; do
		tries=$((tries + 1))
		[ "$tries" -lt 200 ] || exit 1
		sleep 0.05
	done
	if [ -n "$fast" ]; then
		ip -n "$network" link add "${name}f" type veth peer name eth1 address "$fast" netns "$$"
		ip -n "$network" link set "${name}f" master fast up
	fi
	# The image waits for this one.
	ip -n "$network" link add "$name" type veth peer name eth0 address "$mac" netns "$$"
	ip -n "$network" link set "$name" master lan up
) >&2 &
export folder
exec unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child sh "$folder/enter"
