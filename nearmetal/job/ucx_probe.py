# SPDX-License-Identifier: Apache-2.0
"""Loads a UCX and reports its version and components: a program, as foreign code may crash it.

Usage: ucx_probe.py. LD_LIBRARY_PATH and UCX_PLUGIN_PATH say which libraries. The last line of the
output is the report, as JSON. It uses the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

_MAX_COMPONENTS = 256
_NAME = 1
"""UCT_COMPONENT_ATTR_FIELD_NAME."""


class _Attr(ctypes.Structure):
    """The begin of uct_component_attr_t, with room for the fields that newer versions add."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 16),
        ("rest", ctypes.c_char * 1024),
    )


def _components() -> list[str]:
    uct = ctypes.CDLL("libuct.so.0", mode=ctypes.RTLD_GLOBAL)
    first, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint()
    if uct.uct_query_components(ctypes.byref(first), ctypes.byref(count)) != 0:
        return []
    names = []
    for i in range(min(count.value, _MAX_COMPONENTS)):
        attr = _Attr(field_mask=_NAME)
        if uct.uct_component_query(ctypes.c_void_p(first[i]), ctypes.byref(attr)) == 0:
            names.append(attr.name.decode("utf-8", "replace"))
    return names


def _report() -> dict[str, Any]:
    ucp = ctypes.CDLL("libucp.so.0", mode=ctypes.RTLD_GLOBAL)
    numbers = [ctypes.c_uint() for _ in range(3)]
    ucp.ucp_get_version(*map(ctypes.byref, numbers))
    return {"version": [number.value for number in numbers], "components": _components()}


if __name__ == "__main__":
    print("\n" + json.dumps(_report()))  # noqa: T201 - its result
