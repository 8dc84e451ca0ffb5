# SPDX-License-Identifier: Apache-2.0
"""Another machine that answers questions about its VFs, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from nearmetal.core.process import Command, Completed
from nearmetal.host.vf import VfHost
from nearmetal.host.vf.distant import DistantVfHost, answer


def completed(argv: Sequence[str], code: int = 0, out: bytes = b"", err: bytes = b"") -> Completed:
    return Completed(Command(tuple(argv)), code, out, err, 0.0)


def another(host: VfHost, name: str = "h2") -> DistantVfHost:
    """Return the VFs of a host as another machine sees them: questions and answers are bytes."""

    def ask(argv: Sequence[str], text: bytes) -> Completed:
        return completed(argv, out=answer(text, host).encode())

    return DistantVfHost(name, ask)
