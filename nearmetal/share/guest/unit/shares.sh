# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Directories of the host, by 9p: what a user may there decides the host, as that user.
# Where machines write nothing is cached: what is written is there for others at once. (Under cache=mmap a
# stat() may lose what was just written, and the rest is seen when a file is closed.) Programs are mapped
# from where they only read.

shares_mount() {
	tag='' how=''
	while IFS='=' read -r key value; do
		case $key in
		shares.*.tag) tag=$value how=cache=none ;;
		shares.*.readonly) [ "$value" = false ] || how=ro,cache=mmap ;;
		shares.*.path)
			mkdir -p "$value" || fail "cannot make $value, where a directory of the host goes"
			words=$(mount -t 9p -o trans=virtio,version=9p2000.L,msize=131072,$how,nosuid,nodev \
				"$tag" "$value" 2>&1) || fail "cannot mount $value of the host: $words"
			;;
		esac
	done <"$etc/seed.lines"
}
