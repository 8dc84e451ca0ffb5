# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# libvirt's Python module in build/venv, for `setup.sh --vm`: built against the machine's libvirt, so
# it is no part of requirements.txt, whose wheels need nothing of the machine.

install_libvirt_python() {
	"${pip[@]}" install --require-hashes --no-deps --no-build-isolation \
		-r "$here/requirements-libvirt.txt"
	"$venv/bin/python" -c 'import libvirt; print(libvirt.getVersion())'
}

# Its stamp names the one of the environment: a new environment needs it again.
libvirt_step() {
	step libvirt "libvirt for Python" "$venv/bin/python" \
		"$(hash_of "$here/requirements-libvirt.txt" "$here/libvirt.sh" "$stamps/python" \
			"$(dpkg-query -W -f '${Version}' libvirt-dev 2>/dev/null)")" install_libvirt_python
}
