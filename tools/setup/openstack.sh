# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/openstack: real OpenStack services for the tests of `backend: openstack`, see tests/openstack.
# The broker is taken out of Debian's package, which would also start a server for the network. The
# database has all tables, and no secrets: each start of the services makes its own.

openstack=$build/openstack
broker_package=rabbitmq-server=3.10.8-1.1+deb12u1
broker_sum=b88e03a102134e3dbc1ba563e6f678eec29a500a933c00c68c71b45b778cd5b0

# requirement NAME LIST: the lines of one entry.
requirement() { awk -v name="$1" '/^[^ #]/ { ours = index($0, name "==") == 1 } ours' "$2"; }

install_services() {
	local list=$here/requirements-openstack.txt python=$openstack/venv/bin/python
	local install=("$python" -m pip --no-input --disable-pip-version-check install --require-hashes --no-deps)
	rm -rf -- "$openstack/venv"
	mkdir -p "$openstack"
	"$venv/bin/python" -m venv "$openstack/venv"
	# Two have no wheels. They are built with the listed setuptools, so it comes first.
	requirement setuptools "$list" >"$scratch/setuptools.txt"
	"${install[@]}" --only-binary :all: -r "$scratch/setuptools.txt"
	"${install[@]}" --no-build-isolation --only-binary :all: --no-binary ovs,simplegeneric -r "$list"
	"$python" -m pip --disable-pip-version-check check
}

has_libvirt() { [[ $with_vm == yes ]] || dpkg-query -W libvirt-dev >/dev/null 2>&1; }

# Nova's real hypervisor needs libvirt's module, built against the libvirt of `setup.sh --vm`.
install_hypervisor() {
	local python=$openstack/venv/bin/python
	"$python" -m pip --no-input --disable-pip-version-check install --require-hashes --no-deps \
		--no-build-isolation -r "$here/requirements-libvirt.txt"
	"$python" -c 'import libvirt; print(libvirt.getVersion())'
}

install_broker() {
	unpack_package "$broker_package" "$broker_sum" "$scratch/rabbitmq"
	replace_dir "$scratch/rabbitmq" "$openstack/rabbitmq"
}

make_tables() {
	local fresh=$scratch/database own=()
	# Only root needs no user namespace for the others.
	is_root || own=(--user --map-root-user)
	unshare "${own[@]}" --mount --mount-proc --pid --ipc --fork --kill-child \
		"$openstack/venv/bin/python" -m tests.openstack.cloud --database "$fresh" --make
	replace_dir "$fresh" "$openstack/database"
}

openstack_steps() {
	local list=$here/requirements-openstack.txt services=$root/tests/openstack
	packages_step openstack "Packages for OpenStack" "$here/openstack-packages.txt" install_packages
	step openstack-services "OpenStack services" "$openstack/venv/bin/python" \
		"$(hash_of "$list" "$here/openstack.sh" "$stamps/python")" install_services
	if has_libvirt; then
		step openstack-hypervisor "libvirt for OpenStack" "$openstack/venv/bin/python" \
			"$(hash_of "$here/requirements-libvirt.txt" "$here/openstack.sh" \
				"$stamps/openstack-services")" install_hypervisor
	fi
	step openstack-broker "Message broker" "$openstack/rabbitmq" \
		"$(hash_of "$broker_package" "$broker_sum")" install_broker
	step openstack-database "Database of OpenStack" "$openstack/database" \
		"$(hash_of "$stamps/openstack-services" "$services"/{database,settings,seed,cloud}.py)" \
		make_tables
}
