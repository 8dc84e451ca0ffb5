# SPDX-License-Identifier: Apache-2.0
"""The user of a job's machines, and the files by which that user's tasks enter them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from nearmetal.core.errors import SlurmError
from nearmetal.core.files import replacing
from nearmetal.image.seed import SeedUser
from nearmetal.slurm.machines import PLACE, user_of


def account_of(uid: int) -> SeedUser:
    """Return a user as this node knows them. Raises SlurmError or RefusedError."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError as error:
        raise SlurmError(f"no user has the number {uid} on this node") from error
    return user_of(entry.pw_name, uid, entry.pw_gid, entry.pw_dir)


def give(name: str, text: str, uid: int, place: Path = Path(PLACE)) -> None:
    """Write a file that only the job's user may read."""
    with replacing(place / name, sync=False) as stream:
        os.fchown(stream.fileno(), uid, -1)
        stream.write(text.encode())
