# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# The user who runs jobs: the seed's, with the number that files of the host know; else our own.

users_seed() {
	wanted= wanted_uid= wanted_gid= wanted_home=
	while IFS='=' read -r key value; do
		case $key in
		user.name) wanted=$value ;;
		user.uid) wanted_uid=$value ;;
		user.gid) wanted_gid=$value ;;
		user.home) wanted_home=$value ;;
		esac
	done <"$etc/seed.lines"
	case "$wanted $wanted_uid $wanted_gid" in
	*[!A-Za-z0-9_.\ -]*) fail "the seed describes user '$wanted' in unusable words" ;;
	esac
}

# users_make: sets $user, who exists afterwards.
users_make() {
	users_seed
	if [ -n "$wanted" ]; then
		user=$wanted
		users_make_wanted
	elif ! id "$user" >/dev/null 2>&1; then
		useradd --user-group --groups "$group" --create-home --shell /bin/bash "$user" &&
			usermod --password '*' "$user" || fail "cannot make user $user"
	fi
}

# The start-up files of a home directory on the host are for shells of the host: hence sh.
users_make_wanted() {
	if known=$(id -u "$user" 2>/dev/null); then
		[ "$known" = "$wanted_uid" ] || fail "user $user has the number $known here, not $wanted_uid"
		return 0
	fi
	if holder=$(getent passwd "$wanted_uid"); then
		userdel --force "${holder%%:*}" 2>/dev/null
	fi
	getent group "$wanted_gid" >/dev/null || groupadd --gid "$wanted_gid" "job-$wanted_gid" ||
		fail "cannot make group $wanted_gid"
	useradd --uid "$wanted_uid" --gid "$wanted_gid" --groups "$group" --no-create-home \
		--home-dir "$wanted_home" --shell /bin/sh --password '*' "$user" ||
		fail "cannot make user $user"
	[ -d "$wanted_home" ] || install -d -m 0700 -o "$wanted_uid" -g "$wanted_gid" "$wanted_home" ||
		fail "cannot make $wanted_home"
}
