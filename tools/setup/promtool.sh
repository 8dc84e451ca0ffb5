# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/promtool: Prometheus's checker of alert rules, for the long tests. It is taken out of Debian's
# package, which would also start a server.

promtool_package=prometheus=2.42.0+ds-5+deb12u1
promtool_sum=81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55

install_promtool() {
	unpack_package "$promtool_package" "$promtool_sum" "$scratch/promtool"
	install -m 755 "$scratch/promtool/usr/bin/promtool" "$build/promtool"
	"$build/promtool" --version
}

promtool_step() {
	step promtool "promtool" "$build/promtool" "$(hash_of "$here/promtool.sh")" install_promtool
}
