# SPDX-License-Identifier: Apache-2.0
"""Loads a libmpi, reports its version, libfabric and UCX: a program, as foreign code may crash it.

Usage: probe.py LIBMPI FABRICS. LIBMPI: the path of the MPI's library. FABRICS: a JSON list of files
that bring libfabric or UCX into the process, best first; only the first existing one is loaded. The
last line of the output is the report, as JSON. It uses the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_VERSION_BYTES = 1 << 16
"""MPI_MAX_LIBRARY_VERSION_STRING is 8192 at most in known MPIs."""

_MAX_INFOS = 4096
_API = (1 << 16) | 17
"""The version of libfabric's interface whose structures are declared below."""


class _FabricAttr(ctypes.Structure):
    """The begin of struct fi_fabric_attr."""

    _fields_ = (("fabric", ctypes.c_void_p), ("name", ctypes.c_char_p), ("prov", ctypes.c_char_p))


class _Info(ctypes.Structure):
    """The struct fi_info up to the attributes of its fabric."""


_Info._fields_ = [
    ("next", ctypes.POINTER(_Info)),
    ("caps", ctypes.c_uint64),
    ("mode", ctypes.c_uint64),
    ("addr_format", ctypes.c_uint32),
    ("src_addrlen", ctypes.c_size_t),
    ("dest_addrlen", ctypes.c_size_t),
    ("src_addr", ctypes.c_void_p),
    ("dest_addr", ctypes.c_void_p),
    ("handle", ctypes.c_void_p),
    ("tx_attr", ctypes.c_void_p),
    ("rx_attr", ctypes.c_void_p),
    ("ep_attr", ctypes.c_void_p),
    ("domain_attr", ctypes.c_void_p),
    ("fabric_attr", ctypes.POINTER(_FabricAttr)),
]


def _mapped(pattern: str) -> Iterator[str]:
    """Yield the files in this process whose name matches."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and re.fullmatch(pattern, path[0].rpartition("/")[2]):
            yield path[0]


def _providers(fabric: ctypes.CDLL) -> list[str]:
    """Return the names of the providers that libfabric offers here, in its order."""
    first = ctypes.POINTER(_Info)()
    fabric.fi_getinfo.argtypes = [
        ctypes.c_uint32,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.POINTER(_Info)),
    ]
    if fabric.fi_getinfo(_API, None, None, 0, None, ctypes.byref(first)) != 0:
        return []
    names: dict[str, None] = {}
    info = first
    for _ in range(_MAX_INFOS):
        if not info:
            break
        names[info.contents.fabric_attr.contents.prov.decode("utf-8", "replace")] = None
        info = info.contents.next
    return list(names)


def _report(library: str, fabrics: list[str]) -> dict[str, Any]:
    mpi = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    text, length = ctypes.create_string_buffer(_VERSION_BYTES), ctypes.c_int()
    mpi.MPI_Get_library_version(text, ctypes.byref(length))
    report: dict[str, Any] = {
        "version": text.value.decode("utf-8", "replace"),
        "mtl_ofi": hasattr(mpi, "mca_mtl_ofi_component"),
        "pml_ucx": hasattr(mpi, "mca_pml_ucx_component"),
        "ucx": "",
        "ucx_version": [],
        "libfabric": "",
        "fabric_version": [],
        "providers": [],
        "provider": "",
    }
    # A component of Open MPI, or the libfabric that the MPI loads when it starts.
    loaded = next((path for path in fabrics if "/" not in path or Path(path).exists()), None)
    if loaded is not None:
        component = ctypes.CDLL(loaded, mode=ctypes.RTLD_GLOBAL)
        report["mtl_ofi"] = report["mtl_ofi"] or hasattr(component, "mca_mtl_ofi_component")
    found = next(
        _mapped(r"libfabric\.so(\.[0-9]+)*"), library if hasattr(mpi, "fi_version") else ""
    )
    if found:
        fabric = ctypes.CDLL(found)
        fabric.fi_version.restype = ctypes.c_uint32
        version = fabric.fi_version()
        report["libfabric"] = found
        report["fabric_version"] = [version >> 16, version & 0xFFFF]
        report["providers"] = _providers(fabric)
        report["provider"] = next(_mapped(r"libnearmetal-fi\.so.*"), "")
    if ucp := next(_mapped(r"libucp\.so(\.[0-9]+)*"), ""):
        numbers = [ctypes.c_uint() for _ in range(3)]
        ctypes.CDLL(ucp).ucp_get_version(*map(ctypes.byref, numbers))
        report["ucx"], report["ucx_version"] = ucp, [number.value for number in numbers]
    return report


if __name__ == "__main__":
    print("\n" + json.dumps(_report(sys.argv[1], json.loads(sys.argv[2]))))  # noqa: T201 - its result
