# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The simulated vCenter of the tests, for `setup.sh --vsphere`: tests/vcsim, built by Go. The Go of the
# machine is taken where it is new enough, else the one of backports. Uses install_vm_packages of vm.sh.

backports_go=/usr/lib/go-1.23/bin/go

# new_enough GO: whether a Go builds tests/vcsim.
new_enough() {
	local version
	version=$("$1" env GOVERSION 2>/dev/null) || return 1
	[[ $(printf '%s\n' go1.23 "$version" | sort -V | head -n 1) == go1.23 ]]
}

# go_program: the Go to build with.
go_program() {
	local candidate
	for candidate in "$(command -v go)" "$backports_go"; do
		if [[ -n $candidate ]] && GOTOOLCHAIN=local new_enough "$candidate"; then
			echo "$candidate"
			return 0
		fi
	done
	return 1
}

build_vcsim() {
	local go
	go=$(go_program)
	export GOTOOLCHAIN=local GOMODCACHE=${GOMODCACHE:-$build/go/mod} GOCACHE=${GOCACHE:-$build/go/cache}
	mkdir -p "$build/vcsim"
	(cd "$root/tests/vcsim" && "$go" build -mod=readonly -modcacherw -trimpath -buildvcs=false \
		-o "$build/vcsim/vcsim.new" .)
	mv -- "$build/vcsim/vcsim.new" "$build/vcsim/vcsim"
}

vsphere_steps() {
	if go_program >/dev/null; then
		step_nr=$((step_nr + 1))
		printf '[%d/%d] Go ... ready\n' "$step_nr" "$step_total"
	else
		packages_step vsphere "Go" "$here/vsphere-packages.txt" install_vm_packages
	fi
	step vcsim "Simulated vCenter" "$build/vcsim/vcsim" \
		"$(hash_of "$root"/tests/vcsim/{go.mod,go.sum,*.go} "$here/vsphere.sh")" build_vcsim
}
