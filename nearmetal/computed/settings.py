# SPDX-License-Identifier: Apache-2.0
"""The settings of the service, and the file of its credentials."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from nearmetal.config.explain import load_yaml
from nearmetal.config.model import AbsolutePath, Model, Size
from nearmetal.core.errors import PasswordError

SETTINGS = Path("/etc/nearmetal/computed.yaml")
WHAT = "the settings of nearmetal-computed"

MAX_PARTS = 256
"""Parts of a segment; its layout has no more."""


class ComputedSettings(Model):
    """The settings; nearmetal-computed(1) describes them."""

    version: Literal[1]
    cloud: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        description="name of the credentials in `clouds`"
    )
    clouds: AbsolutePath = Field(
        default="/etc/nearmetal/clouds.yaml",
        description="clouds.yaml with credentials that may read the servers of all projects",
    )
    parts: Annotated[int, Field(ge=2, le=MAX_PARTS)] = Field(
        default=8, description="servers of one group on this hypervisor that get a part"
    )
    memory: Size = Field(default=4 << 30, description="memory of all segments together")
    project_memory: Size | None = Field(
        default=None, description="of the segments of one project; default: half of `memory`"
    )
    libvirt: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        default="qemu:///system", description="URI of libvirt"
    )

    @property
    def project_bound(self) -> int:
        """Bytes of the segments of one project."""
        return self.memory // 2 if self.project_memory is None else self.project_memory


def read_settings(path: Path) -> ComputedSettings:
    """Read the settings; raises NearmetalError or SpecError."""
    return load_yaml(path, ComputedSettings, WHAT)[0]


def check_private(path: Path) -> None:
    """Raise PasswordError unless only root, or the user that we are, may read and write a file."""
    hint = f"as root: chown root {path} && chmod 600 {path}"
    try:
        found = path.lstat()
    except OSError as error:
        raise PasswordError(f"cannot read {path}: {error.strerror}", hint) from error
    if not stat.S_ISREG(found.st_mode):
        raise PasswordError(f"{path} is not a regular file", "write the credentials themselves")
    if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & 0o077:
        raise PasswordError(f"other users may read or write {path}", hint)
