# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Names of the nodes: host name, /etc/hosts, the hostfile, and the seed's open half as JSON.

# names_each: prints `name address slots host key` of every node in order; "key" may hold a space.
names_each() {
	while IFS='=' read -r key value; do
		case $key in
		nodes.*.name) each_name=$value ;;
		nodes.*.address) each_address=$value ;;
		nodes.*.slots) each_slots=$value ;;
		nodes.*.host) each_host=$value ;;
		nodes.*.ssh_host_key)
			case "$each_name $each_address $each_slots" in
			*[!a-z0-9.\ -]*) fail "the seed describes node '$each_name' in unusable words" ;;
			esac
			printf '%s %s %s %s %s\n' "$each_name" "$each_address" "$each_slots" "$each_host" "$value"
			;;
		esac
	done <"$etc/seed.lines"
}

names_write() {
	printf '%s\n' "$node" >/proc/sys/kernel/hostname || fail "cannot set the host name"
	printf '%s\n' "$node" | put /etc/hostname 0644
	names_each >"$run/nodes" || exit 1
	[ -s "$run/nodes" ] || fail "the seed names no nodes"
	hosts='127.0.0.1 localhost' hostfile=
	while read -r name address slots _; do
		hosts="$hosts
$address $name"
		hostfile="$hostfile$name slots=$slots
"
	done <"$run/nodes"
	printf '%s\n' "$hosts" | put /etc/hosts 0644
	printf '%s' "$hostfile" | put "$etc/hostfile" 0644
	names_public
}

# names_public: node.json, what this node was told without the private keys; cluster.json, the rest.
names_public() {
	while IFS='=' read -r key value; do
		case $key in
		public.node) printf '%s\n' "$value" | put "$etc/node.json" 0644 ;;
		public.cluster) printf '%s\n' "$value" | put "$etc/cluster.json" 0644 ;;
		esac
	done <"$etc/seed.lines"
}
