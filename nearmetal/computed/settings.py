# SPDX-License-Identifier: Apache-2.0
"""The settings of the service, and the file of its credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from nearmetal.config.explain import load_yaml
from nearmetal.config.model import AbsolutePath, Model, Size
from nearmetal.core.errors import PasswordError
from nearmetal.core.files import check_private

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


def check_credentials(path: Path) -> None:
    """Raise PasswordError unless only root, or our user, may read and write the credentials."""
    check_private(path, PasswordError, others="other users", manual="nearmetal-computed(1)")
