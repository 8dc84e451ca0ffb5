# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# The inter-VM segment: finds the devices, proves that they show the right bytes, tells the provider.

segment_seed() {
	seg_device= seg_token= seg_nr_parts= seg_part= seg_part_size= seg_size=
	seg_own_pci= seg_all_pci= seg_numa=-1 seg_vcpu_numa=-1 seg_distances=
	[ ! -e "$etc/seed.lines" ] || segment_values "$etc/seed.lines"
}

# segment_values FILE: the values of lines as those of the seed.
segment_values() {
	while IFS='=' read -r key value; do
		[ "$value" != null ] || continue
		case $key in
		segment.device) seg_device=$value ;;
		segment.token) seg_token=$value ;;
		segment.nr_parts) seg_nr_parts=$value ;;
		segment.part) seg_part=$value ;;
		segment.part_size) seg_part_size=$value ;;
		segment.size) seg_size=$value ;;
		segment.own_pci) seg_own_pci=$value ;;
		segment.all_pci) seg_all_pci=$value ;;
		segment.numa) seg_numa=$value ;;
		segment.vcpu_numa) seg_vcpu_numa=$value ;;
		segment.distances.*) seg_distances="$seg_distances $value" ;;
		esac
	done <"$1"
}

segment_set() {
	segment_seed
	if [ -z "$seg_device" ]; then
		segment_discover
		return
	fi
	segment_take
}

segment_take() {
	rm -f "$run/segment.conf" /dev/nearmetal/own /dev/nearmetal/all
	case $seg_device in
	ivshmem) segment_ivshmem ;;
	dax) segment_dax ;;
	*) fail "the seed names an unknown segment device '$seg_device'" ;;
	esac
	segment_verify
	segment_write
}

# segment_bar DEVICE: sets $bar to the size of its third BAR.
segment_bar() {
	bar=0
	{
		read -r _ _ _
		read -r _ _ _
		read -r bar_start bar_end _
	} <"$1/resource" || return 0
	[ "$bar_end" = 0x0000000000000000 ] || bar=$((bar_end - bar_start + 1))
}

# segment_ivshmem: among all ivshmem devices, mine are the two whose BARs have the seed's sizes.
segment_ivshmem() {
	own= all= found=
	segment_devices
	for address in $devices; do
		device=$pci/devices/$address
		segment_bar "$device"
		found="$found $address ($bar bytes)"
		if [ "$bar" = "$seg_size" ] && [ "${seg_all_pci:-$address}" = "$address" ]; then
			[ -z "$all" ] || fail "segment: two devices show $seg_size bytes, and the seed names none"
			all=$device
		elif [ "$bar" = "$seg_part_size" ] && [ "${seg_own_pci:-$address}" = "$address" ]; then
			[ -z "$own" ] || fail "segment: two devices show $seg_part_size bytes, and the seed names none"
			own=$device
		fi
	done
	[ -n "$own" ] || fail "segment: no ivshmem device of $seg_part_size bytes; there are:${found:- none}"
	[ -n "$all" ] || fail "segment: no ivshmem device of $seg_size bytes; there are:${found:- none}"
	segment_offer "$own" own 0660
	segment_offer "$all" all 0440
	integrity=enforced
}

# segment_devices: sets $devices to the ivshmem devices.
segment_devices() {
	devices=
	for device in "$pci"/devices/*; do
		[ -e "$device/vendor" ] || continue
		read -r vendor <"$device/vendor"
		read -r id <"$device/device"
		[ "$vendor $id" != '0x1af4 0x1110' ] || devices="$devices ${device##*/}"
	done
}

# segment_none WORDS: devices that are no segment. They may serve another program.
segment_none() {
	rm -f "$run/segment.conf" "$run/segment.found" /dev/nearmetal/own /dev/nearmetal/all
	warn "segment: $*"
}

# segment_discover: the seed names no segment, but the host may have plugged in its two devices.
segment_discover() {
	segment_devices
	if [ -z "$devices" ]; then
		rm -f "$run/segment.conf" "$run/segment.left" /dev/nearmetal/own /dev/nearmetal/all
		return 0
	fi
	segment_is_known && {
		segment_resize
		return
	}
	tries=0
	# They come one after the other.
	while set -- $devices && [ "$#" = 1 ] && [ "$tries" -lt 50 ]; do
		sleep 0.1
		tries=$((tries + 1))
		segment_devices
	done
	[ "$#" = 2 ] || {
		segment_none "not two ivshmem devices but $#:$devices"
		return 0
	}
	for address; do
		segment_room "$address" || return 0
	done
	segment_bar "$pci/devices/$1"
	size=$bar
	segment_bar "$pci/devices/$2"
	[ "$size" -lt "$bar" ] || set -- "$2" "$1"
	printf '1\n' >"$pci/devices/$1/enable" && printf '1\n' >"$pci/devices/$2/enable" &&
		nearmetal-segment find "$pci/devices/$1/resource2" "$pci/devices/$2/resource2" \
			>"$run/segment.found" 2>&1 || {
		segment_none "$1 and $2: $(tr '\n' ' ' <"$run/segment.found")"
		return 0
	}
	segment_values "$run/segment.found"
	rm -f "$run/segment.found"
	seg_own_pci=$1 seg_all_pci=$2
	segment_take
	rm -f "$run/segment.left"
}

