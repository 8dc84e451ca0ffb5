# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The MPI programs: build/programs/MPI/NAME, one per MPI and benchmarks/mpi/NAME.c.

mpi_names=(openmpi4 openmpi5 mpich5 impi)
export PATH=$PATH:/usr/bin:/bin

# mpi_compile MPI SOURCE OUTPUT [OPTION...]
mpi_compile() {
	local mpi=$1 source=$2 output=$3 impi=$build/mpi/impi
	local flags=(-std=gnu17 -O2 -g -Wall -Wextra -Werror)
	shift 3
	case $mpi in
	openmpi4) /usr/bin/mpicc.openmpi "${flags[@]}" "$source" -o "$output" "$@" ;;
	openmpi5) "$build/mpi/openmpi5/bin/mpicc" "${flags[@]}" "$source" -o "$output" \
		-Wl,-rpath,"$build/mpi/openmpi5/lib" "$@" ;;
	mpich5) "$build/mpi/mpich5/bin/mpicc" "${flags[@]}" "$source" -o "$output" "$@" ;;
	# The Intel wheel has no headers; it has the binary interface of MPICH, so MPICH's serve.
	impi) gcc "${flags[@]}" -I"$build/mpi/mpich5/include" "$source" -o "$output" \
		-L"$impi/lib" -Wl,-rpath,"$impi/lib" -lmpi "$@" ;;
	esac
}

# mpi_two_ranks MPI PROGRAM [ARG...]: runs two ranks on this machine within a minute.
mpi_two_ranks() {
	local mpi=$1 launch
	shift
	case $mpi in
	openmpi4) launch=(/usr/bin/mpirun.openmpi --oversubscribe -np 2) ;;
	openmpi5) launch=("$build/mpi/openmpi5/bin/mpirun" --oversubscribe -np 2) ;;
	*) launch=("$build/mpi/$mpi/bin/mpiexec.hydra" -n 2) ;;
	esac
	# Open MPI wants to be told that root is meant; the variables say nothing to the others.
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
		I_MPI_ROOT=$build/mpi/impi timeout --kill-after=5 60 "${launch[@]}" "$@"
}

# is_stale OUTPUT INPUT...: OUTPUT is not there, or an input is newer.
is_stale() {
	local output=$1 input
	shift
	for input in "$@"; do
		[[ $output -nt $input ]] || return 0
	done
	return 1
}

# build_programs: compiles what is older than its source, the headers beside it, or this file.
build_programs() {
	local mpi source output
	shopt -s nullglob
	for mpi in "${mpi_names[@]}"; do
		mkdir -p "$build/programs/$mpi"
		for source in "$root"/benchmarks/mpi/*.c; do
			output=$build/programs/$mpi/$(basename "$source" .c)
			is_stale "$output" "$source" "$root"/benchmarks/mpi/*.h \
				"$here/programs.sh" "$stamps/mpi" || continue
			mpi_compile "$mpi" "$source" "$output.new" -lm -lpthread -ldl
			mv -- "$output.new" "$output"
		done
	done
}
