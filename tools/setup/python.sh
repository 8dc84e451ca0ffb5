# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/venv: Python with the pinned wheels and the nearmetal package (editable).

venv=$build/venv
pip=("$venv/bin/python" -m pip --no-input --disable-pip-version-check)

# base_python: the interpreter to build on. The one of the distribution comes first: it can be read
# by every user, which one in a home directory often cannot.
base_python() {
	local candidate
	for candidate in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
		candidate=$(command -v -- "$candidate") || continue
		if "$candidate" -c 'import sys, venv, ensurepip
sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			echo "$candidate"
			return 0
		fi
	done
	return 1
}

# A virtual environment cannot be moved, so it is built in its place; without its stamp it is
# removed first.
make_venv() {
	rm -rf -- "$venv"
	"$1" -m venv "$venv"
	"${pip[@]}" install --require-hashes --only-binary :all: -r "$here/requirements.txt"
	"$venv/bin/python" -c 'import pydantic, yaml, rich, jsonschema, mpi4py'
}

install_package() {
	"${pip[@]}" install --no-deps --no-build-isolation --editable "$root"
}

python_step() {
	local base version
	base=$(base_python) || die "no Python 3.11 or newer with the venv module was found." \
		"Install python3 and python3-venv."
	version=$("$base" -c 'import sys; print(sys.executable, sys.version)')
	step python "Python environment" "$venv/bin/python" \
		"$(hash_of "$here/requirements.txt" "$here/python.sh" "$version" "$root/")" \
		make_venv "$base"
	# Its stamp names the one of the environment: a new environment needs the package again.
	step package "nearmetal package" "$venv/bin/nearmetal" \
		"$(hash_of "$root/pyproject.toml" "$stamps/python")" install_package
}
