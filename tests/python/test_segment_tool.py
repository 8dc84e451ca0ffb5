# SPDX-License-Identifier: Apache-2.0
"""nearmetal-segment: files are made once, complete, and shown as they are."""

from __future__ import annotations

import json
import stat
import struct
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nearmetal.core.resources import tool
from tests.python.moving_tables import PLACES, WAYS, Place, as_names

if TYPE_CHECKING:
    from pathlib import Path

TOOL = tool("nearmetal-info").with_name("nearmetal-segment")
MIB = 1 << 20
TOKEN = "00112233445566778899aabbccddeeff"


def run(*args: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOL, *args], capture_output=True, text=True, input=stdin, check=False, timeout=60
    )


def create(path: Path, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run("create", path, "--parts", "3", "--part-size", "2M", *args, stdin=stdin)


def shown(path: Path) -> dict[str, Any]:
    done = run("show", path, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def abi() -> dict[str, Any]:
    told = subprocess.run(
        [tool("nearmetal-info"), "--abi"], capture_output=True, check=True, timeout=60
    )
    agreed: dict[str, Any] = json.loads(told.stdout)
    return agreed


def test_what_was_made_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    done = create(path, "--token", TOKEN)
    assert (done.returncode, done.stderr) == (0, "")
    assert TOKEN in done.stdout
    status = path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == 8 * MIB
    assert list(tmp_path.iterdir()) == [path]
    told = shown(path)
    assert told["token"] == TOKEN
    assert told["file_size"] == status.st_size
    assert told["part_off"] == 2 * MIB
    assert told["size"] == 2 * MIB + 3 * 2 * MIB
    assert (told["lead"], told["state"]) == (0, "run")
    assert [part["in_use"] for part in told["parts"]] == [False, False, False]
    assert "part 2 was never used" in run("show", path).stdout


def test_memory_is_reserved(tmp_path: Path) -> None:
    create(tmp_path / "segment")
    assert (tmp_path / "segment").stat().st_blocks * 512 >= 8 * MIB


def test_tokens_are_random_or_come_from_standard_input(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    for name in names[:2]:
        assert create(tmp_path / name).returncode == 0
    assert create(tmp_path / "c", "--token", "-", stdin=TOKEN + "\n").returncode == 0
    tokens = [shown(tmp_path / name)["token"] for name in names]
    assert len(set(tokens)) == len(names)
    assert tokens[2] == TOKEN


def test_a_namespace_may_describe_itself_in_front(tmp_path: Path, abi: dict[str, Any]) -> None:
    path = tmp_path / "segment"
    assert create(path, "--lead", "2M").returncode == 0
    assert path.stat().st_size == 16 * MIB
    assert shown(path)["lead"] == 2 * MIB
    magic = struct.pack("<Q", int(abi["segment"]["host_magic"], 16))
    assert path.read_bytes()[2 * MIB :][:8] == magic


def test_the_bytes_are_where_the_abi_says(tmp_path: Path, abi: dict[str, Any]) -> None:
    path = tmp_path / "segment"
    create(path, "--token", TOKEN)
    page = path.read_bytes()[: abi["structs"]["nm_vmseg_host"]["size"]]

    def field(name: str) -> bytes:
        place = abi["structs"]["nm_vmseg_host"]["fields"][name]
        return page[place["offset"] :][: place["size"]]

    assert int.from_bytes(field("magic"), "little") == int(abi["segment"]["host_magic"], 16)
    assert int.from_bytes(field("version"), "little") == abi["segment"]["version"]
    assert field("token").hex() == TOKEN
    assert int.from_bytes(field("nr_parts"), "little") == 3
    assert int.from_bytes(field("part_size"), "little") == 2 * MIB


def test_an_existing_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_text("mine")
    done = create(path)
    assert done.returncode == 1
    assert "File exists" in done.stderr
    assert "give another name" in done.stderr
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--parts", "2", "--part-size", "3M"], "use a power of two from 2M to 64G"),
        (["--parts", "2", "--part-size", "1M"], "use a power of two from 2M to 64G"),
        (["--parts", "257", "--part-size", "2M"], "a segment has 1 to 256"),
        (["--parts", "256", "--part-size", "64G"], "a segment has at most 1T"),
        (["--parts", "2", "--part-size", "2M", "--token", "12"], "32 hexadecimal digits"),
        (["--parts", "2", "--part-size", "2M", "--token", "-"], "standard input holds no token"),
    ],
)
def test_bad_orders_are_refused_in_words(tmp_path: Path, args: list[str], words: str) -> None:
    done = run("create", tmp_path / "segment", *args)
    assert done.returncode == 1
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_usage(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    for args in (
        [],
        ["create"],
        ["create", path],
        ["create", path, "--parts", "2"],
        ["create", path, "--parts", "x", "--part-size", "2M"],
        ["create", path, "--parts", "2", "--part-size", "2M", "--lead", "1M"],
        ["create", path, "--parts", "2", "--part-size", "2M", "--json"],
        ["show", path, "--parts", "2"],
        ["quiesce"],
        ["quiesce", path, "--json"],
        ["freeze", path, "--lead", "2M"],
        ["run", path, path],
        ["remove", path],
    ):
        done = run(*args)
        assert done.returncode == 2, args
        assert "try: nearmetal-segment --help" in done.stderr
    assert run("--version").returncode == 0


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            'ulimit -f 1024; trap "" XFSZ; exec "$@"',
            "-",
            TOOL,
            "create",
            tmp_path / "segment",
            "--parts",
            "2",
            "--part-size",
            "2M",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_segment_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    for size, words in (
        (0, "has only 0 bytes"),
        (100, "do not hold a segment"),
        (MIB, "no magic number"),
    ):
        path.write_bytes(bytes(size))
        done = run("show", path)
        assert done.returncode == 1
        assert words in done.stderr
    path.unlink()
    assert "No such file" in run("show", path).stderr
    create(path)
    with path.open("r+b") as file:
        file.truncate(4 * MIB)
    assert "the file was truncated" in run("show", path).stderr


def machine(path: Path, part: int) -> Path:
    """Create a segment, and describe it as the guest unit of machine PART does."""
    create(path, "--token", TOKEN)
    conf = path.with_name("segment.conf")
    conf.write_text(
        f"version = 1\ndevice = dax\nall = {path}\npart = {part}\ntoken = {TOKEN}\n"
        f"lock = {path.with_name('lock')}\n"
    )
    conf.chmod(0o600)
    return conf


def test_a_machine_without_endpoints_leaves_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    conf = machine(path, 1)

    def asked(verb: str) -> tuple[int, str]:
        done = run(verb, conf)
        return done.returncode, done.stdout + done.stderr

    def states() -> list[tuple[str, int] | None]:
        parts = shown(path)["parts"]
        return [(part["state"], part["epoch"]) if part["in_use"] else None for part in parts]

    code, words = asked("freeze")
    assert code == 1
    assert "part 1 is in state run, and frozen may not follow: ask with quiesce first" in words
    assert states() == [None, ("run", 0), None]
    assert asked("quiesce") == (0, "part 1: quiesce (asked to leave the segment)\n")
    assert asked("quiesce")[0] == 0
    assert states() == [None, ("quiesce", 1), None]
    assert "part 1: quiesce (asked to leave the segment), 4 slots" in run("show", path).stdout
    assert asked("freeze") == (0, "part 1: frozen (has left the segment)\n")
    assert "part 1: frozen (has left the segment), 4 slots" in run("show", path).stdout
    assert asked("quiesce")[0] == 1
    assert asked("run") == (0, "part 1: run\n")
    assert states() == [None, ("run", 3), None]


def test_a_part_changes_as_its_machine_moves(abi: dict[str, Any]) -> None:
    """The places of a move (moving_tables.py), as far as the part has a state for them."""
    part = {Place.RUN: "run", Place.QUIESCE: "quiesce", Place.FROZEN: "frozen"}
    designed = {
        (part[before], part[after])
        for (before, _), after in PLACES.items()
        if before in part and after in part
    }
    allowed = {(before, after) for before, after in abi["segment"]["part_states"]}
    assert allowed == designed | {(state, state) for state in part.values()}


def test_the_tables_of_a_move_are_those_of_the_model(abi: dict[str, Any]) -> None:
    for name, table in (("ways", as_names(WAYS)), ("places", as_names(PLACES))):
        assert sorted(tuple(row) for row in abi[name]) == table


def test_what_describes_no_part_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    conf = machine(path, 7)
    done = run("quiesce", tmp_path / "none")
    assert done.returncode == 1
    assert "none: it does not exist: this machine shares no segment" in done.stderr
    done = run("quiesce", path)
    assert done.returncode == 1
    assert f"{path}: " in done.stderr
    assert "give /run/nearmetal/segment.conf" in done.stderr
    done = run("quiesce", conf)
    assert done.returncode == 1
    assert "this machine's part is 7, but the segment has only 3" in done.stderr


def test_info_says_what_a_segment_offers(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    conf = machine(path, 2)

    def told() -> dict[str, Any]:
        done = subprocess.run(
            [tool("nearmetal-info"), "--json"],
            capture_output=True,
            check=True,
            timeout=60,
            env={"NEARMETAL_SEGMENT": str(conf)},
        )
        segment: dict[str, Any] = json.loads(done.stdout)["segment"]
        return segment

    segment = told()
    assert segment["usable"]
    assert (segment["part"], segment["nr_parts"], segment["part_size"]) == (2, 3, 2 * MIB)
    assert segment["integrity"] == "by convention"
    assert segment["mapping"].startswith("write-back: a load ")
    path.unlink()
    segment = told()
    assert not segment["usable"]
    assert "No such file" in segment["reason"]


def test_devices_of_two_segments_are_not_taken_for_one(tmp_path: Path) -> None:
    create(tmp_path / "all")
    (tmp_path / "own").write_bytes(bytes(2 * MIB))
    done = run("find", tmp_path / "own", tmp_path / "all")
    assert (done.returncode, done.stdout) == (1, "")
    assert "appears in 0 parts of the whole" in done.stderr


@pytest.mark.parametrize(
    ("own", "whole", "why"),
    [
        (bytes(4 * MIB), "all", "has 4194304 bytes, but a part has 2097152"),
        (bytes(2 * MIB), "own", "segment"),
        (bytes(2 * MIB), "none", "No such file or directory"),
        (b"", "all", ""),
    ],
)
def test_devices_of_another_form_are_named(
    tmp_path: Path, own: bytes, whole: str, why: str
) -> None:
    create(tmp_path / "all")
    (tmp_path / "own").write_bytes(own)
    done = run("find", tmp_path / "own", tmp_path / whole)
    assert (done.returncode, done.stdout) == (1, "")
    assert why in done.stderr
    assert done.stderr.startswith("nearmetal-segment: ")


def test_find_takes_two_files() -> None:
    assert run("find", "/x").returncode == 2
    assert run("find", "/x", "/y", "--json").returncode == 2
