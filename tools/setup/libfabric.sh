# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/libfabric/2.1: libfabric 2.1 as Debian 13 ships it, unpacked with its own C library.
#   build/libfabric/2.1/run PROGRAM [ARG...]   starts a program over it
# The archive's signature is checked by apt, the bytes against the listed sha256.

libfabric_dir=$build/libfabric/2.1
debian_keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# mirror_uri: where this machine takes Debian 12 from, whatever the format of its sources.
mirror_uri() {
	apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' \
		'Created-By: Packages' | awk '$1 == "bookworm" && $2 == "main" { print $3; exit }'
}

# private_apt TOOL ARG...: apt with sources, lists and caches of its own under $apt_dir; it reads
# the machine's proxy and credential settings, and changes nothing of the machine.
private_apt() {
	local tool=$1
	shift
	"$tool" -o Dir::Etc::sourcelist="$apt_dir/sources.list" -o Dir::Etc::sourceparts=- \
		-o Dir::Etc::preferences=- -o Dir::Etc::preferencesparts=- \
		-o Dir::State::lists="$apt_dir/lists" -o Dir::State::status=/dev/null \
		-o Dir::Cache="$apt_dir/cache" -o APT::Sandbox::User= -o Debug::NoLocking=true \
		-o Acquire::Languages=none -o Acquire::Retries=3 \
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
}

write_runner() {
	cat >"$1" <<'RUNNER'
#!/bin/sh
# Starts PROGRAM with the libraries of this directory before those of the machine.
here=$(dirname -- "$(readlink -f -- "$0")")
libs=$here/usr/lib/x86_64-linux-gnu
[ $# -gt 0 ] || { echo "usage: run PROGRAM [ARG...]" >&2; exit 2; }
program=$(command -v -- "$1") || { echo "run: no program '$1'" >&2; exit 127; }
shift
exec "$libs/ld-linux-x86-64.so.2" \
	--library-path "$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$program" "$@"
RUNNER
	chmod 755 "$1"
}

make_libfabric() {
	local mirror entry sum deb fresh=$scratch/libfabric
	apt_dir=$scratch/apt
	mirror=$(mirror_uri)
	[[ -n $mirror ]] || { echo "no Debian 12 mirror in the sources of this machine" && return 1; }
	mkdir -p "$apt_dir"/{lists,cache/archives}/partial "$apt_dir/deb" "$fresh"
	echo "deb [signed-by=$debian_keyring] $mirror trixie main" >"$apt_dir/sources.list"
	private_apt apt-get update
	cd "$apt_dir/deb"
	entries "$here/libfabric-2.1.txt" >"$apt_dir/wanted"
	while read -r entry sum; do
		fetch_package private_apt "$entry" "$sum"
	done <"$apt_dir/wanted"
	for deb in *.deb; do
		dpkg-deb --extract "$deb" "$fresh"
	done
	cd "$root"
	write_runner "$fresh/run"
	"$fresh/run" "$fresh/usr/bin/fi_info" --version | grep -x 'libfabric: 2\.1\..*'
	replace_dir "$fresh" "$libfabric_dir"
}

libfabric_step() {
	step libfabric "libfabric 2.1" "$libfabric_dir/run" \
		"$(hash_of "$here/libfabric-2.1.txt" "$here/libfabric.sh")" make_libfabric
}
