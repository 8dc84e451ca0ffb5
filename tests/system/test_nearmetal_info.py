# SPDX-License-Identifier: Apache-2.0
"""nearmetal-info: facts, the shared layout, and who meets whom, in and across PID namespaces."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system.faults.peer import BUILD, PATIENCE_S

pytestmark = pytest.mark.system

INFO = BUILD / "src" / "tools" / "nearmetal-info"
DRIVERS = BUILD / "tests" / "device"
"""Stand-ins for the drivers of GPUs."""


def info(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INFO, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


class Meeter:
    """A `nearmetal-info meet` that is asked about others."""

    def __init__(self, directory: Path, *prefix: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, INFO, "meet", "--rundir", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        self.hello = self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        result: dict[str, Any] = json.loads(line)
        return result

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._read()

    def end(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(PATIENCE_S)


@contextmanager
def meeter(directory: Path, *prefix: str, **env: str) -> Iterator[Meeter]:
    one = Meeter(directory, *prefix, **env)
    try:
        yield one
        assert one.end() == 0
    finally:
        one.process.kill()
        one.process.wait()


def test_facts_are_for_people_and_programs(tmp_path: Path) -> None:
    directory = tmp_path / "segment"
    words = info(NEARMETAL_RUNDIR=str(directory), NEARMETAL_POOL_SIZE="2M")
    assert words.returncode == 0
    assert "NEARMETAL_POOL_SIZE" in words.stdout
    assert not directory.exists()
    facts = json.loads(info("--json", NEARMETAL_POOL_SIZE="2M").stdout)
    knobs = {knob["name"]: knob for knob in facts["knobs"]}
    assert knobs["NEARMETAL_POOL_SIZE"]["value"] == str(2 << 20)
    assert knobs["NEARMETAL_POOL_SIZE"]["from"] == "environment"
    assert knobs["NEARMETAL_CHUNK_SIZE"]["from"] == "default"
    assert facts["window"]["usable"]
    assert facts["namespaces"]["pid"] == str(Path("/proc/self/ns/pid").readlink())


def test_a_directory_that_is_refused_is_said_to_be(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    facts = json.loads(info("--json", NEARMETAL_RUNDIR=str(tmp_path)).stdout)
    assert not facts["rundir"]["usable"]
    assert "chmod 700" in facts["rundir"]["reason"]


def test_layout_is_what_the_design_says() -> None:
    abi = json.loads(info("--abi").stdout)
    assert abi["address_len"] == 64
    sizes = {name: entry["size"] for name, entry in abi["structs"].items()}
    window = {"nm_window_header": 192, "nm_lane": 128, "nm_slot": 64, "nm_address": 64}
    segment = {"nm_vmseg_host": 128, "nm_vmseg_part": 256, "nm_vmseg_slot": 128}
    assert sizes == window | segment | {"nm_vmseg_cell": 320}
    assert abi["structs"]["nm_slot"]["fields"]["control"]["offset"] == 0


@pytest.mark.parametrize("arguments", [["--nonsense"], ["meat"], ["meet", "--abi"]])
def test_usage_errors(arguments: list[str]) -> None:
    result = info(*arguments)
    assert result.returncode == 2
    assert "--help" in result.stderr


def test_three_meet_and_agree(tmp_path: Path) -> None:
    with ExitStack() as stack:
        all_three = [stack.enter_context(meeter(tmp_path / "segment")) for _ in range(3)]
        for i, one in enumerate(all_three):
            for j, other in enumerate(all_three):
                verdict = one.ask(f"{other.hello['address']} number {j}")
                assert verdict["peer"] == f"number {j}"
                assert verdict["relation"] == ("self" if i == j else "node")
                assert verdict["channel"] == ("self" if i == j else "shm")
                assert verdict["integrity"] == ("-" if i == j else "enforced")
                assert verdict["reason"]
        # Asked again, the same.
        first, second, _ = all_three
        assert first.ask(second.hello["address"])["channel"] == "shm"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace of one's own needs root")
def test_another_pid_namespace_is_another_node(tmp_path: Path) -> None:
    apart = ("unshare", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
    with meeter(tmp_path / "s") as here, meeter(tmp_path / "s", *apart) as there:
        for one, other in ((here, there), (there, here)):
            verdict = one.ask(other.hello["address"])
            assert (verdict["relation"], verdict["channel"]) == ("host", "shm")


# How two containers of one host may be kept apart, and what that means for direct copies (CMA).
_PID = ("unshare", "--pid", "--fork", "--kill-child")
_ALL_BUT_PID = ("unshare", "--net", "--ipc", "--uts", "--mount")
_USER = ("unshare", "--user", "--map-root-user")
_GROUP = ("setpriv", "--regid", "1", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")
_COPIES = {
    "one container": ((), (), ""),
    "apart but for the PID namespace": (_ALL_BUT_PID, _ALL_BUT_PID, ""),
    "sibling PID namespaces": (_PID, _PID, "another PID namespace"),
    "a PID namespace in the other's": ((), _PID, "another PID namespace"),
    "sibling user namespaces": (_USER, _USER, "another user namespace"),
    "one group is another": (_GROUP, ("setpriv", *_GROUP[4:]), "group 1"),
}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of one's own need root")
@pytest.mark.parametrize("case", _COPIES)
def test_direct_copies_are_proven_or_refused_in_words(tmp_path: Path, case: str) -> None:
    mine, its, words = _COPIES[case]
    with meeter(tmp_path / "s", *mine) as here, meeter(tmp_path / "s", *its) as there:
        for one, other in ((here, there), (there, here)):
            verdict = one.ask(other.hello["address"])
            assert verdict["channel"] == "shm"
            assert verdict["direct_copies"] == (not words), verdict
            assert (words or "private memory") in verdict["copy_reason"]


def test_direct_copies_can_be_forbidden(tmp_path: Path) -> None:
    with meeter(tmp_path / "s", NEARMETAL_CMA="off") as one, meeter(tmp_path / "s") as other:
        for verdict in (one.ask(other.hello["address"]), other.ask(one.hello["address"])):
            assert not verdict["direct_copies"]
            assert "NEARMETAL_CMA=off" in verdict["copy_reason"]


_NO_HANDLE = "window to window if the driver pins both windows, else staged; by handle not: "
_WAYS = {
    "by handle": ({}, "by handle: each side found its challenge"),
    "without CMA": ({"NEARMETAL_CMA": "off"}, _NO_HANDLE + "NEARMETAL_CMA=off"),
    "no memory for devices": (
        {"NEARMETAL_CMA": "off", "NEARMETAL_CHECKSUM": "on"},
        "staged: no memory of the channel is fit for devices (NEARMETAL_CHECKSUM=on)",
    ),
    "a network": ({"NEARMETAL_CHANNELS": "net"}, "GPUDirect or staged: each connection decides"),
    "a network without GPUDirect": (
        {"NEARMETAL_CHANNELS": "net", "NEARMETAL_GPUDIRECT": "off"},
        "staged: NEARMETAL_GPUDIRECT=off",
    ),
    "no channel": ({"NEARMETAL_CHANNELS": "self"}, "no channel"),
}


@pytest.mark.parametrize("case", _WAYS)
def test_the_way_between_gpus_has_a_reason(tmp_path: Path, case: str) -> None:
    knobs, words = _WAYS[case]
    env = knobs | {"LD_LIBRARY_PATH": str(DRIVERS)}
    with meeter(tmp_path / "s", **env) as one, meeter(tmp_path / "s", **env) as other:
        for verdict in (one.ask(other.hello["address"]), other.ask(one.hello["address"])):
            assert verdict["device_reason"].startswith(words), verdict
        assert one.ask(one.hello["address"])["device_reason"].startswith("staged: it is the ")


@pytest.mark.parametrize("interface", ["rocm", "ze"])
def test_gpus_whose_drivers_copy_in_one_call_are_staged(tmp_path: Path, interface: str) -> None:
    env = {"LD_LIBRARY_PATH": str(DRIVERS / interface)}
    for channels in ("shm", "net"):
        env["NEARMETAL_CHANNELS"] = channels
        with meeter(tmp_path / "s", **env) as one, meeter(tmp_path / "s", **env) as other:
            words = one.ask(other.hello["address"])["device_reason"]
            assert words.startswith("staged: memory of "), words


def test_without_a_gpu_there_is_no_way_between_gpus(tmp_path: Path) -> None:
    # The first: a driver without a GPU. The second: a file that is no library.
    (tmp_path / "libcuda.so.1").touch()
    for env in (
        {"LD_LIBRARY_PATH": str(DRIVERS), "NM_STAND_IN_GPUS": "0"},
        {"LD_LIBRARY_PATH": str(tmp_path)},
    ):
        with meeter(tmp_path / "s", **env) as one, meeter(tmp_path / "s", **env) as other:
            assert one.ask(other.hello["address"]).keys() == {
                "peer",
                "relation",
                "channel",
                "integrity",
                "reason",
                "direct_copies",
                "copy_reason",
            }


def test_who_cannot_be_met_is_on_the_network(tmp_path: Path) -> None:
    with meeter(tmp_path / "a") as one, meeter(tmp_path / "b") as other:
        verdict = one.ask(other.hello["address"])
        assert (verdict["relation"], verdict["channel"]) == ("network", "net")
        assert "does not listen in" in verdict["reason"]
    with (
        meeter(tmp_path / "a", NEARMETAL_CHANNELS="self,net") as one,
        meeter(tmp_path / "a") as other,
    ):
        assert "NEARMETAL_CHANNELS" in one.ask(other.hello["address"])["reason"]
        assert other.ask(one.hello["address"])["channel"] == "net"


def test_lines_that_are_no_addresses(tmp_path: Path) -> None:
    with meeter(tmp_path / "a") as one:
        address = one.hello["address"]
        for line in ("zz", "00" * 64 + " zero", address[:-2], address + "00", address.upper()[:4]):
            verdict = one.ask(line)
            assert verdict["relation"] == "unknown"
            assert "not an address" in verdict["reason"]
        assert one.process.stdin is not None
        one.process.stdin.write("x" * 5000 + "\n\n")
        assert one.ask(address)["relation"] == "self"
