# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Keys for sshd and ssh. All files are ours alone: nothing of the image's own is rewritten.

# keys_authorized: sets $authorized, who may enter as root.
keys_authorized() {
	authorized=
	while IFS='=' read -r key value; do
		case $key in
		ssh.authorized_keys.*)
			authorized="$authorized$value
"
			;;
		esac
	done <"$etc/seed.lines"
	mkdir -p "$etc/authorized_keys"
	printf '%s' "$authorized" | put "$etc/authorized_keys/root" 0644
}

keys_write() {
	host_key= node_key= node_key_public=
	while IFS='=' read -r key value; do
		case $key in
		ssh.host_key) host_key=$value ;;
		ssh.node_key) node_key=$value ;;
		ssh.node_key_public) node_key_public=$value ;;
		esac
	done <"$etc/seed.lines"
	[ -n "$host_key" ] && [ -n "$node_key" ] || fail "the seed has no ssh keys"
	keys_authorized
	printf '%s%s\n' "$authorized" "$node_key_public" | put "$etc/authorized_keys/$user" 0644
	# The \n of the seed's lines become newlines: these texts hold no other backslash.
	printf '%b' "$host_key" | put "$etc/ssh_host_key" 0600
	printf '%b' "$node_key" | put "$etc/node_key" 0600 "$user:"
	known= names=
	while read -r name address _ _ public; do
		known="$known$name,$address $public
"
		names="$names $name $address"
	done <"$run/nodes"
	printf '%s' "$known" | put "$etc/known_hosts" 0644
	keys_client
	keys_server
}

keys_client() {
	mkdir -p /etc/ssh/ssh_config.d
	put /etc/ssh/ssh_config.d/nearmetal.conf 0644 <<-CONFIG
		Host$names
		  User $user
		  IdentityFile $etc/node_key
		  IdentitiesOnly yes
		  GlobalKnownHostsFile $etc/known_hosts
		  StrictHostKeyChecking yes
	CONFIG
}

keys_server() {
	mkdir -p /etc/ssh/sshd_config.d
	pam=
	# Without PAM, sshd itself shows the greeting of an appliance.
	[ -d /run/systemd/system ] || pam='UsePAM no
PrintMotd yes'
	put /etc/ssh/sshd_config.d/10-nearmetal.conf 0600 <<-CONFIG
		HostKey $etc/ssh_host_key
		AuthorizedKeysFile .ssh/authorized_keys $etc/authorized_keys/%u
		PasswordAuthentication no
		KbdInteractiveAuthentication no
		PermitRootLogin prohibit-password
		PermitUserRC no
		UseDNS no
		MaxStartups 200
		MaxSessions 100
		$pam
		$(environment_for_sshd)
	CONFIG
	[ ! -d /run/systemd/system ] || systemctl try-reload-or-restart ssh.service sshd.service 2>/dev/null
	:
}
