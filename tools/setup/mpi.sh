# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# build/mpi/{openmpi5,mpich5,impi}: one prefix per MPI, since their wheels overwrite each other's
# files. All three find their own files at run time, so a prefix may be moved and renamed.
# build/mpi4py/src: the sources of mpi4py, for its test suite.

mpi_dir=$build/mpi

make_mpi() {
	local name=$1 fresh=$scratch/mpi-$1
	"${pip[@]}" install --no-deps --require-hashes --only-binary :all: --ignore-installed \
		--no-warn-script-location --prefix "$fresh" -r "$here/mpi/$name.txt"
	[[ -x $fresh/bin/mpirun && -e $fresh/lib/libmpi.so ]]
	replace_dir "$fresh" "$mpi_dir/$name"
}

make_mpis() {
	local name
	for name in openmpi5 mpich5 impi; do
		[[ -f $stamps/mpi-$name && $(<"$stamps/mpi-$name") == $(mpi_key "$name") &&
			-e $mpi_dir/$name/bin/mpirun ]] && continue
		make_mpi "$name"
		mpi_key "$name" >"$stamps/mpi-$name"
	done
}

mpi_key() { hash_of "$here/mpi/$1.txt" "one prefix per MPI"; }

make_mpi4py_source() {
	local fresh=$scratch/mpi4py
	mkdir -p "$fresh/unpacked"
	"${pip[@]}" download --no-deps --require-hashes --no-binary :all: --no-build-isolation \
		--dest "$fresh" -r "$here/mpi/mpi4py-source.txt"
	tar -C "$fresh/unpacked" --strip-components=1 --no-same-owner -xzf "$fresh"/mpi4py-*.tar.gz
	[[ -f $fresh/unpacked/test/main.py ]]
	replace_dir "$fresh/unpacked" "$build/mpi4py/src"
}

# check_mpis: two ranks say hello under each MPI, and under mpi4py with the two that it is used with.
check_mpis() {
	local name library hello=$scratch/hello
	mkdir -p "$hello"
	for name in "${mpi_names[@]}"; do
		echo "== $name"
		mpi_compile "$name" "$here/hello.c" "$hello/$name"
		mpi_two_ranks "$name" "$hello/$name" >"$hello/$name.out"
		cat "$hello/$name.out"
		grep -q '^rank 0 of 2: ' "$hello/$name.out"
		grep -q '^rank 1 of 2: ' "$hello/$name.out"
	done
	# libmpi.so itself is a linker script in these wheels.
	for library in openmpi5/lib/libmpi.so.40 mpich5/lib/libmpi.so.12; do
		name=${library%%/*}
		echo "== mpi4py over $name"
		MPI4PY_LIBMPI=$mpi_dir/$library mpi_two_ranks "$name" \
			"$venv/bin/python" -c 'from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
if MPI.COMM_WORLD.rank == 0:
    print("sum", total)' | tee "$hello/mpi4py.out"
		grep -qx 'sum 3' "$hello/mpi4py.out"
	done
	touch "$mpi_dir/.checked"
}

mpi_steps() {
	step mpi "MPI prefixes" "$mpi_dir/impi/bin/mpirun" \
		"$(mpi_key openmpi5)$(mpi_key mpich5)$(mpi_key impi)" make_mpis
	step mpi4py "mpi4py sources" "$build/mpi4py/src/test/main.py" \
		"$(hash_of "$here/mpi/mpi4py-source.txt")" make_mpi4py_source
	step mpi-check "MPI check" "$mpi_dir/.checked" \
		"$(hash_of "$here/hello.c" "$here/mpi.sh" "$here/programs.sh" "$here"/mpi/*.txt \
			"$here/apt-packages.txt" "$here/requirements.txt")" check_mpis
}
