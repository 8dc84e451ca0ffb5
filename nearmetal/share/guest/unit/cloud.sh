# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# A machine of a cloud before it is a node: the config drive has its addresses and the keys that may
# enter it. It has no secret. The seed comes later, by ssh.

first_path=/etc/nearmetal/first.json
drive_label=config-2

# cloud_load_drivers: of the adapters for disks and discs, where there is no device manager.
cloud_load_drivers() {
	[ ! -d /run/udev ] || return 0
	aliases=
	for device in /sys/bus/pci/devices/*; do
		read -r class <"$device/class"
		case $class in
		0x0100* | 0x0101* | 0x0106*)
			read -r alias <"$device/modalias"
			aliases="$aliases $alias"
			;;
		esac
	done
	# shellcheck disable=SC2086 # one word per driver
	real modprobe -qab $aliases sr_mod sd_mod isofs
}

# cloud_fetch: the file for the built image in the user data, which are also those of cloud-init.
cloud_fetch() {
	cloud_load_drivers
	mkdir -p "$run/drive"
	waited=0
	until cloud_find; do
		[ "$waited" -lt 50 ] || break
		sleep 0.1
		waited=$((waited + 1))
	done
	rmdir "$run/drive"
	[ -s "$etc/seed.first" ] || {
		[ -z "$why" ] || fail "$why"
		return 1
	}
	seed_split "$etc/seed.first" "$etc/seed.lines" ||
		fail "the user data on the config drive are no JSON document"
}

# cloud_find: takes them from the first drive that has them, else sets $why. A volume of the user may
# have the same label, and any file system.
cloud_find() {
	rm -f "$etc/seed.first"
	why=
	for drive in $(real blkid -c /dev/null -o device -t "LABEL=$drive_label"); do
		mount -t iso9660,vfat -o ro,nosuid,nodev,noexec "$drive" "$run/drive" || {
			why="${why:-cannot mount the config drive $drive}"
			continue
		}
		tail -n +2 "$run/drive/openstack/latest/user_data" |
			jq -r --arg path "$first_path" '.write_files[] | select(.path == $path) | .content' |
			put "$etc/seed.first" 0600
		umount "$run/drive"
		[ ! -s "$etc/seed.first" ] || return 0
		why="the user data on the config drive $drive are not those of nearmetal"
	done
	return 1
}

# cloud_configure: addresses, and a sshd that root can enter with the key of the cluster.
cloud_configure() {
	cloud_fetch || fail "no seed: the host gave none by firmware (opt/nearmetal/seed), by disc" \
		"or by config drive"
	seed_read
	printf '%s\n' "$node" >/proc/sys/kernel/hostname || fail "cannot set the host name"
	network_load_drivers
	own_address=
	network_each network_set_one
	keys_authorized
	rm -f "$etc/ssh_host_key" "$etc/ssh_host_key.pub"
	ssh-keygen -q -t ed25519 -N '' -C '' -f "$etc/ssh_host_key" || fail "cannot make a key for sshd"
	keys_server
	: >"$run/first"
}

# cloud_say_key: on the console, which the cluster reads, so that its first login knows the machine.
cloud_say_key() {
	read -r kind key _ <"$etc/ssh_host_key.pub" || fail "sshd has no public key"
	say "nearmetal: key $kind $key"
	# A message of the kernel may cut a line.
	sleep 2
	say "nearmetal: key $kind $key"
}
