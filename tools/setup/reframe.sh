# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/reframe: ReFrame, for the tests of its checks. Its packages stay out of build/venv, whose
# versions they would change.

reframe=$build/reframe

install_reframe() {
	rm -rf -- "$reframe"
	"$venv/bin/python" -m venv "$reframe"
	"$reframe/bin/python" -m pip --no-input --disable-pip-version-check install --require-hashes \
		--no-deps --only-binary :all: -r "$here/requirements-reframe.txt"
	"$reframe/bin/reframe" --version
}

reframe_step() {
	step reframe "ReFrame" "$reframe/bin/reframe" \
		"$(hash_of "$here/requirements-reframe.txt" "$here/reframe.sh" "$stamps/python")" \
		install_reframe
}
