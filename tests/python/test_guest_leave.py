# SPDX-License-Identifier: Apache-2.0
"""`nearmetal-guest leave` and `return`: the real unit and tool, with a segment that is a file."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.core.resources import share
from tests.python.seeds import seed_data
from tests.python.test_segment_tool import TOOL, machine, shown

if TYPE_CHECKING:
    from pathlib import Path

HELD = """#!/bin/sh
echo "$1" >>"$0.calls"
case $1 in freeze) echo 'part 1: slot 2 is in state run (pid 77)' >&2; exit 4 ;; esac
"""
"""A tool that says of each part that an endpoint holds it."""


@dataclass(frozen=True)
class Guest:
    """The guest unit with all its places below one directory."""

    folder: Path

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", self.folder / "nearmetal-guest", *args],
            capture_output=True,
            text=True,
            input=stdin,
            timeout=60,
            check=False,
        )

    @property
    def has_segment(self) -> bool:
        return (self.folder / "run" / "segment.conf").exists()

    def state(self) -> str:
        part: dict[str, Any] = shown(self.folder / "run" / "segment")["parts"][1]
        return str(part["state"]) if part["in_use"] else "unused"


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    unit, programs = share("guest", "unit"), tmp_path / "bin"
    text = (unit / "nearmetal-guest").read_text()
    places = {
        "lib=/usr/lib/nearmetal": f"lib={unit}",
        "etc=/etc/nearmetal": f"etc={tmp_path}",
        "run=/run/nearmetal": f"run={tmp_path}/run",
        "PATH=/usr/sbin:": f"PATH={programs}:/usr/sbin:",
        "/dev/console": f"{tmp_path}/console",
        "/dev/ttyS0": f"{tmp_path}/serial",
    }
    for fixed, ours in places.items():
        assert fixed in text
        text = text.replace(fixed, ours)
    (tmp_path / "nearmetal-guest").write_text(text)
    programs.mkdir()
    (programs / "nearmetal-segment").symlink_to(TOOL)
    (tmp_path / "run").mkdir()
    machine(tmp_path / "run" / "segment", 1)
    (tmp_path / "seed.json").write_text(seed_text())
    return Guest(tmp_path)


def seed_text(**more: Any) -> str:
    return json.dumps({**seed_data(), "segment": None, **more})


def test_a_machine_leaves_once(guest: Guest) -> None:
    done = guest.run("leave", "5")
    assert (done.returncode, done.stdout) == (0, "segment: left\n"), done.stderr
    assert guest.state() == "frozen"
    assert not guest.has_segment
    again = guest.run("leave")
    assert (again.returncode, again.stdout) == (0, "segment: left before\n")


def test_a_machine_without_a_segment_has_left(guest: Guest) -> None:
    (guest.folder / "run" / "segment.conf").unlink()
    assert guest.run("leave").stdout == "segment: none\n"


def test_an_endpoint_that_stays_is_named_and_nothing_is_asked_any_more(guest: Guest) -> None:
    held = guest.folder / "bin" / "nearmetal-segment"
    held.unlink()
    held.write_text(HELD)
    held.chmod(0o755)
    done = guest.run("leave", "1")
    assert done.returncode == 4
    assert "after 1 s: part 1: slot 2 is in state run (pid 77)" in done.stderr
    calls = held.with_name("nearmetal-segment.calls").read_text().split()
    assert calls[0] == "quiesce"
    assert calls[-1] == "run"
    assert guest.has_segment


def test_a_process_that_has_the_segment_mapped_keeps_the_machine(guest: Guest) -> None:
    path = guest.folder / "run" / "segment"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        done = guest.run("leave", "1")
    assert done.returncode == 4
    assert f"still have the segment in their memory: {os.getpid()}" in done.stderr
    assert guest.has_segment
    assert guest.state() == "run"
    assert guest.run("leave").returncode == 0


@pytest.mark.parametrize("limit", ["-1", "1s", "1234567"])
def test_a_limit_that_is_no_number(guest: Guest, limit: str) -> None:
    done = guest.run("leave", limit)
    assert done.returncode == 2
    assert f"'{limit}' is not a number of seconds" in done.stderr
    assert guest.state() == "unused"


def test_a_return_without_a_segment(guest: Guest) -> None:
    """The new seed is taken; no trace of the segment that was left stays."""
    assert guest.run("leave").returncode == 0
    done = guest.run("return", stdin=seed_text(cluster="other"))
    assert (done.returncode, done.stdout) == (0, "segment: none\n"), done.stderr
    assert json.loads((guest.folder / "seed.json").read_text())["cluster"] == "other"
    assert not guest.has_segment
    assert not (guest.folder / "run" / "segment.left").exists()


def test_a_return_to_a_segment_that_is_not_there_says_so(guest: Guest) -> None:
    done = guest.run("return", stdin=json.dumps(seed_data()))
    assert done.returncode == 1
    assert "nearmetal: failed vm1: segment: no ivshmem device of" in done.stderr


def with_vf(mac: str) -> str:
    vf = {"mac": mac, "vf": {"pf": "ens1", "index": 1}}
    return seed_text(interfaces=[*seed_data()["interfaces"], vf])


def test_a_return_waits_for_the_vf_of_the_new_host_and_sets_it_up(guest: Guest) -> None:
    """The loopback device is up anyway; the interface of the node itself is not touched."""
    done = guest.run("return", stdin=with_vf("00:00:00:00:00:00"))
    assert (done.returncode, done.stdout) == (0, "segment: none\n"), done.stderr
    assert not (guest.folder / "run" / "interface").exists()


def test_a_return_without_the_vf_that_the_seed_names_fails(guest: Guest) -> None:
    done = guest.run("return", stdin=with_vf("02:00:00:00:00:99"))
    assert done.returncode == 1
    assert "no network interface has the address 02:00:00:00:00:99" in done.stderr


def test_a_bad_seed_changes_nothing(guest: Guest) -> None:
    before = (guest.folder / "seed.json").read_text()
    done = guest.run("return", stdin="{")
    assert done.returncode == 1
    assert "the new seed is no JSON document; nothing was changed" in done.stderr
    assert (guest.folder / "seed.json").read_text() == before
    assert guest.has_segment


def notice(guest: Guest) -> str:
    return (guest.folder / "run" / "network").read_text()


def test_the_network_is_left_after_the_segment(guest: Guest) -> None:
    (guest.folder / "run" / "network").write_text("stay \n")
    done = guest.run("leave", "--network", "5")
    assert (done.returncode, done.stdout) == (0, "segment: left\nnetwork: left\n"), done.stderr
    assert notice(guest) == "leave\n"
    again = guest.run("leave", "--network")
    assert again.stdout == "segment: left before\nnetwork: left\n"
    done = guest.run("return")
    assert done.returncode == 0, done.stderr
    assert notice(guest) == "stay \n"


def test_a_process_that_keeps_its_network_is_named_and_the_machine_stays(guest: Guest) -> None:
    path = guest.folder / "run" / "network"
    path.write_text("stay \n")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        done = guest.run("leave", "--network", "1")
        assert done.returncode == 4
        assert f"after 1 s: processes still use the network: {os.getpid()} " in done.stderr
        assert notice(guest) == "stay \n"
    assert guest.has_segment
    assert guest.state() == "run"
    assert guest.run("leave", "--network", "5").returncode == 0


def test_a_network_that_no_process_heeds_is_not_left(guest: Guest) -> None:
    done = guest.run("leave", "--network", "1")
    assert done.returncode == 1
    assert "`nearmetal-guest configure` makes it before jobs start" in done.stderr
    assert guest.has_segment
    assert guest.state() == "run"
