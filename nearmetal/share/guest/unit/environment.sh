# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What a plain `mpirun` needs to find nearmetal: for shells by login, for everything started by sshd.

environment_values() {
	cat <<-VALUES
		FI_PROVIDER_PATH=+$lib/libnearmetal-fi.so
		OMPI_MCA_pml=cm
		OMPI_MCA_mtl=ofi
		OMPI_MCA_osc=^ucx
		OMPI_MCA_opal_common_ofi_provider_include=nearmetal
		PRTE_MCA_prte_default_hostfile=$etc/hostfile
		PRTE_MCA_plm=ssh
		PRTE_MCA_ras=^slurm
	VALUES
	# Other interfaces may carry addresses that mean nothing to the other nodes.
	read -r interface <"$run/interface" && printf 'FI_TCP_IFACE=%s\n' "$interface"
	# Completion queues of 256 entries for each of so many processes are what soft-RoCE can hold
	# (32767 entries); libfabric's default of 1024 processes is for adapters.
	for device in /sys/class/infiniband/rxe_*; do
		[ ! -e "$device" ] || printf 'FI_UNIVERSE_SIZE=127\n'
		break
	done
}

environment_for_sshd() {
	printf 'SetEnv'
	environment_values | while read -r line; do
		printf ' %s' "$line"
	done
}

environment_write() {
	environment_values | put "$etc/environment" 0644
	mkdir -p /etc/profile.d
	put /etc/profile.d/nearmetal.sh 0644 <<-PROFILE
		# Written by nearmetal-guest: which libfabric provider MPIs use.
		set -a
		. $etc/environment
		set +a
	PROFILE
}
