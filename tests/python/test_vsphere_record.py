# SPDX-License-Identifier: Apache-2.0
"""The record of standard switches: what it holds, what it drops, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nearmetal.cluster.backends.vsphere.record import NAME, Center, SwitchRecord
from nearmetal.core.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path

HERE = Center("vc1", "0a-1")


def test_switches_and_groups_are_claimed_and_released(tmp_path: Path) -> None:
    record = SwitchRecord(tmp_path / "cluster", HERE)
    assert record.groups("s", "h") is None
    record.claim("s", "h", [])
    assert record.groups("s", "h") == []
    record.claim("s", "h", ["b"])
    record.claim("s", "h", ["a", "b"])
    record.claim("s", "i", ["a"])
    assert SwitchRecord(tmp_path / "cluster", HERE).read() == {"s": {"h": ["a", "b"], "i": ["a"]}}
    record.release("s", "h", "a")
    assert record.groups("s", "h") == ["b"]
    record.release("s", "h")
    record.release("s", "nowhere")
    assert record.read() == {"s": {"i": ["a"]}}
    record.release("s", "i")
    assert not (tmp_path / "cluster" / NAME).exists()


def whole(switches: str, vcenter: str = '{"server": "vc1", "uuid": "0a-1"}') -> str:
    return f'{{"vcenter": {vcenter}, "switches": {switches}}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"s": {"h": ["a"]}}',
        whole("[]"),
        whole('{"s": []}'),
        whole('{"s": {"h": "a"}}'),
        whole('{"s": {"h": [1]}}'),
        whole("{}", '"vc1"'),
        whole("{}", '{"server": "vc1"}'),
        whole("{}", '{"server": "vc1", "uuid": null}'),
    ],
)
def test_a_torn_record_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(BackendError, match="cannot be read") as caught:
        SwitchRecord(tmp_path, HERE).read()
    assert str(tmp_path / NAME) in caught.value.message


def test_a_record_cut_short_while_it_is_written_is_the_old_one(tmp_path: Path) -> None:
    record = SwitchRecord(tmp_path, HERE)
    record.claim("s", "h", ["a"])
    (tmp_path / "switches.json.new").write_text('{"vcenter": ')
    assert record.read() == {"s": {"h": ["a"]}}
    record.claim("s", "h", ["b"])
    assert record.groups("s", "h") == ["a", "b"]


def test_a_record_of_another_vcenter_is_told_with_both(tmp_path: Path) -> None:
    SwitchRecord(tmp_path, HERE).claim("s", "h", ["a"])
    assert json.loads((tmp_path / NAME).read_text())["vcenter"] == {"server": "vc1", "uuid": "0a-1"}
    moved = SwitchRecord(tmp_path, Center("vc1.lab", "0a-1"))
    assert moved.groups("s", "h") == ["a"]
    other = SwitchRecord(tmp_path, Center("vc2", "0a-2"))
    with pytest.raises(BackendError) as caught:
        other.claim("t", "h", [])
    assert "is of vCenter vc1 (instance 0a-1)" in caught.value.message
    assert "the spec's is vc2 (instance 0a-2)" in caught.value.message
    assert "write vc1 under vcenter again" in caught.value.hint
    assert moved.read() == {"s": {"h": ["a"]}}


WATCHED = """
import os, sys
from pathlib import Path
from nearmetal.cluster.backends.vsphere.record import Center, SwitchRecord

place = Path(sys.argv[1])
record = SwitchRecord(place, Center("vc1", "0a-1"))

def watch(event, details):
    names = [str(one) for one in details[:2]]
    if event in ("os.rename", "os.remove") or (event == "open" and names[0] == str(place)):
        print(event, *(Path(one).name for one in names[:1]), flush=True)

sys.addaudithook(watch)
record.claim("s", "h", [])
record.release("s", "h")
"""


def test_a_change_is_on_the_disk_with_its_place_in_the_directory(tmp_path: Path) -> None:
    """Without the directory's own write a crash brings the file of before back."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path)], check=True, capture_output=True, text=True
    )
    told = [line for line in done.stdout.splitlines() if line != "os.remove switches.json.new"]
    place = f"open {tmp_path.name}"
    assert told == ["os.rename switches.json.new", place, "os.remove switches.json", place]
