# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/promtool: Prometheus's checker of alert rules, for the long tests. It is taken out of Debian's
# package, which would also start a server.

promtool_package=prometheus=2.42.0+ds-5+deb12u1
promtool_sum=81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55

install_promtool() {
	local fresh=$scratch/promtool
	mkdir -p "$fresh"
	cd "$fresh"
	if apt-get download "$promtool_package"; then
		echo "$promtool_sum  $(echo prometheus_*.deb)" | sha256sum --check --strict -
	else
		loud "$promtool_package is gone from the mirror, taking its successor (checked by apt only)"
		apt-get download prometheus
	fi
	dpkg-deb --extract prometheus_*.deb .
	cd "$root"
	install -m 755 "$fresh/usr/bin/promtool" "$build/promtool"
	"$build/promtool" --version
}

promtool_step() {
	step promtool "promtool" "$build/promtool" "$(hash_of "$here/promtool.sh")" install_promtool
}
