# SPDX-License-Identifier: Apache-2.0
"""Two ranks exchange messages: the program that a launcher starts twice, for any MPI.

Usage: hello.py LIBMPI. It needs no compiler: it calls the MPI's own library, whose constants are
those of its binary interface. It uses the standard library alone.
"""

from __future__ import annotations

import ctypes
import sys

RANKS = 2
_SIZES = (8, 1 << 20)
_ROUNDS = 100
_TAG = 7


class _Mpi:
    """The constants of an MPI: those of Open MPI are addresses, those of MPICH's family numbers."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take the constants of the loaded library."""
        self.status: ctypes.c_void_p
        self.world: ctypes.c_void_p | ctypes.c_int
        self.byte: ctypes.c_void_p | ctypes.c_int
        if hasattr(library, "ompi_mpi_comm_world"):
            self.world = _address(library, "ompi_mpi_comm_world")
            self.byte = _address(library, "ompi_mpi_byte")
            self.status = ctypes.c_void_p(0)
        else:
            self.world, self.byte = ctypes.c_int(0x44000000), ctypes.c_int(0x4C00010D)
            self.status = ctypes.c_void_p(1)


def _address(library: ctypes.CDLL, name: str) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, name)))


def _number(function: object, world: object) -> int:
    value = ctypes.c_int(-1)
    function(world, ctypes.byref(value))  # type: ignore[operator] # a function of a foreign library
    return value.value


def _exchange(library: ctypes.CDLL, mpi: _Mpi, rank: int) -> bool:
    """Send and receive messages of each size; return whether all arrived whole."""
    peer = 1 - rank
    for size in _SIZES:
        for number in range(_ROUNDS):
            sent = ctypes.create_string_buffer(bytes([number, rank]) * (size // 2), size)
            got = ctypes.create_string_buffer(size)
            code = library.MPI_Sendrecv(
                *(sent, size, mpi.byte, peer, _TAG),
                *(got, size, mpi.byte, peer, _TAG, mpi.world, mpi.status),
            )
            if code != 0 or got.raw != bytes([number, peer]) * (size // 2):
                return False
    return True


def main(path: str) -> int:
    """Run one rank; returns its exit code."""
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library.MPI_Init(None, None)
    mpi = _Mpi(library)
    ranks = _number(library.MPI_Comm_size, mpi.world)
    if ranks != RANKS:
        sys.stderr.write(f"hello: {ranks} ranks found each other, not {RANKS}\n")
        return 1
    good = _exchange(library, mpi, _number(library.MPI_Comm_rank, mpi.world))
    library.MPI_Finalize()
    if not good:
        sys.stderr.write("hello: a message was damaged or lost\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
