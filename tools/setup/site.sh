# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What builds the documentation site and its recording, for `setup.sh --site`.

install_site() {
	"${pip[@]}" install --require-hashes --no-deps --only-binary :all: \
		-r "$here/requirements-site.txt"
	"$venv/bin/python" -c 'import furo, myst_parser, pyte, sphinx'
}

# Its stamp names the one of the environment: a new environment needs it again.
site_step() {
	step site "Documentation tools" "$venv/bin/sphinx-build" \
		"$(hash_of "$here/requirements-site.txt" "$here/site.sh" "$stamps/python")" install_site
}
