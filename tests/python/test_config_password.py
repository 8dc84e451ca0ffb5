# SPDX-License-Identifier: Apache-2.0
"""Passwords from where a file says they are."""

from __future__ import annotations

import os
import stat
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nearmetal.config.password import PasswordSource, find_password
from nearmetal.core.errors import PasswordError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_password_comes_from_a_variable() -> None:
    source = PasswordSource(env="P")
    assert find_password(source, "u", {"P": "secret"}) == "secret"
    with pytest.raises(PasswordError, match="P is not set"):
        find_password(source, "u", {})


def test_a_password_comes_from_a_file_that_nobody_else_may_read(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    source = PasswordSource(file=str(path))
    assert find_password(source, "u", {}) == "secret"
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(PasswordError, match="other users may read") as caught:
            find_password(source, "u", {})
        assert "chmod 600" in caught.value.hint
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize("text", ["", "\n", "a\nb\n", "x" * 5000])
def test_a_password_file_holds_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "password"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(PasswordError, match="does not hold one line"):
        find_password(PasswordSource(file=str(path)), "u", {})


def test_a_password_file_may_have_been_written_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b"secret\r\n")
    path.chmod(0o600)
    assert find_password(PasswordSource(file=str(path)), "u", {}) == "secret"


def test_a_pipe_is_no_password_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(PasswordError, match="is not a file of yours"):
        find_password(PasswordSource(file=str(tmp_path / "pipe")), "u", {})


def test_a_link_to_a_password_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "password")
    with pytest.raises(PasswordError, match="cannot read"):
        find_password(PasswordSource(file=str(tmp_path / "link")), "u", {})


def locked(service: str, user: str) -> str:
    msg = f"{service} of {user} is locked"
    raise LookupError(msg)


def test_a_password_comes_from_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("keyring")
    fake.get_password = lambda service, user: {("s", "u"): "secret"}.get((service, user))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", fake)
    assert find_password(PasswordSource(keyring="s"), "u", {}) == "secret"
    with pytest.raises(PasswordError, match="has none for service s and user v"):
        find_password(PasswordSource(keyring="s"), "v", {})
    fake.errors = SimpleNamespace(KeyringError=LookupError)  # type: ignore[attr-defined]
    fake.get_password = locked  # type: ignore[attr-defined]
    with pytest.raises(PasswordError, match="the keyring does not answer: s of u is locked"):
        find_password(PasswordSource(keyring="s"), "u", {})
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(PasswordError, match="this machine has no keyring"):
        find_password(PasswordSource(keyring="s"), "u", {})
