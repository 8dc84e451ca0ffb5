# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Debian packages. As root: installs what is missing. Otherwise: names it, with the command.

# missing_packages: name=version of every listed package that is not completely installed.
missing_packages() {
	local installed entry
	installed=$(dpkg-query -W -f '${Package} ${Status}\n' 2>/dev/null |
		sed -n 's/ install ok installed$//p' | sort -u)
	entries "$here/apt-packages.txt" | while read -r entry; do
		grep -qxF -- "${entry%%=*}" <<<"$installed" || echo "$entry"
	done
}

# report_other_versions: what is installed in another version than the tests last passed with.
report_other_versions() {
	local entry have
	entries "$here/apt-packages.txt" | while read -r entry; do
		have=$(dpkg-query -W -f '${Version}' "${entry%%=*}")
		[[ $have == "${entry#*=}" ]] || echo "${entry%%=*} is $have, listed is ${entry#*=}"
	done
}

# choose_versions NAME=VERSION...: the listed version where the mirror has it, else the candidate.
choose_versions() {
	local entry name candidate
	for entry in "$@"; do
		name=${entry%%=*}
		# `apt-cache show` says yes to any version of a name that it knows.
		if apt-cache madison -- "$name" | awk '{ print $3 }' | grep -Fxq -- "${entry#*=}"; then
			echo "$entry"
			continue
		fi
		candidate=$(apt-cache policy -- "$name" | sed -n 's/^  Candidate: //p')
		if [[ -z $candidate || $candidate == "(none)" ]]; then
			echo "no package '$name' in the sources of this machine" >&2
			return 1
		fi
		loud "$entry is gone from the mirror, taking $candidate"
		echo "$name=$candidate"
	done
}

install_packages() {
	local chosen
	# A service that a package starts must not keep our lock; dpkg has one of its own.
	exec 9>&-
	export DEBIAN_FRONTEND=noninteractive
	# An earlier set-up may have been killed while dpkg was unpacking.
	[[ -z $(dpkg --audit) ]] || dpkg --configure -a
	apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update
	chosen=$(choose_versions "$@")
	mapfile -t chosen <<<"$chosen"
	apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y \
		--no-install-recommends --no-upgrade -- "${chosen[@]}"
	[[ -z $(missing_packages) ]]
	report_other_versions
}

is_root() { ((EUID == 0)); }

debian_step() {
	local missing
	command -v dpkg-query >/dev/null || die "this is not a Debian machine (no dpkg-query)." \
		"Debian 12 (bookworm) on x86-64 is what set-up knows."
	step_nr=$((step_nr + 1))
	mapfile -t missing < <(missing_packages)
	if ((${#missing[@]} == 0)); then
		printf '[%d/%d] Debian packages ... ready\n' "$step_nr" "$step_total"
		return 0
	fi
	if ! is_root; then
		die "${#missing[@]} Debian packages are missing, and only root can install them:" \
			"${missing[@]}" "" "Run as root:" \
			"apt-get update && apt-get install --no-install-recommends ${missing[*]%%=*}" \
			"and then the same command again."
	fi
	run_logged debian "Debian packages (${#missing[@]} to install)" \
		install_packages "${missing[@]}"
}
