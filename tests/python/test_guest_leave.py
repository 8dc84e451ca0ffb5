# SPDX-License-Identifier: Apache-2.0
"""`nearmetal-guest leave` and `return`: the real unit and tool, with a segment that is a file."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
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


MAC = "02:00:00:00:00:99"
MOVED = f"""
mount -t sysfs sys /sys
plug() {{ ip link add "$1" address {MAC} type veth peer name "p$1" && ip link set "p$1" up; }}
unit() {{ sh ./nearmetal-guest "$@" <vf.json; }}
plug vf0
unit return
ip link set vf0 mtu 1400
ip address add 10.9.0.5/24 brd + dev vf0
ip address add 10.9.0.6/32 label vf0:a dev vf0
ip address add 10.7.0.1 peer 10.7.0.2 dev vf0
ip address add 10.6.0.1/24 noprefixroute dev vf0
ip address add 10.5.0.1/24 dev vf0 valid_lft 100 preferred_lft 90
ip address add fd00::5/64 nodad dev vf0
ip route add 10.4.0.0/16 dev vf0
ip route add default via 10.4.0.1 dev vf0 metric 50
ip route add 10.8.0.0/16 via 10.9.0.1 dev vf0 table 100
ip -6 route add default dev vf0 metric 7
ip -6 route add fd01::/64 via fd00::1 dev vf0
shown() {{
    ip -o address show dev "$1" permanent; ip -o -4 route show table all dev "$1"
    ip -o -6 route show table all dev "$1"; cat "/sys/class/net/$1/mtu"
}}
shown vf0 >before
unit leave
ip link delete vf0
plug new0
CHANGE
unit return
shown new0 >after
"""


def moved(guest: Guest, change: str = "") -> tuple[list[str], list[str]]:
    """What `ip` says of the VF before the move, and of the one at the other host."""
    (guest.folder / "vf.json").write_text(with_vf(MAC))
    subprocess.run(
        ["unshare", "-n", "-m", "sh", "-c", MOVED.replace("CHANGE", change)],
        cwd=guest.folder,
        check=True,
        timeout=120,
    )
    # Its number and its label are new.
    plain = re.compile(r"^\d+: \w+ +|vf0(:a)?\\|new0\\|tentative |linkdown ", re.MULTILINE)
    one, two = (
        plain.sub("", (guest.folder / name).read_text()).splitlines()
        for name in ("before", "after")
    )
    return one, two


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network devices need root")


@needs_root
def test_the_vf_of_the_new_host_has_what_users_gave_the_old_one(guest: Guest) -> None:
    """Addresses, routes of all tables and the MTU; what has a lifetime its giver gives again."""
    before, after = moved(guest)
    lost = [line for line in before if line not in after]
    assert lost
    assert all("10.5.0" in line for line in lost), lost
    assert len([line for line in after if "inet " in line]) == 4
    assert after[-1] == "1400"
    assert not list((guest.folder / "run").glob("vf.*"))


@needs_root
def test_what_the_new_vf_cannot_have_is_said_and_the_rest_is_set(guest: Guest) -> None:
    (guest.folder / "console").touch()
    _, after = moved(guest, f"sed -i 's/mtu 1400/mtu 99999/' run/vf.{MAC}")
    assert any("fd01::/64 via fd00::1" in line for line in after)
    assert after[-1] == "1500"
    words = f"warning vm1: interface new0 ({MAC}): not all is as it was: "
    assert words in (guest.folder / "console").read_text()
