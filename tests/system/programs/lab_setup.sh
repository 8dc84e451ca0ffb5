#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run inside a new Debian 13 tree (tests/system/linux_disk.py): makes it a host as it comes out of
# its box, which starts from its own disk with GRUB and has one SR-IOV adapter at the factory's
# settings.
set -eu

kernel=$(ls /usr/lib/modules)

echo lab >/etc/hostname
echo '/dev/vda1 / ext4 noatime 0 0' >/etc/fstab
touch /etc/.updated /var/.updated
rm -f /etc/ssh/ssh_host_*
systemctl mask getty.target serial-getty@.service systemd-timesyncd.service e2scrub_reap.service \
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer e2scrub_all.timer

# Boot loader: GRUB's own files, and a first grub.cfg until update-grub writes another one.
mkdir -p /boot/grub
cp -r /usr/lib/grub/i386-pc /boot/grub/
grub-mkimage -O i386-pc -o /boot/grub/core.img -p '(hd0,msdos1)/boot/grub' biosdisk part_msdos ext2
# What an emulated machine on a busy one would only lose time with, and its timer's test would fail.
plain='console=ttyS0 no_timer_check quiet systemd.show_status=false mitigations=off audit=0 apparmor=0'
cat >/etc/default/grub <<GRUB
GRUB_TIMEOUT=0
GRUB_TERMINAL=serial
GRUB_DISABLE_RECOVERY=true
GRUB_CMDLINE_LINUX="$plain"
GRUB
cat >/boot/grub/grub.cfg <<GRUB
linux /boot/vmlinuz-$kernel root=/dev/vda1 ro $plain
initrd /boot/initrd.img-$kernel
boot
GRUB

echo "AuthorizedKeysFile /etc/ssh/lab_keys" >/etc/ssh/sshd_config.d/lab.conf
cat >/etc/systemd/system/lab-keys.service <<'UNIT'
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service systemd-modules-load.service
[Service]
Type=oneshot
ExecStart=sh -c '[ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key'
ExecStart=sh -c 'cat /sys/firmware/qemu_fw_cfg/by_name/opt/lab/key/raw >/etc/ssh/lab_keys'
UNIT
cat >/etc/systemd/system/lab-card.service <<'UNIT'
[Unit]
DefaultDependencies=no
After=systemd-remount-fs.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=python3 -I -S /opt/lab/lab_card.py start
UNIT
mkdir -p /etc/systemd/system/ssh.service.d
cat >/etc/systemd/system/ssh.service.d/lab.conf <<'UNIT'
[Unit]
Wants=lab-keys.service lab-card.service
After=lab-keys.service lab-card.service lab-way-in.service
UNIT
echo qemu_fw_cfg >/etc/modules-load.d/lab.conf

# The way in for ssh. Which of two services has the network is a matter of what is enabled.
cat >/etc/systemd/system/lab-way-in.service <<'UNIT'
[Unit]
After=lab-card.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sh /opt/lab/way-in
[Install]
WantedBy=multi-user.target
UNIT
cat >/opt/lab/way-in <<'SH'
while :; do
	for d in /sys/class/net/*; do
		case $(readlink "$d/device/driver") in
		*/virtio_net)
			# By number: udev may be about to give it another name.
			n=$(cat "$d/ifindex")
			set -- $(ip -o link | sed -n "s/^$n: \([^:@]*\).*/\1/p")
			ip addr replace 10.0.2.15/24 dev "$1" && ip link set "$1" up && exit 0
			;;
		esac
	done
	sleep 0.5
done
SH
# Drivers of things that nobody asks of this host.
for name in kvm_intel kvm_amd psmouse evdev joydev iTCO_wdt i2c_i801 lpc_ich pcspkr intel_rapl_msr \
	intel_rapl_common sr_mod drm ahci virtio_rng button qemu_wdt; do
	echo "blacklist $name"
done >/etc/modprobe.d/lab.conf
mkdir -p /etc/systemd/network
cat >/etc/systemd/network/10-way-in.network <<'UNIT'
[Match]
Driver=virtio_net
[Network]
Address=10.0.2.15/24
UNIT
systemctl enable lab-way-in.service
systemctl disable systemd-networkd.service 2>/dev/null || true

# The tools of the adapter.
mkdir -p /opt/mellanox/bin /var/lib/lab
for tool in mlxconfig mlxfwmanager flint; do
	printf '#!/bin/sh\nexec python3 -I -S /opt/lab/lab_card.py %s "$@"\n' "$tool" >"/opt/mellanox/bin/$tool"
	chmod 755 "/opt/mellanox/bin/$tool"
done
python3 -I -S /opt/lab/lab_card.py factory
rm -rf /var/log/* /var/lib/apt/lists/*
