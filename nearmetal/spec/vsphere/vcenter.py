# SPDX-License-Identifier: Apache-2.0
"""Where vCenter is and how it is trusted. A spec names where secrets lie; it never holds one."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.spec.model import AbsolutePath, Model
from nearmetal.spec.vsphere.names import shaped

_VARIABLE = shaped(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "is no variable|write its name, without $")
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


class PasswordSource(Model):
    """Where the password is found. Exactly one of the three."""

    env: Annotated[str, _VARIABLE] | None = Field(
        default=None, description="an environment variable"
    )
    file: AbsolutePath | None = Field(
        default=None, description="a file of yours that nobody else may read (mode 0600)"
    )
    keyring: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="a service of the keyring, looked up with the user's name"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            msg = "would hold a secret|write where it is: {env: NAME}, {file: /path}, {keyring: S}"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(place is not None for place in (self.env, self.file, self.keyring)) != 1:
            msg = "names no place, or several|write one of env, file and keyring"
            raise ValueError(msg)
        return self


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
        default=None, description="SHA-256 of the one certificate to accept, whoever signed it"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.ca_file and self.thumbprint:
            msg = "has both ca_file and thumbprint|keep the one by which it is to be trusted"
            raise ValueError(msg)
        return self
