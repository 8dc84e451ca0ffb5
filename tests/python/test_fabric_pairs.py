# SPDX-License-Identifier: Apache-2.0
"""Pairs of nodes that send to each other: programs that answer as perftest does."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearmetal.cluster.backend import NodeStatus
from nearmetal.core.errors import BackendError
from nearmetal.core.process import Command, LocalRunner
from nearmetal.core.progress import Silent
from nearmetal.host.fabric import (
    FabricFinding,
    FabricSite,
    Level,
)
from nearmetal.host.parse.ibverbs import SCRIPT
from nearmetal.job.client_server import first_words
from nearmetal.job.fabric import FabricTest, Verified, verify

DATA = Path(__file__).parents[1] / "data" / "hosts" / "ibverbs"
VF = (DATA / "connectx5-vf.txt").read_text(encoding="utf-8")


def bad(found: Sequence[FabricFinding]) -> list[tuple[str, str]]:
    return [(f.level.value, f.what) for f in found if f.level is not Level.OK]


PERFTEST = """\
#!/bin/sh
for word; do last=$word; done
case $last in
10.*) ;;
*) [ -e "$PLACE/flood" ] && { yes "no memory" | head -c 3000000 >&2; exit 12; }
[ -e "$PLACE/mute" ] && { echo "no memory" >&2; exit 12; }
exit 0 ;;
esac
[ -e "$PLACE/slow" ] && { setsid sleep 300 & sleep 300; }
[ -e "$PLACE/mute" ] && { echo "Couldn't connect" >&2; exit 1; }
mkdir "$PLACE/run.$$"
sleep 0.3
set -- "$PLACE"/run.*
sleep 0.3
rmdir "$PLACE/run.$$"
rate=11800.00
[ $# -gt 1 ] && echo >>"$PLACE/beside" && rate=5900.00
case $0 in
*bw) echo "                    Send BW Test"
echo " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
echo " 65536      1000           11900.00           $rate             0.188800" ;;
*) echo "                    Send Latency Test"
echo " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
echo " 2       1000          1.10           3.20         1.18               1.19" ;;
esac
"""
"""Prints as perftest does. A link that is shared halves the bandwidth."""

NAMES = ("n1", "n2", "n3", "n4")


class Machines:
    """A backend whose nodes are this machine, with programs of our own."""

    def __init__(self, place: Path, hosts: Sequence[str] = NAMES) -> None:
        self.place = place
        self.hosts = hosts
        self.marker = ""
        self.gone = ""
        self.address = "10.0.0.1"
        for name in ("ib_send_bw", "ib_send_lat"):
            (place / name).write_text(PERFTEST)
            (place / name).chmod(0o755)
        for name in NAMES:
            self.answers(name, f"echo '{VF.replace('0050:56ff', '0050:56f' + name[1])}'")

    def answers(self, name: str, script: str) -> None:
        """Give a node another answer."""
        (self.place / name).write_text(script)

    def status(self) -> list[NodeStatus]:
        return [
            NodeStatus(n, h, n, self.address, 1, (0,), "", 1, 1.0, healthy=True, health="")
            for n, h in zip(NAMES, self.hosts, strict=True)
        ]

    def on_node(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> Command:
        assert env is not None
        self.marker = env.get("NEARMETAL_JOB", self.marker)
        reads = list(argv) == ["/bin/sh", "-c", SCRIPT]
        if node == self.gone and not reads:
            raise BackendError(f"node {node} is gone")
        path = f"{self.place}:{env['PATH']}"
        text = (self.place / node).read_text() if reads else ""
        return Command(
            ("/bin/sh", "-c", text) if reads else tuple(argv),
            env={**env, "PATH": path, "PLACE": str(self.place)},
        )

    def rest(self) -> list[str]:
        """Return the processes that carry the mark."""
        mark = f"NEARMETAL_JOB={self.marker}".encode()
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in environment.read_bytes().split(b"\0"):
                    found.append(environment.parent.name)
        return found


def verified(backend: Machines, *names: str, **changes: Any) -> Verified:
    test = replace(FabricTest(), **changes)
    site = FabricSite("libvirt")
    stand_in: Any = backend
    return verify(stand_in, LocalRunner(), names or ("n1", "n2"), site, test, progress=Silent())


def test_a_cluster_is_read_and_measured(tmp_path: Path) -> None:
    backend = Machines(tmp_path)
    fabric = verified(backend)
    assert bad(fabric.findings) == []
    assert [(s.client, s.server, s.latency_us, line) for s, line in fabric.sends] == [
        ("n2", "n1", 1.19, 100),
        ("n1", "n2", 1.19, 100),
    ]
    assert [round(s.gbit or 0, 2) for s, _ in fabric.sends] == [98.99] * 2
    assert backend.rest() == []


def test_pairs_side_by_side_that_share_a_link_are_measured_again(tmp_path: Path) -> None:
    fabric = verified(Machines(tmp_path), *NAMES)
    assert (tmp_path / "beside").exists()
    assert bad(fabric.findings) == []
    assert [(s.server, s.client) for s, _ in fabric.sends] == [
        ("n1", "n2"),
        ("n2", "n3"),
        ("n3", "n4"),
        ("n4", "n1"),
    ]


def test_pairs_of_one_host_are_measured_one_by_one(tmp_path: Path) -> None:
    fabric = verified(Machines(tmp_path, ("h1", "h1", "h2", "h1")), *NAMES)
    assert len(fabric.sends) == 4
    assert not (tmp_path / "beside").exists()


def test_a_pair_that_fails_has_the_words_of_both_sides(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mute").touch()
    found = bad(verified(Machines(tmp_path)).findings)
    assert (
        found
        == [("fault", "ib_send_bw failed: client 1, Couldn't connect; server 12, no memory")] * 2
    )
    assert capfd.readouterr() == ("", "")


def test_words_without_end_are_cut(tmp_path: Path) -> None:
    (tmp_path / "flood").touch()
    backend = Machines(tmp_path)
    found = bad(verified(backend).findings)
    assert len(found) == 2
    for _, what in found:
        assert "server 12, no memory\nno memory" in what
        assert len(what) < 5000
    assert backend.rest() == []


def test_only_the_first_words_are_kept() -> None:
    with first_words(10) as words:
        argv = ["sh", "-c", "echo one two three; head -c 3000000 /dev/zero"]
        subprocess.run(argv, stdout=words.stream, timeout=20, check=True)
        assert words.text() == "one two th"


def test_a_holder_that_stays_does_not_hold_up() -> None:
    with first_words(10) as words:
        argv = ["sh", "-c", "echo word; exec sleep 20"]
        with subprocess.Popen(argv, stdout=words.stream) as holder:
            try:
                assert words.text() == "word"
                assert holder.poll() is None
            finally:
                holder.kill()


def test_a_pair_that_cannot_be_measured_is_a_fault(tmp_path: Path) -> None:
    backend = Machines(tmp_path)
    backend.address = ""
    fabric = verified(backend)
    assert fabric.sends == []
    assert bad(fabric.findings) == [
        ("fault", "not measured: n1 has no address"),
        ("fault", "not measured: n2 has no address"),
    ]


def test_a_pair_that_hangs_ends_and_is_swept(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    backend = Machines(tmp_path)
    found = bad(verified(backend, timeout_s=0.5).findings)
    assert found == [("fault", "ib_send_bw did not end in 0.5 s")] * 2
    assert backend.rest() == []


def test_one_node_that_breaks_does_not_hide_the_others(tmp_path: Path) -> None:
    backend = Machines(tmp_path)
    backend.answers("n1", "echo Connection refused >&2; exit 255")
    backend.answers("n2", "head -c 2000000 /dev/zero")
    fabric = verified(backend, *NAMES)
    assert [pair for pair, _ in bad(fabric.findings)] == ["fault", "fault"]
    first, second = (what for _, what in bad(fabric.findings))
    assert first == "it does not answer: Connection refused"
    assert second.startswith("more than 1048576 bytes of output")
    assert [(s.server, s.client) for s, _ in fabric.sends] == [("n3", "n4"), ("n4", "n3")]


def test_a_node_that_goes_fails_its_own_pairs(tmp_path: Path) -> None:
    backend = Machines(tmp_path)
    backend.gone = "n2"
    fabric = verified(backend, *NAMES)
    assert [s.why for s, _ in fabric.sends] == ["node n2 is gone", "node n2 is gone", "", ""]
    assert [f.node for f in fabric.findings if f.level is Level.WARNING] == ["n2"]


def test_a_node_that_never_answers_is_bounded(tmp_path: Path) -> None:
    backend = Machines(tmp_path)
    backend.answers("n1", "sleep 300")
    backend.answers("n2", "echo == ibv_devinfo; setsid sleep 300 & wait")
    fabric = verified(backend, read_s=1.0)
    assert bad(fabric.findings) == [
        ("fault", "it does not answer in 1 s"),
        ("fault", "ibv_devinfo did not end in 1 s"),
    ]
    assert backend.rest() == []


def test_a_node_without_tools_is_not_measured(tmp_path: Path) -> None:
    backend = Machines(tmp_path)
    other = VF.replace("ib_send_lat\n", "").replace("feb3", "feb4")
    backend.answers("n2", f"echo '{other}'")
    fabric = verified(backend)
    assert fabric.sends == []
    assert bad(fabric.findings) == [("fault", "ib_send_lat: missing")]
    assert fabric.findings[-1].what == "nothing was measured: fewer than two nodes can send"
