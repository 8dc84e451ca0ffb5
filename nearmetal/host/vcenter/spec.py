# SPDX-License-Identifier: Apache-2.0
"""Address and trust of a vCenter. A spec gives the place of a secret, never the secret."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.config.model import AbsolutePath, Model, shaped
from nearmetal.config.password import PasswordSource

Server = Annotated[
    str,
    shaped(
        r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?",
        "is not a host name|write only the name or address, for example vcenter.example.org",
    ),
]
Thumbprint = Annotated[
    str,
    shaped(
        r"([0-9a-fA-F]{2}:){31}[0-9a-fA-F]{2}",
        "is not a SHA-256 thumbprint|write 32 bytes as AB:CD:..., the output of "
        "openssl x509 -noout -fingerprint -sha256",
    ),
    AfterValidator(str.upper),
]


class Vcenter(Model):
    """A vCenter. By default the system's authorities verify its certificate."""

    server: Server = Field(description="name or address of the vCenter")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=443, description="port of its API")
    user: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="user of the login, for example administrator@vsphere.local"
    )
    password: PasswordSource = Field(
        default_factory=lambda: PasswordSource(env="VCENTER_PASSWORD"),
        description="place of the password",
    )
    ca_file: AbsolutePath | None = Field(
        default=None, description="file with authorities to use instead of those of the system"
    )
    thumbprint: Thumbprint | None = Field(
        default=None, description="SHA-256 of the only accepted certificate, with any signature"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.ca_file and self.thumbprint:
            raise ValueError("has both ca_file and thumbprint|keep one of them")
        return self
