# SPDX-License-Identifier: Apache-2.0
"""Passwords: where a file says they are, and finding them. No file for nearmetal holds one."""

from __future__ import annotations

import importlib
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.config.model import AbsolutePath, Model
from nearmetal.core.errors import PasswordError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 4096


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


def find_password(source: PasswordSource, user: str, environ: Mapping[str, str]) -> str:
    """Return the password; raises PasswordError that says where it was looked for."""
    if source.env is not None:
        value = environ.get(source.env, "")
        if not value:
            raise PasswordError(f"no password: {source.env} is not set", "export it, without echo")
        return value
    if source.file is not None:
        return _from_file(Path(source.file))
    return _from_keyring(source.keyring or "", user)


def _from_file(path: Path) -> str:
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags)
    except OSError as error:
        raise PasswordError(f"no password: cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PasswordError(
                f"no password: {path} is no file of yours", f"chown it, chmod 600 {path}"
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise PasswordError(f"no password: others may read {path}", f"chmod 600 {path}")
        raw = stream.read(MAX_BYTES + 1)
    text = raw.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
    if not text or len(raw) > MAX_BYTES or "\n" in text:
        raise PasswordError(f"no password: {path} does not hold one line", "write it alone there")
    return text


def _from_keyring(service: str, user: str) -> str:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError as error:
        hint = "install the Python package keyring, or name a file or a variable"
        raise PasswordError("no password: there is no keyring here", hint) from error
    try:
        value = keyring.get_password(service, user)
    except keyring.errors.KeyringError as error:
        hint = "unlock it, or name a file or a variable"
        raise PasswordError(f"no password: the keyring does not answer: {error}", hint) from error
    if not value:
        hint = f"keyring set {service} {user}"
        raise PasswordError(f"no password: the keyring has none for {service} and {user}", hint)
    return str(value)
