# SPDX-License-Identifier: Apache-2.0
"""Where vCenter is and how it is trusted. A spec names where secrets lie; it never holds one."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.config.model import AbsolutePath, Model
from nearmetal.config.password import PasswordSource

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def _server(value: str) -> str:
    if not _HOST.fullmatch(value):
        msg = "is no host name|write the name or address alone, for example vcenter.example.org"
        raise ValueError(msg)
    return value


def _thumbprint(value: str) -> str:
    if not re.fullmatch(r"([0-9a-fA-F]{2}:){31}[0-9a-fA-F]{2}", value):
        msg = (
            "is no SHA-256 thumbprint|write 32 bytes as AB:CD:..., the output of "
            "openssl x509 -noout -fingerprint -sha256"
        )
        raise ValueError(msg)
    return value.upper()


class Vcenter(Model):
    """A vCenter. Its certificate is verified against the system's authorities by default."""

    server: Annotated[str, AfterValidator(_server)] = Field(description="its name or address")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=443, description="of its API")
    user: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="who logs in, for example administrator@vsphere.local"
    )
    password: PasswordSource = Field(
        default_factory=lambda: PasswordSource(env="VCENTER_PASSWORD"),
        description="where the password is found",
    )
    ca_file: AbsolutePath | None = Field(
        default=None,
        description="authorities to verify its certificate by, instead of the system's",
    )
    thumbprint: Annotated[str, AfterValidator(_thumbprint)] | None = Field(
        default=None, description="SHA-256 of the only accepted certificate, with any signature"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.ca_file and self.thumbprint:
            msg = "has both ca_file and thumbprint|keep the one by which it is to be trusted"
            raise ValueError(msg)
        return self
