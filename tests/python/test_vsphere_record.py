# SPDX-License-Identifier: Apache-2.0
"""The record of standard switches: what it holds, what it drops, what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearmetal.backend.vsphere.record import NAME, SwitchRecord
from nearmetal.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path


def test_switches_and_groups_are_claimed_and_released(tmp_path: Path) -> None:
    record = SwitchRecord(tmp_path / "cluster")
    assert record.groups("s", "h") is None
    record.claim("s", "h", [])
    assert record.groups("s", "h") == []
    record.claim("s", "h", ["b"])
    record.claim("s", "h", ["a", "b"])
    record.claim("s", "i", ["a"])
    assert SwitchRecord(tmp_path / "cluster").read() == {"s": {"h": ["a", "b"], "i": ["a"]}}
    record.release("s", "h", "a")
    assert record.groups("s", "h") == ["b"]
    record.release("s", "h")
    record.release("s", "nowhere")
    assert record.read() == {"s": {"i": ["a"]}}
    record.release("s", "i")
    assert not (tmp_path / "cluster" / NAME).exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"s": []}', '{"s": {"h": "a"}}', '{"s": {"h": [1]}}']
)
def test_a_torn_record_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BackendError, match="cannot be read") as caught:
        SwitchRecord(tmp_path).read()
    assert str(tmp_path / NAME) in caught.value.message


def test_a_record_cut_short_while_it_is_written_is_the_old_one(tmp_path: Path) -> None:
    record = SwitchRecord(tmp_path)
    record.claim("s", "h", ["a"])
    (tmp_path / (NAME + ".new")).write_text('{"s": ')
    assert record.read() == {"s": {"h": ["a"]}}
    record.claim("s", "h", ["b"])
    assert record.groups("s", "h") == ["a", "b"]
