# SPDX-License-Identifier: Apache-2.0
"""Where a password is found. No file that a person writes for nearmetal ever holds one."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.spec.model import AbsolutePath, Model


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", value):
        msg = "is no variable|write its name, without $"
        raise ValueError(msg)
    return value


class PasswordSource(Model):
    """Where the password is found. Exactly one of the three."""

    env: Annotated[str, AfterValidator(_variable)] | None = Field(
        default=None, description="an environment variable"
    )
    file: AbsolutePath | None = Field(
        default=None, description="your file with the password, with mode 0600"
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
