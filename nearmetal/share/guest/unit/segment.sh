# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# The inter-VM segment: finds the devices, proves that they show the right bytes, tells the provider.

segment_seed() {
	seg_device= seg_token= seg_nr_parts= seg_part= seg_part_size= seg_size=
	seg_own_pci= seg_all_pci= seg_numa=-1 seg_vcpu_numa=-1 seg_distances=
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
	done <"$etc/seed.lines"
}

segment_set() {
	segment_seed
	rm -f "$run/segment.conf" /dev/nearmetal/own /dev/nearmetal/all
	[ -n "$seg_device" ] || return 0
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
	{
		read -r _ _ _
		read -r _ _ _
		read -r bar_start bar_end _
	} <"$1/resource"
	bar=0
	[ "$bar_end" = 0x0000000000000000 ] || bar=$((bar_end - bar_start + 1))
}

# segment_ivshmem: among all ivshmem devices, mine are the two whose BARs have the seed's sizes.
segment_ivshmem() {
	own= all= found=
	for device in /sys/bus/pci/devices/*; do
		read -r vendor <"$device/vendor"
		[ "$vendor" = 0x1af4 ] || continue
		read -r id <"$device/device"
		[ "$id" = 0x1110 ] || continue
		segment_bar "$device"
		address=${device##*/}
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

# segment_endpoints: a rank for each slot; the layout of a part has at most 256 endpoints.
segment_endpoints() {
	endpoints=1
	while read -r name _ slots _; do
		[ "$name" != "$node" ] || endpoints=$slots
	done <"$run/nodes"
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
