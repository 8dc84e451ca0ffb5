# SPDX-License-Identifier: Apache-2.0
"""A lock that is interrupted after each call of the system leaves no file and is free again."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from signal import SIGTERM
from types import FrameType
from typing import Any

from nearmetal.core.errors import Interrupted
from nearmetal.core.lock import locked


class Signal:
    """Raises Interrupted after the n-th call of C code from the lock or pathlib."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename.endswith(("/lock.py", "/pathlib.py")):
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                raise Interrupted(SIGTERM)


def test_a_signal_after_any_call_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "it"
    places = 0
    for number in itertools.count():
        sys.setprofile(Signal(number))
        try:
            with locked(path, "it"):
                pass
        except Interrupted:
            places += 1
            assert not path.exists(), f"after call {number}"
            with locked(path, "it"):
                assert path.exists()
        else:
            break
        finally:
            sys.setprofile(None)
    assert places > 10
