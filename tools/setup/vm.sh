# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What virtual machines need on this machine, for `setup.sh --vm`: QEMU, and the tools that make an
# image. Installs; upgrades nothing that is there. Uses mirror_uri and debian_keyring of libfabric.sh.

# install_vm_packages LIST NAME=VERSION...: with backports beside bookworm in lists of their own.
install_vm_packages() {
	local mirror lists=$scratch/vm-apt
	mirror=$(mirror_uri)
	[[ -n $mirror ]] || { echo "no Debian 12 mirror in the sources of this machine" && return 1; }
	mkdir -p "$lists"/{lists,cache/archives}/partial
	printf 'deb [signed-by=%s] %s %s main\n' "$debian_keyring" "$mirror" bookworm \
		"$debian_keyring" "$mirror" bookworm-updates \
		"$debian_keyring" "$mirror" bookworm-backports >"$lists/sources.list"
	apt_sources=(-o Dir::Etc::sourcelist="$lists/sources.list" -o Dir::Etc::sourceparts=-
		-o Dir::State::lists="$lists/lists" -o Dir::Cache="$lists/cache" -o APT::Sandbox::User=
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
	install_packages "$@"
}

vm_step() {
	packages_step vm "Packages for virtual machines" "$here/vm-packages.txt" install_vm_packages
}