# segment_is_known: whether the devices are those that $run/segment.conf, or segment.left, is about.
segment_is_known() {
	[ -e "$run/segment.conf" ] || [ -e "$run/segment.left" ] || return 1
	[ -e /dev/nearmetal/own ] && [ -e /dev/nearmetal/all ] || return 1
	# A device that was plugged in since then, perhaps of another part, is still of mode 0600.
	[ "$(stat -L -c %a /dev/nearmetal/own)" = 660 ] || return 1
	words=$(nearmetal-segment show --json /dev/nearmetal/all 2>/dev/null) || return 1
	seg_token=$(sed -n 's/^token = //p' "$run/segment.conf" "$run/segment.left" 2>/dev/null)
	case $words in *"\"$seg_token\""*) [ -n "$seg_token" ] ;; *) return 1 ;; esac
}

# segment_resize: the slots of the machine may have changed since $run/segment.conf was written.
segment_resize() {
	[ -e "$run/segment.conf" ] || return 0
	segment_endpoints
	grep -qx "endpoints = $endpoints" "$run/segment.conf" ||
		sed "s/^endpoints = .*/endpoints = $endpoints/" "$run/segment.conf" |
		put "$run/segment.conf" 0644
}

# segment_room ADDRESS: the memory of a device that was plugged in may find no place, because the
# firmware gave its port a small one. Without the port, the kernel plans both again.
segment_room() {
	segment_bar "$pci/devices/$1"
	[ "$bar" = 0 ] || return 0
	port=$(readlink -f "$pci/devices/$1")
	port=${port%/*}
	set -- "$1" "$port"/????:??:??.?/
	case $#/${port##*/} in
	2/????:*)
		printf '1\n' >"$port/remove" && printf '1\n' >"$pci/rescan"
		segment_bar "$pci/devices/$1"
		;;
	esac
	[ "$bar" != 0 ] || {
		segment_none "the kernel has no room for the memory of $1"
		return 1
	}
}

# segment_offer DEVICE NAME MODE: its memory under /dev/nearmetal, for the group and nobody else.
segment_offer() {
	printf '1\n' >"$1/enable" || fail "segment: cannot enable ${1##*/}"
	chown "root:$group" "$1/resource2" && chmod "$3" "$1/resource2" ||
		fail "segment: cannot give ${1##*/} to group $group"
	ln -sfn "$1/resource2" "/dev/nearmetal/$2" || fail "segment: cannot link /dev/nearmetal/$2"
}

# segment_dax: one region, read-write. The namespace's label says the token, so a region that a
# neighbour prepared is recognized; all prepare it alike, so it does not matter who was first.
segment_dax() {
	real modprobe -a virtio_pmem nd_pmem dax_pmem device_dax || fail "segment: no kernel module for DAX"
	set -- /dev/dax*
	if [ ! -e "$1" ]; then
		words=$(ndctl create-namespace --force --reconfig=namespace0.0 --mode=devdax --map=mem \
			--align=2M --uuid="$(segment_uuid)" 2>&1) ||
			fail "segment: cannot make a DAX device: $(printf '%s' "$words" | tr '\n' ' ')"
		set -- /dev/dax*
	fi
	[ "$#" = 1 ] && [ -c "$1" ] || fail "segment: not one DAX device but: $*"
	chown "root:$group" "$1" && chmod 0660 "$1" || fail "segment: cannot give $1 to group $group"
	ln -sfn "$1" /dev/nearmetal/all || fail "segment: cannot link /dev/nearmetal/all"
	integrity=convention
}

# segment_uuid: the token in the form of a UUID.
segment_uuid() {
	printf '%s\n' "$seg_token" | sed 's/^\(.\{8\}\)\(....\)\(....\)\(....\)/\1-\2-\3-\4-/'
}

# segment_verify: the host page must carry the token; nearmetal-segment knows its layout.
segment_verify() {
	words=$(nearmetal-segment show --json /dev/nearmetal/all 2>&1) ||
		fail "segment: $(printf '%s' "$words" | tr '\n' ' ')"
	case $words in
	*"\"$seg_token\""*) ;;
	*) fail "segment: the device shows another segment than the seed's" ;;
	esac
}

# segment_endpoints: a rank for each slot, or each processor of a machine of no cluster; the layout of a part has at most 256 endpoints.
segment_endpoints() {
	endpoints=1
	if [ -e "$run/nodes" ]; then
		while read -r name _ slots _; do
			[ "$name" != "$node" ] || endpoints=$slots
		done <"$run/nodes"
	else
		endpoints=$(nproc)
	fi
	[ "$endpoints" -le 256 ] || endpoints=256
}

segment_write() {
	: >>"$run/segment.lock"
	chown "root:$group" "$run/segment.lock" && chmod 0660 "$run/segment.lock" ||
		fail "segment: cannot make $run/segment.lock"
	own_line=
	[ "$seg_device" = dax ] || own_line='own = /dev/nearmetal/own'
	distances_line=
	[ -z "$seg_distances" ] || distances_line="distances =$seg_distances"
	segment_endpoints
	put "$run/segment.conf" 0644 <<-CONF
		version = 1
		device = $seg_device
		$own_line
		all = /dev/nearmetal/all
		part = $seg_part
		token = $seg_token
		lock = $run/segment.lock
		integrity = $integrity
		numa = $seg_numa
		vcpu_numa = $seg_vcpu_numa
		endpoints = $endpoints
		$distances_line
	CONF
}
