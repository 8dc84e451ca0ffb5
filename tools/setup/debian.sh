# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Debian packages. As root: installs what is missing. Otherwise: names it, with the command.

# missing_packages LIST: name=version of every listed package that is not completely installed.
missing_packages() {
	local list=$1 installed entry
	installed=$(dpkg-query -W -f '${Package} ${Status}\n' 2>/dev/null |
		sed -n 's/ install ok installed$//p' | sort -u)
	entries "$list" | while read -r entry; do
		grep -qxF -- "${entry%%=*}" <<<"$installed" || echo "$entry"
	done
}

# report_other_versions LIST: what is installed in another version than the tests last passed with.
report_other_versions() {
	local list=$1 entry have
	entries "$list" | while read -r entry; do
		have=$(dpkg-query -W -f '${Version}' "${entry%%=*}")
		[[ $have == "${entry#*=}" ]] || echo "${entry%%=*} is $have, listed is ${entry#*=}"
	done
}

# machine_apt TOOL ARG...: apt for this machine, with its own sources unless a step has set others.
machine_apt() {
	local tool=$1
	shift
	"$tool" ${apt_sources[@]+"${apt_sources[@]}"} "$@"
}

# newest_like NAME VERSION: what the sources have instead of a version; for one from backports,
# the newest of backports, which apt by itself would never choose.
newest_like() {
	if [[ $2 == *~bpo* ]]; then
		machine_apt apt-cache madison -- "$1" | awk '$3 ~ /~bpo/ { print $3; exit }'
	else
		machine_apt apt-cache policy -- "$1" | sed -n 's/^  Candidate: //p'
	fi
}

# choose_versions NAME=VERSION...: the listed version where the mirror has it, else the candidate.
choose_versions() {
	local entry name candidate
	for entry in "$@"; do
		name=${entry%%=*}
		# `apt-cache show` says yes to any version of a name that it knows.
		if machine_apt apt-cache madison -- "$name" | awk '{ print $3 }' | grep -Fxq -- "${entry#*=}"; then
			echo "$entry"
			continue
		fi
		candidate=$(newest_like "$name" "${entry#*=}")
		if [[ -z $candidate || $candidate == "(none)" ]]; then
			echo "no package '$name' in the sources of this machine" >&2
			return 1
		fi
		loud "$entry is gone from the mirror, taking $candidate"
		echo "$name=$candidate"
	done
}

# install_packages LIST NAME=VERSION...
install_packages() {
	local list=$1 chosen
	shift
	# A service that a package starts must not keep our lock; dpkg has one of its own.
	exec 9>&-
	export DEBIAN_FRONTEND=noninteractive
	# An earlier set-up may have been killed while dpkg was unpacking.
	[[ -z $(dpkg --audit) ]] || dpkg --configure -a
	machine_apt apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
	chosen=$(choose_versions "$@")
	mapfile -t chosen <<<"$chosen"
	machine_apt apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y \
		--no-install-recommends --no-upgrade -- "${chosen[@]}"
	[[ -z $(missing_packages "$list") ]]
	report_other_versions "$list"
}

# fetch_package APT NAME=VERSION SHA256: downloads into the current directory. APT is a function as
# machine_apt.
fetch_package() {
	local apt=$1 entry=$2 sum=$3 name=${2%%=*} candidate
	if "$apt" apt-get download "$entry"; then
		echo "$sum  $(echo "$name"_*.deb)" | sha256sum --check --strict -
		return
	fi
	candidate=$("$apt" apt-cache policy "$name" | sed -n 's/^  Candidate: //p')
	loud "$entry is gone from the mirror, taking $candidate (checked by its signed index only)"
	"$apt" apt-get download "$name"
}

# unpack_package NAME=VERSION SHA256 DIR: the files of a package that would start a server if it were
# installed.
unpack_package() {
	local deb=$scratch/deb.${1%%=*}
	mkdir -p "$deb"
	cd "$deb"
	fetch_package machine_apt "$1" "$2"
	cd "$root"
	dpkg-deb --extract "$deb"/*.deb "$3"
}

is_root() { ((EUID == 0)); }

# packages_step NAME TITLE LIST INSTALLER: a step that installs what is missing of a list.
packages_step() {
	local name=$1 title=$2 list=$3 installer=$4 missing
	step_nr=$((step_nr + 1))
	mapfile -t missing < <(missing_packages "$list")
	if ((${#missing[@]} == 0)); then
		printf '[%d/%d] %s ... ready\n' "$step_nr" "$step_total" "$title"
		return 0
	fi
	if ! is_root; then
		die "${#missing[@]} Debian packages are missing, and only root can install them:" \
			"${missing[@]}" "" "Run as root:" \
			"apt-get update && apt-get install --no-install-recommends ${missing[*]%%=*}" \
			"and then the same command again."
	fi
	run_logged "$name" "$title (${#missing[@]} to install)" "$installer" "$list" "${missing[@]}"
}

debian_step() {
	command -v dpkg-query >/dev/null || die "this is not a Debian machine (no dpkg-query)." \
		"Debian 12 (bookworm) on x86-64 is what set-up knows."
	packages_step debian "Debian packages" "$here/apt-packages.txt" install_packages
}
