#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# vsphere_guest.sh FOLDER MAC ADDRESS: a guest of the simulated vCenter, in namespaces of its own.
#
# Its disk is an overlay over GUEST_ROOT, a root file system of Debian, and stays in FOLDER while the
# machine is off. Its card is on the bridge GUEST_BRIDGE. At the first boot it does what cloud-init
# does with guestinfo.userdata, as far as nearmetal writes it. Without user data it is a template whose
# root accepts the key GUEST_KEY, and whose sshd has the key in file GUEST_HOST_KEY. It stands for the template of a site: sshd, and vmware-rpctool by files.
set -eu
folder=$1 mac=$2 address=$3
number=${folder##*-}
card=nmg$number

cat >"$folder/boot" <<'BOOT'
set -eu
hostname template
home=$(getent passwd root | cut -d: -f6)
ip link set lo up
tries=0
until ip link show ens192 >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ "$tries" -lt 600 ] || exit 1
	sleep 0.05
done
ip link set ens192 up
ip address add "$address" dev ens192
mkdir -p /run/sshd /run/lock /run/udev "$home/.ssh"
chmod 0700 "$home/.ssh"
[ -s /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
echo up

plain() {
	printf '%s\n' "$key" >"$home/.ssh/authorized_keys"
	install -m 0600 /media/told/.host /etc/ssh/ssh_host_ed25519_key
}

cloud_init() {
	[ ! -e /var/lib/cloud-done ] || return 0
	data=$(vmware-rpctool 'info-get guestinfo.userdata') || { plain && return 0; }
	[ "$(vmware-rpctool 'info-get guestinfo.userdata.encoding')" = base64 ]
	printf '%s' "$data" | base64 -d | sed 1d >/run/user-data
	jq -r '.ssh_authorized_keys[]' /run/user-data >"$home/.ssh/authorized_keys"
	jq -r '.runcmd[0][2]' /run/user-data >/run/user-script
	sh /run/user-script
	: >/var/lib/cloud-done
}
cloud_init

# What systemd does at a boot of a machine that is a node already.
[ ! -s /etc/nearmetal/seed.json ] || nearmetal-guest configure
/usr/sbin/sshd -D -e 2>/var/log/sshd.log &
while kill -0 $! 2>/dev/null; do
	sleep 1
done
BOOT

cat >"$folder/rpctool" <<'RPCTOOL'
#!/bin/sh
# vmware-rpctool of a guest whose machine is simulated.
case $1 in
"info-get guestinfo."*)
	name=${1#info-get }
	cat "/media/guestinfo/$name" 2>/dev/null || { echo 'No value found' && exit 1; }
	;;
"info-set guestinfo."*)
	words=${1#info-set }
	name=${words%% *}
	printf '%s\n' "${words#* }" >"/media/told/.new" && mv /media/told/.new "/media/told/$name"
	;;
*) exit 1 ;;
esac
RPCTOOL

cat >"$folder/enter" <<'ENTER'
set -eu
mount --make-rprivate /
cd "$folder"
mkdir -p lower upper work root upper/usr/bin upper/dev
mount -o loop,ro "$GUEST_ROOT" lower
mount -t overlay -o "lowerdir=lower,upperdir=upper,workdir=work" guest root
mount -t proc proc root/proc
mount -t sysfs -o ro sysfs root/sys
mount -t tmpfs -o mode=0755 dev root/dev
for device in null zero full random urandom tty; do
	: >"root/dev/$device"
	mount --bind "/dev/$device" "root/dev/$device"
done
mkdir root/dev/pts root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts root/dev/pts
ln -s pts/ptmx root/dev/ptmx
ln -s /proc/self/fd root/dev/fd
mount -t tmpfs -o mode=1777 shm root/dev/shm
mount -t tmpfs -o mode=0755 run root/run
mount -t tmpfs -o mode=1777 tmp root/tmp
mkdir -p root/media/guestinfo root/media/told
mount --bind guestinfo root/media/guestinfo
mount --bind told root/media/told
install -m 0755 rpctool root/usr/bin/vmware-rpctool
cp boot root/run/boot
exec env -i PATH=/usr/sbin:/usr/bin address="$address" key="${GUEST_KEY:-}" chroot root /bin/sh /run/boot
ENTER

(
	# The card goes into the guest's network when that exists.
	own=$(readlink /proc/self/ns/net)
	tries=0
	until there=$(readlink "/proc/$$/ns/net") && [ "$there" != "$own" ]; do
		tries=$((tries + 1))
		[ "$tries" -lt 200 ] || exit 1
		sleep 0.05
	done
	ip link delete "$card" 2>/dev/null || :
	ip link add "$card" type veth peer name ens192 address "$mac" netns "$$"
	ip link set "$card" master "$GUEST_BRIDGE" up
) >&2 &
export folder address
[ -z "${GUEST_HOST_KEY:-}" ] || install -m 0600 "$GUEST_HOST_KEY" "$folder/told/.host"
exec unshare --mount --uts --ipc --net --pid --fork --kill-child sh "$folder/enter"
