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
		read -r hardware <"$device/address" 2>/dev/null || continue
		device=${device##*/}
		# A bond or a bridge shows the address of its first member: take the member.
		[ "$hardware" = "$1" ] && [ ! -e "/sys/class/net/$device/bridge" ] &&
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
	network_wait
	[ "${address%/*}" != "$own_address" ] || printf '%s\n' "$device" >"$run/interface"
	[ "$keep" != true ] || return 0
	script="link set dev $device ${mtu:+mtu $mtu} up"
	[ -z "$address" ] || script="$script
address replace $address dev $device"
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

# network_remember: writes what users gave each virtual function to $run/vf.MAC: the new one at the
# other host has the same MAC address, and nothing else. What the kernel or a router gives, it gets
# again. Each line: the family (0: any), then words of `ip` without the interface.
network_remember() {
	[ ! -s "$etc/seed.lines" ] || network_each network_remember_one
}

network_remember_one() {
	[ -n "$vf" ] || return 0
	network_device "$mac" || return 0
	{
		printf '0 link set mtu %s\n' "$(cat "/sys/class/net/$device/mtu")"
		for family in 4 6; do
			real ip "-$family" -o address show dev "$device" permanent | network_addresses
			# Those without a gateway first: they may lead to the gateways of others.
			routes=$(real ip "-$family" -o route show table all dev "$device" | network_routes)
			printf '%s\n' "$routes" | grep -v ' via '
			printf '%s\n' "$routes" | grep ' via '
		done
	} 2>/dev/null | grep '^[046] ' >"$run/vf.$mac.new"
	mv -f "$run/vf.$mac.new" "$run/vf.$mac"
}

network_addresses() {
	while read -r _ _ _ words; do
		case $family:$words in 6:*' scope link '*) continue ;; esac
		line="$family address replace"
		# shellcheck disable=SC2086 # one word each
		set -- ${words%%\\*}
		line="$line $1" && shift
		while [ "$#" -gt 0 ]; do
			case $1 in
			peer | brd | metric | scope) line="$line $1 $2" && shift ;;
			noprefixroute | nodad) line="$line $1" ;;
			esac
			shift
		done
		printf '%s\n' "$line"
	done
}

# Without those of several interfaces, and without words that only the kernel sets.
network_routes() {
	while read -r words; do
		case " $words " in
		*' proto kernel '* | *' proto ra '* | *' proto redirect '* | *nexthop* | *' nhid '*) continue ;;
		esac
		line="$family route replace"
		# shellcheck disable=SC2086 # one word each
		set -- $words
		while [ "$#" -gt 0 ]; do
			case $1 in
			linkdown | dead | offload | rt_offload | trap | rt_trap | offload_failed) ;;
			expires) shift ;;
			*) line="$line $1" ;;
			esac
			shift
		done
		printf '%s\n' "$line"
	done
}

network_return_one() {
	[ -n "$vf" ] || return 0
	network_device "$mac" || network_load_drivers
	network_set_one
	[ -s "$run/vf.$mac" ] || return 0
	for family in 0 4 6; do
		only=-$family
		[ "$family" != 0 ] || only=
		# shellcheck disable=SC2086 # no word for 0
		words=$(sed -n "s/^$family \(.*\)/\1 dev $device/p" "$run/vf.$mac" |
			real ip $only -force -batch - 2>&1) ||
			warn "interface $device ($mac): not all is as it was: $(printf '%s' "$words" | tr '\n' ' ')"
	done
}

# network_return: sets up the virtual functions that the machine got at its new host.
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
