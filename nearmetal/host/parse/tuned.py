# SPDX-License-Identifier: Apache-2.0
"""Output of `tuned-adm active`, both streams: the profiles that are active. Pure.

The grammar is that of TuneD's source (tuned/admin/admin.py): several profiles stand in one line with
spaces between, and the one that is loaded after them is named there once more and in a line of its own.
Of a daemon that does not run it says so first, and then tells of the profile that it would begin with.
"""

from __future__ import annotations

import re

MAX_TEXT = 1 << 16

_NAMES = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?: [A-Za-z0-9][A-Za-z0-9_.-]{0,63}){0,15}"
_ACTIVE = re.compile(rf"^Current active profile: ({_NAMES})\s*$", re.MULTILINE)
_AFTERWARDS = re.compile(rf"^Current post-loaded profile: ({_NAMES})\s*$", re.MULTILINE)
_NONE = "No current active profile."


def parse_tuned(text: str) -> str | None:
    """Return the profiles that `tuned-adm profile` takes; "": none, None: tuned does not run."""
    text = text[:MAX_TEXT].strip()
    if text == _NONE:
        return ""
    active, afterwards = _ACTIVE.search(text), _AFTERWARDS.search(text)
    if active is None:
        return None
    last = afterwards[1] if afterwards else ""
    return active[1].removesuffix(last).strip() if last else active[1]
