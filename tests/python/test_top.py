# SPDX-License-Identifier: Apache-2.0
"""Statistics files: foreign bytes, torn bytes, living and dead owners; and rates of them."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
from pathlib import Path

import pytest

from nearmetal.cli.main import main
from nearmetal.cluster.backend import open_backend
from nearmetal.cluster.spec import parse_spec
from nearmetal.cluster.store import Store
from nearmetal.core.errors import UsageError
from nearmetal.core.process import LocalRunner
from nearmetal.evidence.counters import (
    MAX_PEERS,
    Accesses,
    EndpointCounters,
    TornError,
    Traffic,
    parse_counters,
)
from nearmetal.evidence.traffic import Sort, lines, ordered, trouble
from nearmetal.job.stats import read_counters
from nearmetal.job.watched import of_all_clusters, of_cluster
from tests.python.counter_files import file_bytes, peer_bytes

ACCESSES = {("cma", "put"): (12, 4800), ("cma", "get"): (3, 30), ("served", "atomic"): (1, 8)}
SENT = {"shm": (10, 1000, 4, 400), "net": (1, 8, 0, 0)}


def test_a_file_says_what_its_endpoint_counted() -> None:
    protocols = (0, 5, 0, 7, 0, 0, 0, 9)
    peer_content = peer_bytes(
        traffic=SENT, stalls=3, choice="pull: near", device="staged: why", protocols=protocols
    )
    found = parse_counters(file_bytes(peer_content, rank=5))
    assert (found.host, found.pid, found.rank, found.job, found.state) == (
        "n1",
        4711,
        5,
        "job-1",
        "closed",
    )
    assert found.interface == "libfabric"
    assert parse_counters(file_bytes(interface=1)).interface == "ucx"
    peer = found.peers[0]
    assert peer.channels == {"shm": Traffic(10, 1000, 4, 400), "net": Traffic(1, 8, 0, 0)}
    assert peer.protocols == {"pool": 5, "pull": 7, "protocol 7": 9}
    assert peer.choice == "pull: near"
    assert peer.device == "staged: why"
    assert peer.total == Traffic(11, 1008, 4, 400)
    assert (peer.relation, peer.stalls, peer.label) == ("host", 3, "n2, pid 7")
    assert json.loads(json.dumps(found.data()))["peers"][0]["sent_messages"] == 11


def test_accesses_are_told_by_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    content = file_bytes(peer_bytes(traffic=SENT, accesses=ACCESSES))
    endpoint = parse_counters(content)
    assert endpoint.peers[0].accesses == {
        "cma": {"put": Accesses(12, 4800), "get": Accesses(3, 30)},
        "served": {"atomic": Accesses(1, 8)},
    }
    told = json.loads(json.dumps(endpoint.data()))["peers"][0]["accesses"]
    assert told["cma"]["get"] == {"operations": 3, "bytes": 30}
    (tmp_path / "a.stats").write_bytes(content)
    assert main(["top", "--once", "--all", "--interval", "0.1", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("15 cma, 1 served") == 1, "beside the channel in use"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", TornError),
        (file_bytes(peer_bytes())[:-1], TornError),
        (file_bytes(peer_bytes())[:300], TornError),
        (file_bytes(peer_bytes(), tail=8), TornError),
        (file_bytes(peer_bytes()).replace(b"met", b"mat"), TornError),
        (file_bytes(nr_peers=MAX_PEERS + 1), TornError),
        (file_bytes(nr_peers=0xFFFFFFFF), TornError),
        (file_bytes(magic=1), ValueError),
        (file_bytes(interface=2), ValueError),
        (file_bytes(version=2), ValueError),
        (file_bytes(peer_size=64), ValueError),
        (file_bytes(state=7), ValueError),
        (b'{"version": 1, "peers": []}' + b" " * 400, ValueError),
    ],
)
def test_bytes_that_are_no_whole_file_are_refused(content: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_counters(content)


def test_any_spoilt_byte_is_noticed_or_harmless() -> None:
    good = file_bytes(peer_bytes(traffic=SENT), peer_bytes(id=b"zzzzzz"))
    dice = random.Random(1)
    for _ in range(500):
        spoilt = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            spoilt[dice.randrange(len(spoilt))] = dice.randrange(256)
        if bytes(spoilt) != good:
            with pytest.raises(ValueError):  # noqa: PT011 - any refusal will do, a crash will not
                parse_counters(bytes(spoilt))


def test_words_of_peers_cannot_steer_a_terminal() -> None:
    found = parse_counters(file_bytes(peer_bytes(label='\x1b[2Jevil"\n', relation="host")))
    assert found.peers[0].label == '?[2Jevil"?'


def test_files_are_opened_with_care(tmp_path: Path) -> None:
    place = tmp_path / "stats"
    place.mkdir()
    good = file_bytes(peer_bytes())
    (place / "a.stats").write_bytes(good)
    (tmp_path / "secret").write_bytes(good)
    (place / "b.stats").symlink_to(tmp_path / "secret")
    os.mkfifo(place / "c.stats")
    (place / "d.stats").mkdir()
    (place / "e.stats").write_bytes(b"x" * 4096)
    (place / "f.txt").write_bytes(good)
    assert [seen.file for seen in read_counters(place)] == ["a.stats"]
    assert read_counters(tmp_path / "none") == []
    (tmp_path / "link").symlink_to(place)
    assert read_counters(tmp_path / "link") == []
    assert min(p.name for p in place.iterdir()) == "a.stats", "reading removes nothing"


def held_by_child(path: Path) -> int:
    """Let another process hold the owner's lock until it is killed."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        descriptor = os.open(path, os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.write(tell, b"1")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    return child


