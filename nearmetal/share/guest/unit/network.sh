# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Interfaces: drivers, addresses by MAC address, soft-RoCE.

# Without a device manager: drivers of network and InfiniBand adapters and of everything virtio,
# then of what those drivers found (auxiliary devices of RDMA adapters).
network_load_drivers() {
	[ ! -d /run/udev ] || return 0
	aliases=
	for device in /sys/bus/pci/devices/*; do
		read -r class <"$device/class"
		case $class in
		0x02* | 0x0c06*)
			read -r alias <"$device/modalias"
			aliases="$aliases $alias"
			;;
		esac
	done
	for device in /sys/bus/virtio/devices/*; do
		[ -e "$device" ] || continue
		read -r alias <"$device/modalias"
		aliases="$aliases $alias"
	done
	# shellcheck disable=SC2086 # one word per driver
	real modprobe -qab $aliases
	aliases=
	for device in /sys/bus/auxiliary/devices/*; do
		[ -e "$device" ] || continue
		read -r alias <"$device/modalias"
		aliases="$aliases $alias"
	done
	# shellcheck disable=SC2086 # one word per driver
	[ -z "$aliases" ] || real modprobe -qab $aliases
}

# network_device MAC: sets $device to the interface with that address.
network_device() {
	for device in /sys/class/net/*; do
		read -r address <"$device/address" 2>/dev/null || continue
		device=${device##*/}
		# A bond or a bridge shows the address of its first member: take the member.
		[ "$address" = "$1" ] && [ ! -e "/sys/class/net/$device/bridge" ] &&
			[ ! -e "/sys/class/net/$device/bonding" ] && return 0
	done
	return 1
}

# network_each FUNCTION: calls it for every interface with $mac, $address, $mtu, $gateway,
# $soft_roce, $keep, and $vf: the adapter of the host, '' if it is no virtual function.
network_each() {
	each=$1 current= mac=
	while IFS='=' read -r key value; do
		case $key in interfaces.*) ;; *) continue ;; esac
		number=${key#interfaces.} field=${key#interfaces.*.}
		number=${number%%.*}
		if [ "$number" != "$current" ]; then
			[ -z "$mac" ] || "$each"
			current=$number mac='' address='' mtu='' gateway='' soft_roce=false keep=false vf=''
		fi
		[ "$value" != null ] || continue
		case $field in
		mac) mac=$value ;;
		address) address=$value ;;
		mtu) mtu=$value ;;
		gateway) gateway=$value ;;
		soft_roce) soft_roce=$value ;;
		keep) keep=$value ;;
		vf.pf) vf=$value ;;
		esac
	done <"$etc/seed.lines"
	[ -z "$mac" ] || "$each"
}

network_wait() {
	waited=0
	until network_device "$mac"; do
		[ "$waited" -lt 100 ] || fail "no network interface has the address $mac"
		sleep 0.1
		waited=$((waited + 1))
	done
}

network_set_one() {
	wanted_address=$address
	network_wait
	[ "${wanted_address%/*}" != "$own_address" ] || printf '%s\n' "$device" >"$run/interface"
	[ "$keep" != true ] || return 0
	script="link set dev $device ${mtu:+mtu $mtu} up"
	[ -z "$wanted_address" ] || script="$script
address replace $wanted_address dev $device"
	[ -z "$gateway" ] || script="$script
route replace default via $gateway dev $device"
	words=$(printf '%s\n' "$script" | real ip -batch - 2>&1) ||
		fail "interface $device ($mac): $(printf '%s' "$words" | tr '\n' ' ')"
}

# network_set: $run/interface tells on which interface the other nodes know this one.
network_set() {
	own_address=
	while read -r name node_address _; do
		[ "$name" != "$node" ] || own_address=$node_address
	done <"$run/nodes"
	rm -f "$run/interface"
	network_each network_set_one
	[ -e "$run/interface" ] ||
		fail "none of the seed's interfaces has this node's address $own_address"
}

# network_return: virtual functions that the machine got at its new host.
network_return_one() {
	[ -n "$vf" ] || return 0
	wanted_address=$address
	network_device "$mac" || network_load_drivers
	address=$wanted_address
	network_set_one
}

network_return() {
	own_address=none
	network_each network_return_one
}

network_soft_roce_one() {
	[ "$soft_roce" = true ] || return 0
	network_wait
	real modprobe -a rdma_rxe ib_uverbs rdma_ucm || fail "soft-RoCE: this kernel has no module rdma_rxe"
	[ ! -e "/sys/class/infiniband/rxe_$device" ] || return 0
	words=$(rdma link add "rxe_$device" type rxe netdev "$device" 2>&1) ||
		fail "soft-RoCE on $device: $words"
}

network_soft_roce() { network_each network_soft_roce_one; }
