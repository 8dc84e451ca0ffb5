# SPDX-License-Identifier: Apache-2.0
"""The profile of an application: its MPI calls with numbers, sizes and times. All are frozen."""

from __future__ import annotations

from dataclasses import dataclass

POINT_TO_POINT = "point-to-point"
"""Group of all calls that send, receive or wait: the sends have the sizes."""

LOCAL = "local"
"""Group of calls that exchange no messages, or only when the program starts or ends."""

_SEND_WORDS = (
    "Send Ssend Rsend Bsend Isend Issend Irsend Ibsend Sendrecv Sendrecv_replace Isendrecv "
    "Isendrecv_replace"
)
_SENDS = frozenset(_SEND_WORDS.split())
_WAIT_WORDS = (
    "Recv Irecv Mrecv Imrecv Probe Iprobe Mprobe Improbe Wait Waitall Waitany Waitsome Test Testall "
    "Testany Testsome"
)
_WAITS = frozenset(_WAIT_WORDS.split())
_COLLECTIVE_WORDS = (
    "Allgather Allgatherv Allreduce Alltoall Alltoallv Alltoallw Barrier Bcast Exscan Gather Gatherv "
    "Reduce Reduce_scatter Reduce_scatter_block Scan Scatter Scatterv"
)
_COLLECTIVES = frozenset(_COLLECTIVE_WORDS.split())
_ONE_SIDED = frozenset({"Put", "Get"})
_LOCAL_WORDS = (
    "Abort Address Buffer_attach Buffer_detach Cancel Cart_coords Cart_get Cart_map Cart_rank "
    "Cart_shift Cartdim_get Comm_compare Comm_get_name Comm_group Comm_rank Comm_remote_size "
    "Comm_set_name Comm_size Comm_test_inter Dims_create Finalize Finalized Get_address Get_count "
    "Get_elements Get_library_version Get_processor_name Get_version Init Init_thread Initialized "
    "Is_thread_main Pack Pack_size Pcontrol Query_thread Request_free Request_get_status "
    "Comm_call_errhandler Comm_create_errhandler Comm_create_keyval Comm_delete_attr Comm_free_keyval "
    "Comm_get_attr Comm_get_errhandler Comm_set_attr Comm_set_errhandler "
    "Test_cancelled Topo_test Unpack Wtick Wtime"
)
_LOCAL = frozenset(_LOCAL_WORDS.split())
_LOCAL_FAMILIES = ("Attr_", "Error", "Group_", "Info_", "Keyval_", "Op_", "Status_", "Type_")
_MAX_NAME = 40
MESSAGES = "messages"
"""Name of the call for all messages of a profile that does not know the calls."""


def group_of(call: str) -> str:
    """Return what a call is measured by: POINT_TO_POINT, a collective, LOCAL, or "": unknown.

    A collective that does not block counts as the one that does.
    """
    if call in _SENDS or call in _WAITS or call == MESSAGES:
        return POINT_TO_POINT
    blocking = call[1:2].upper() + call[2:] if call.startswith("I") else call
    for name in (call, blocking):
        if name in _COLLECTIVES or name in _ONE_SIDED:
            return name
    local = call in _LOCAL or call.startswith(_LOCAL_FAMILIES) or call.endswith("_init")
    return LOCAL if local else ""


def sends(call: str) -> bool:
    """Return whether the messages of a call count; those of a receive are counted at the sender."""
    return call not in _WAITS


def call_name(word: str) -> str:
    """Return the name of a call without `MPI_`, as it may appear in a message."""
    return word.removeprefix("MPI_")[:_MAX_NAME]


@dataclass(frozen=True)
class SizedCalls:
    """Calls of one size in bytes, as the benchmark of the call counts it; None: not known."""

    size: float | None
    count: float


@dataclass(frozen=True)
class CallUse:
    """One call, or one place that calls it: number of calls and time, summed over all ranks.

    `seconds` is None if the profile has no times.
    """

    call: str
    count: float
    seconds: float | None
    messages: tuple[SizedCalls, ...]
    line: int


@dataclass(frozen=True)
class Profile:
    """The calls of one run. `seconds` is the run time, summed over all ranks; None: not known."""

    file: str
    format: str
    ranks: int | None
    seconds: float | None
    calls: tuple[CallUse, ...]
    remarks: tuple[str, ...] = ()
