# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# The seed: where it comes from, and its values as lines that a shell can read without surprises.

firmware=/sys/firmware/qemu_fw_cfg/by_name/opt/nearmetal/seed/raw

# seed_fetch: the seed of the firmware, else the one that a disc or ssh brought to $etc/seed.json.
# 1: there is none.
seed_fetch() {
	rm -f "$etc/seed.lines"
	[ -d /sys/firmware/qemu_fw_cfg ] || real modprobe qemu_fw_cfg 2>/dev/null
	if [ -e "$firmware" ]; then
		put "$etc/seed.json" 0600 <"$firmware"
	fi
	[ -s "$etc/seed.json" ]
}

# seed_take: a new seed from standard input. The old one stays when the new one makes no sense.
seed_take() {
	put "$etc/seed.json.given" 0600
	seed_split "$etc/seed.json.given" "$etc/seed.lines.given" ||
		fail "the new seed is no JSON document; nothing was changed"
	mv -f "$etc/seed.json.given" "$etc/seed.json"
	rm -f "$etc/seed.lines" "$etc/seed.lines.given"
}

# seed_split FILE LINES: JSON to lines `path.to.value=text`, a newline in a text as \n. Before them, as
# public.node and public.cluster, what nobody need keep secret of it, as JSON.
seed_split() {
	if command -v jq >/dev/null; then
		(umask 077 && jq -r '"public.node=\(del(.ssh.host_key, .ssh.node_key) | tojson)",
			"public.cluster=\({version, cluster, nodes} | tojson)",
			(paths(type != "object" and type != "array") as $p
			| "\($p | map(tostring) | join("."))=\(getpath($p) | tostring | gsub("\n"; "\\n"))")' \
			"$1" >"$2")
	elif command -v python3 >/dev/null; then
		(umask 077 && python3 -I "$lib/seed_split.py" "$1" >"$2")
	else
		fail "neither jq nor python3 is installed: cannot read the seed"
	fi
}

# seed_read: makes $etc/seed.lines, and sets what the others use.
seed_read() {
	[ -s "$etc/seed.lines" ] || seed_split "$etc/seed.json" "$etc/seed.lines" ||
		fail "the seed is no JSON document: $(head -c 60 "$etc/seed.json" | tr -d '\n')"
	seed_version= node= cluster=
	while IFS='=' read -r key value; do
		case $key in
		version) seed_version=$value ;;
		name) node=$value ;;
		cluster) cluster=$value ;;
		esac
	done <"$etc/seed.lines"
	case $node in
	'' | *[!a-z0-9-]*)
		node='?'
		fail "the seed has no usable name for this node"
		;;
	esac
	case $cluster in '' | *[!a-z0-9-]*) fail "the seed has no usable name for the cluster" ;; esac
	[ "$seed_version" = 1 ] || fail "the seed has version '$seed_version', known is 1"
}