def test_the_lock_says_whether_the_owner_lives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.stats").write_bytes(file_bytes(peer_bytes(traffic=SENT), state=1))
    child = held_by_child(tmp_path / "a.stats")
    try:
        assert [seen.alive for seen in read_counters(tmp_path)] == [True]
        words = ["top", "--once", "--interval", "0.1", "--dir", str(tmp_path)]
        assert main([*words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["endpoints"][0]["peers"][0]["channels"]["shm"]["sent_bytes"] == 1000
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert [seen.alive for seen in read_counters(tmp_path)] == [False]
    assert main(words) == 0
    assert "n2" not in capsys.readouterr().out
    assert main([*words, "--all"]) == 0
    assert "n2, pid 7" in capsys.readouterr().out
    assert (tmp_path / "a.stats").exists()


def look(traffic: dict[str, tuple[int, int, int, int]], written_s: float) -> EndpointCounters:
    content = file_bytes(peer_bytes(traffic=traffic), written_ns=int(written_s * 1e9), state=1)
    return parse_counters(content)


def test_rates_are_growth_over_the_time_between_writings() -> None:
    before, now = look({"shm": (10, 1000, 0, 0)}, 5), look({"shm": (30, 5000, 2, 20)}, 7)
    assert lines([now], [before])[0].rate == (10.0, 2000.0, 1.0, 10.0)
    assert lines([now])[0].rate is None
    assert lines([now], [now])[0].rate == (0.0, 0.0, 0.0, 0.0)
    # An endpoint whose counters fell back is told as idle, not as negative.
    assert lines([before], [look({"shm": (30, 5000, 0, 0)}, 4)])[0].rate == (0, 0, 0, 0)


def test_lines_come_in_the_order_that_was_asked_for() -> None:
    peers = [
        peer_bytes(id=b"quiet ", label="quiet", traffic={"shm": (1, 900, 0, 0)}),
        peer_bytes(id=b"chatty", label="chatty", traffic={"shm": (9, 9, 0, 0)}),
        peer_bytes(id=b"broken", label="broken", down=True, down_reason="it died"),
    ]
    found = lines([parse_counters(file_bytes(*peers))])
    assert next(x.peer.label for x in ordered(found, Sort.BYTES)) == "quiet"
    assert next(x.peer.label for x in ordered(found, Sort.MESSAGES)) == "chatty"
    assert next(x.peer.label for x in ordered(found, Sort.TROUBLE)) == "broken"


def test_the_way_between_gpus_stands_beside_the_channel_in_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = file_bytes(peer_bytes(traffic=SENT, device="staged: no handle"))
    (tmp_path / "a.stats").write_bytes(content)
    assert main(["top", "--once", "--all", "--interval", "0.1", "--dir", str(tmp_path)]) == 0
    told = [x for x in capsys.readouterr().out.splitlines() if "GPU memory staged: no handle" in x]
    assert len(told) == 1, "one of two channels"
    assert " shm (" in told[0]


def test_trouble_is_told_with_its_reasons() -> None:
    peer = parse_counters(
        file_bytes(
            peer_bytes(
                quarantines=1, quarantine_reason="a slot lied", fallbacks=2, fallback_reason="EPERM"
            )
        )
    ).peers[0]
    assert trouble(peer) == "quarantined: a slot lied; 2 fallbacks: EPERM"


def test_a_cluster_of_machines_is_refused_and_not_shown_as_idle(tmp_path: Path) -> None:
    text = """version: 1
name: far
backend: openstack
cloud: c
image: i
flavor: f
ssh: {}
networks: [{name: mpi, subnet: 10.82.0.0/24}]
hosts: [{name: h1, nodes: [{name: n1}]}]
"""
    spec = parse_spec(text, "far.yaml")
    store = Store(tmp_path)
    with pytest.raises(UsageError, match="cluster far has nodes that are machines") as refused:
        of_cluster(open_backend(spec, store, LocalRunner()), spec)
    assert "run --json" in refused.value.hint
    # Without SPEC, the others are shown.
    store.cluster(spec.name).mkdir(parents=True)
    store.record(spec)
    assert store.recorded(spec.name) == spec
    assert of_all_clusters(store) == []
