# SPDX-License-Identifier: Apache-2.0
"""Garbage in every knob: one line says which knob, which value, and what is allowed."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.faults.arena import Arena, exchange
from tests.system.faults.peer import BUILD, PATIENCE_S

pytestmark = pytest.mark.system

INFO = BUILD / "src" / "tools" / "nearmetal-info"
ENODATA = "61"

Knob = dict[str, Any]


def info(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INFO, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def knobs() -> list[Knob]:
    """Return the table as the code itself tells it."""
    result: list[Knob] = json.loads(info("--abi", "--json").stdout)["knobs"]
    return result


def garbage(knob: Knob) -> Iterator[str]:
    """Values of which none is allowed."""
    if knob["kind"] == "LEVEL":
        yield from ("loud", "WARN", "3", "warn ")
    elif knob["kind"] == "UINT":
        yield from ("many", "-1", "+1", "1.5", "0x10", " 16", "16 ", "16KB", "1k", "9" * 30)
        yield str(knob["max"] + 1)
        if knob["min"] > 0:
            yield str(knob["min"] - 1)
        if knob["power_of_two"]:
            yield str(knob["min"] + 1)
    else:
        yield from ("a\nb", "\x1b[31m", "x" * 256)
        yield from TEXTS.get(knob["name"], ())


TEXTS = {
    "NEARMETAL_CHANNELS": ("smh", "self,,net", ",", "self;shm", "SHM", "self, shm", "none"),
    "NEARMETAL_RUNDIR": ("relative/path", "~/here", "."),
    "NEARMETAL_NET": ("tcp,,verbs", ",", "tcp verbs", "t!p"),
}


def test_the_table_lists_every_kind() -> None:
    assert {knob["kind"] for knob in knobs()} == {"UINT", "TEXT", "LEVEL"}
    assert len(knobs()) > 10


@pytest.mark.parametrize("knob", knobs(), ids=lambda knob: str(knob["name"]))
def test_every_wrong_value_is_named(knob: Knob) -> None:
    for value in garbage(knob):
        done = info(**{knob["name"]: value})
        assert done.returncode != 0, f"{value!r} was taken"
        lines = [line for line in done.stderr.splitlines() if knob["name"] in line]
        assert len(lines) == 1, done.stderr
        assert "is not allowed: give " in lines[0]
        shown = "".join(c if c.isprintable() else "?" for c in value)[:40]
        assert f"='{shown}" in lines[0]
        if knob["kind"] == "UINT":
            assert f"from {knob['min']} to {knob['max']}" in lines[0]


@pytest.mark.parametrize("knob", knobs(), ids=lambda knob: str(knob["name"]))
def test_the_limits_themselves_are_allowed(knob: Knob) -> None:
    values = [str(knob["min"]), str(knob["max"])] if knob["kind"] == "UINT" else [knob["default"]]
    for value in values:
        done = info(**{knob["name"]: value})
        assert done.returncode == 0, done.stderr
        assert knob["name"] not in done.stderr


def test_no_endpoint_is_offered_with_garbage_in_a_knob(arena: Arena) -> None:
    wrong = {knob["name"]: next(garbage(knob)) for knob in knobs()}
    peers = {
        name: arena.start(name, {name.removeprefix("NEARMETAL_"): value})
        for name, value in wrong.items()
    }
    for peer in peers.values():
        peer.tell("open")
    for name, peer in peers.items():
        # What the provider itself says (FI_EINVAL) libfabric keeps: it offers nothing.
        assert peer.expect("failed", "open")[0] == ENODATA, name
        assert len(peer.log_lines) == 1, peer.log
        assert name in peer.log_lines[0]
        assert "is not allowed: give " in peer.log_lines[0]


def test_a_network_that_nobody_knows_is_one_warning(arena: Arena) -> None:
    a, b = arena.pair(NET="carrier-pigeon")
    exchange(a, b)
    assert a.finish() == 0
    assert a.way_to(b)["channel"] == "shm"
    (line,) = a.log_lines
    assert "carrier-pigeon" in line
    assert "NEARMETAL_NET" in line


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("NEARMETAL_SPIN_U", "NEARMETAL_SPIN_US"),
        ("NEARMETAL_CHANNEL", "NEARMETAL_CHANNELS"),
        ("NEARMETAL_RUNDRI", "NEARMETAL_RUNDIR"),
        ("NEARMETAL_POOLSIZE", "NEARMETAL_POOL_SIZE"),
    ],
)
def test_a_knob_that_is_misspelled_is_a_warning_with_the_right_name(
    name: str, nearest: str
) -> None:
    done = info(**{name: "1"})
    assert done.returncode == 0
    (line,) = (line for line in done.stderr.splitlines() if name in line)
    assert f"did you mean {nearest}?" in line


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("NEARMETAL_SEGMENT_DIR", "NEARMETAL_RUNDIR"),
        ("NEARMETAL_BOX_SLOTS", "NEARMETAL_RING_SLOTS"),
    ],
)
def test_a_former_name_is_a_warning_with_the_present_one(former: str, name: str) -> None:
    done = info(**{former: "64"})
    assert done.returncode == 0
    (line,) = (line for line in done.stderr.splitlines() if former in line)
    assert f"{former} has no effect: the knob is now named {name}" in line


def test_other_variables_of_the_product_are_none_of_its_business() -> None:
    done = info(NEARMETAL_STATE_DIR="/tmp/x", NEARMETAL_QUITE_SOMETHING_ELSE="1")
    assert done.returncode == 0
    assert not done.stderr
