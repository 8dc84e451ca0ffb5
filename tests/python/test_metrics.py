# SPDX-License-Identifier: Apache-2.0
"""Metrics of jobs and clusters: sums that do not fall, limited labels, hostile files, scrapes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nearmetal.cli.main import main
from nearmetal.cluster.store import Store
from nearmetal.core.exposition import metrics_text, served
from nearmetal.core.journal import Journal
from nearmetal.core.metrics import Metric, one
from nearmetal.evidence.counters import EndpointCounters, parse_counters
from nearmetal.evidence.totals import KEPT_S, TrafficTotals
from nearmetal.job.watched import MOST_CLUSTERS, ClusterState, cluster_metrics, cluster_states
from tests.python.counter_files import file_bytes, peer_bytes
from tests.python.test_top import held_by_child

MAN = Path(__file__).parents[2] / "nearmetal/share/man/nearmetal-metrics.md"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMETAL_STATE_DIR", str(tmp_path / "state"))


def endpoint(number: int = 0, sent: int = 10, **fields: object) -> EndpointCounters:
    traffic = {"shm": (sent, 100 * sent, 1, 7), "net": (1, 8, 0, 0)}
    content = file_bytes(
        peer_bytes(traffic=traffic, stalls=2, down=bool(fields.pop("down", False))),
        id=number.to_bytes(6, "big"),
        state=1,
        **fields,
    )
    return parse_counters(content)


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(totals: TrafficTotals, name: str, **labels: str) -> float | None:
    found = samples(metrics_text(totals.metrics()))
    wanted = {"mpi_job": "job-1", "node": "n1"} | labels
    return found.get((f"nearmetal_{name}", frozenset(wanted.items())))


def totals(most: int = 10) -> TrafficTotals:
    return TrafficTotals(("self", "shm", "segment", "net"), most)


SHM = {"channel": "shm", "direction": "sent"}


def test_endpoints_of_a_job_on_a_node_are_summed_up() -> None:
    seen = totals()
    seen.read([(endpoint(1), True), (endpoint(2, sent=5, down=True), True)], 0)
    assert of(seen, "messages_total", **SHM) == 15
    assert of(seen, "message_bytes_total", **SHM) == 1500
    assert of(seen, "messages_total", channel="net", direction="sent") == 2
    assert of(seen, "send_stalls_total") == 4
    assert of(seen, "copy_fallbacks_total") == 0, "a counter without events is there"
    assert of(seen, "endpoints") == 2
    assert of(seen, "peers", channel="shm") == 2
    assert of(seen, "peers_down") == 1


def test_a_sum_does_not_fall_when_an_endpoint_ends_and_comes() -> None:
    seen = totals()
    seen.read([(endpoint(1), True), (endpoint(2), True)], 0)
    seen.read([(endpoint(1, sent=14), True)], 1)
    assert of(seen, "messages_total", **SHM) == 24
    assert of(seen, "endpoints") == 1
    seen.read([(endpoint(1, sent=15), True), (endpoint(2, sent=11), True)], 2)
    assert of(seen, "messages_total", **SHM) == 26, "an endpoint that was hidden is not new"
    seen.read([(endpoint(1, sent=3), True)], 3)
    assert of(seen, "messages_total", **SHM) == 26, "a counter that fell adds nothing"


def test_the_last_messages_of_an_endpoint_count_and_old_files_do_not() -> None:
    seen = totals()
    seen.read([(endpoint(1), True), (endpoint(9), False)], 0)
    seen.read([(endpoint(1, sent=12), False), (endpoint(9), False)], 1)
    assert of(seen, "messages_total", **SHM) == 12
    assert of(seen, "endpoints") == 0


def test_a_job_is_forgotten_some_time_after_its_end() -> None:
    seen = totals()
    seen.read([(endpoint(1), True)], 0)
    seen.read([], KEPT_S)
    assert of(seen, "messages_total", **SHM) == 10
    seen.read([], KEPT_S + 1)
    assert of(seen, "messages_total", **SHM) is None
    seen.read([(endpoint(1, sent=11), False)], KEPT_S + 2)
    assert of(seen, "messages_total", **SHM) is None


def test_what_still_runs_after_a_long_pause_keeps_its_sum() -> None:
    seen = totals()
    seen.read([(endpoint(1), True), (endpoint(2), True)], 0)
    seen.read([(endpoint(1), True)], KEPT_S + 100)
    assert of(seen, "messages_total", **SHM) == 20


def test_a_cluster_with_a_damaged_journal_is_shown_as_unknown(tmp_path: Path) -> None:
    store = Store(tmp_path)
    journal = Journal(store.cluster("c")).path
    journal.mkdir(parents=True)
    assert cluster_states(store) == [ClusterState("c", None, None, None)]


def test_labels_are_limited_and_the_rest_is_one_place() -> None:
    seen = totals(most=3)
    many = [(endpoint(n, job=f"job-{n}".encode(), rank=n, pid=n), True) for n in range(50)]
    seen.read(many, 0)
    found = samples(metrics_text(seen.metrics()))
    assert len({dict(labels)["mpi_job"] for _, labels in found}) == 4
    assert of(seen, "messages_total", mpi_job="other", node="other", **SHM) == 470
    names = {name for _, labels in found for name, _ in labels}
    assert names == {"mpi_job", "node", "channel", "direction"}


def test_a_channel_that_the_provider_does_not_have_is_no_label() -> None:
    seen = TrafficTotals(["net"])
    seen.read([(endpoint(1), True)], 0)
    assert of(seen, "messages_total", channel="other", direction="sent") == 10
    assert of(seen, "messages_total", **SHM) is None


def test_words_of_jobs_cannot_forge_a_metric() -> None:
    seen = totals()
    evil = b'x"} 1\nnearmetal_peers_down{job="y\\'
    seen.read([(endpoint(1, job=evil), True)], 0)
    found = samples(metrics_text(seen.metrics()))
    assert {dict(labels)["mpi_job"] for _, labels in found} == {
        'x"} 1?nearmetal_peers_down{job="y\\'
    }


def test_names_follow_the_conventions_and_the_manual() -> None:
    seen = totals()
    found = [*seen.metrics(), *cluster_metrics([])]
    table = dict(
        line.split(" | ", 2)[:2]
        for line in MAN.read_text().splitlines()
        if line.startswith("| `nearmetal_") and not line.split("`")[1].endswith("_info")
    )
    assert {f"| `{m.full_name}`" for m in found} <= set(table)
    for metric in found:
        labels = table[f"| `{metric.full_name}`"]
        assert labels == ", ".join(f"`{name}`" for name in metric.labels)
        assert metric.full_name.endswith("_total") == (metric.kind == "counter")
        assert metric.text.endswith(".")


def test_clusters_beyond_the_limit_are_one() -> None:
    states = [ClusterState(f"c{n}", 2, 1, interrupted=n == 0) for n in range(MOST_CLUSTERS + 5)]
    found = samples(metrics_text(cluster_metrics([*states, ClusterState("z", None, None, False)])))
    assert found["nearmetal_cluster_nodes", frozenset({("cluster", "other")})] == 10
    assert found["nearmetal_cluster_interrupted", frozenset({("cluster", "c0")})] == 1
    assert len(found) == 3 * (MOST_CLUSTERS + 1)


def test_a_silent_backend_has_no_healthy_nodes() -> None:
    found = samples(metrics_text(cluster_metrics([ClusterState("c", 2, None, interrupted=False)])))
    assert {name for name, _ in found} == {
        "nearmetal_cluster_nodes",
        "nearmetal_cluster_interrupted",
    }


@pytest.fixture
def stats(tmp_path: Path) -> Iterator[Path]:
    """A directory with an endpoint that runs, one that is dead, and foreign bytes."""
    place = tmp_path / "stats"
    place.mkdir()
    running = file_bytes(peer_bytes(traffic={"shm": (10, 1000, 4, 400)}), state=1, rank=3)
    (place / "a.stats").write_bytes(running)
    (place / "b.stats").write_bytes(running.replace(b"abcdef", b"uvwxyz"))
    (place / "c.stats").write_bytes(b"nearmetal" * 100)
    (place / "d.stats").symlink_to("/etc/passwd")
    child = held_by_child(place / "a.stats")
    yield place
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_once_prints_or_writes_what_is_there(
    stats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["metrics", "--once", "--dir", str(stats)]
    assert main(words) == 0
    printed = samples(capsys.readouterr().out)
    place = {("mpi_job", "job-1"), ("node", "n1")}
    assert printed["nearmetal_endpoints", frozenset(place)] == 1
    assert printed["nearmetal_reading_complete", frozenset()] == 1
    out = tmp_path / "nearmetal.prom"
    assert main([*words, "--textfile", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert out.stat().st_mode & 0o777 == 0o644
    written = samples(out.read_text())
    assert written.keys() == printed.keys()
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["metrics"]
    (messages,) = (m for m in told if m["name"] == "nearmetal_messages_total")
    assert {"labels": dict(place) | SHM, "value": 10} in messages["samples"]
    assert main([*words, "--textfile", str(tmp_path / "no" / "file")]) == 1


@pytest.mark.parametrize(
    "text", ["9797", "localhost:9797", "127.0.0.1:", "127.0.0.1:65536", "::1:9"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    assert main(["metrics", "--listen", text]) == 2


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request(method, path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()
    finally:
        client.close()


def test_the_server_has_one_page_and_changes_nothing() -> None:
    now = [one("reading_complete", "Text.", 1)]
    with served("127.0.0.1", 0, lambda: now) as port:
        assert "nearmetal_reading_complete 1.0" in get(port)[1]
        now = [one("reading_complete", "Text.", 0)]
        assert "nearmetal_reading_complete 0.0" in get(port)[1]
        assert get(port, "/")[0] == get(port, "/metrics/../etc/passwd")[0] == 404
        assert get(port, method="POST")[0] == get(port, method="DELETE")[0] == 405
        assert main(["metrics", "--listen", f"127.0.0.1:{port}", "--dir", "/nonexistent"]) == 1
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_clients_that_say_nothing_do_not_stop_the_server_from_ending() -> None:
    with served("127.0.0.1", 0, lambda: [one("reading_complete", "Text.", 1)]) as port:
        mute = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(20)]
        # The first ones hold all places; a further one is sent away and does not wait.
        assert mute[-1].recv(1) == b""
        for client in mute:
            client.close()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert get(port)[0] == 200
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_sigterm_ends_the_service_well(stats: Path) -> None:
    argv = [sys.executable, "-m", "nearmetal", "metrics", "--interval", "0.1", "--dir", str(stats)]
    with subprocess.Popen(
        [*argv, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr
            port = int(process.stderr.readline().rpartition(":")[2].removesuffix("/metrics\n"))
            before = samples(get(port)[1])
            more = file_bytes(peer_bytes(traffic={"shm": (25, 1000, 4, 400)}), state=1)
            with (stats / "a.stats").open("r+b") as file:
                file.write(more)
            key = (
                "nearmetal_messages_total",
                frozenset({*SHM.items(), ("mpi_job", "job-1"), ("node", "n1")}),
            )
            deadline = time.monotonic() + 60
            while samples(get(port)[1])[key] != 25:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert before[key] == 10
            process.terminate()
            assert process.wait(timeout=60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_label_of_a_metric_is_escaped() -> None:
    label = 'a"b\\c\nd'
    metric = Metric("x", "gauge", "Text.", ("job",), (((label,), 1),))
    assert samples(metrics_text([metric])) == {("nearmetal_x", frozenset({("job", label)})): 1}
