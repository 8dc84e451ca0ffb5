# SPDX-License-Identifier: Apache-2.0
"""Passwords by reference: a file names the place of a password, and never contains it."""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from nearmetal.config.model import AbsolutePath, Model
from nearmetal.core.errors import PasswordError
from nearmetal.core.log import keep_secret

MAX_BYTES = 4096


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", value):
        raise ValueError("is not a variable|write its name, without $")
    return value


class PasswordSource(Model):
    """The place of a password: exactly one of the three."""

    env: Annotated[str, AfterValidator(_variable)] | None = Field(
        default=None, description="name of an environment variable"
    )
    file: AbsolutePath | None = Field(
        default=None, description="path of your file with the password, of mode 0600"
    )
    keyring: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="service in the keyring, looked up with the user name"
    )

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(
                "would hold a secret|name its place: {env: NAME}, {file: /path} or {keyring: S}"
            )
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(place is not None for place in (self.env, self.file, self.keyring)) != 1:
            raise ValueError("needs one place|write one of env, file and keyring")
        return self


def find_password(source: PasswordSource, user: str, environ: Mapping[str, str]) -> str:
    """Return the password, which no log will show; raises PasswordError with the place."""
    value = _found(source, user, environ)
    keep_secret(value)
    return value


def _found(source: PasswordSource, user: str, environ: Mapping[str, str]) -> str:
    if source.env is not None:
        value = environ.get(source.env, "")
        if not value:
            raise PasswordError(
                f"no password: {source.env} is not set", "export it in a way that does not show it"
            )
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
                f"no password: {path} is not a file of yours", f"chown it, chmod 600 {path}"
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise PasswordError(f"no password: other users may read {path}", f"chmod 600 {path}")
        raw = stream.read(MAX_BYTES + 1)
    text = raw.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
    if not text or len(raw) > MAX_BYTES or "\n" in text:
        raise PasswordError(
            f"no password: {path} does not hold one line", "write only the password there"
        )
    return text


def _from_keyring(service: str, user: str) -> str:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError as error:
        hint = "install the Python package keyring, or name a file or a variable"
        raise PasswordError("no password: this machine has no keyring", hint) from error
    try:
        value = keyring.get_password(service, user)
    except keyring.errors.KeyringError as error:
        hint = "unlock it, or name a file or a variable"
        raise PasswordError(f"no password: the keyring does not answer: {error}", hint) from error
    if not value:
        hint = f"keyring set {service} {user}"
        raise PasswordError(
            f"no password: the keyring has none for service {service} and user {user}", hint
        )
    return str(value)
