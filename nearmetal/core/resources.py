# SPDX-License-Identifier: Apache-2.0
"""Files that come with the package: manual pages, examples, the guest, the schema."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
"""The checkout that this package runs from, where its build/ lies; elsewhere a folder without one."""


def share(*names: str) -> Path:
    """Return the path of a file or folder below nearmetal/share."""
    return Path(str(resources.files("nearmetal"))).joinpath("share", *names)
