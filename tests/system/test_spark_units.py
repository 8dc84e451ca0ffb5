# SPDX-License-Identifier: Apache-2.0
"""Machines of big-data.yaml: their units run Spark, and its data take the fast network.

Two machines boot with their own systemd and cloud-init, in namespaces. Java and Spark are there
already, installed by the commands of their unit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.system.cloud_guests import CloudGuest, address, cloud_guest, lan
from tests.system.heat_machines import heat_user_data, spark_layer

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(3600),
]

NAMES = ("n1", "n2")
MASTER = address(1, fast=True)
META = {
    "nearmetal": "big-data",
    "nearmetal-secret": "s3cret" * 6,
    **{f"nm-{name}": f"{address(i)} {address(i, fast=True)}" for i, name in enumerate(NAMES, 1)},
}
PROGRAM = """\
import json, socket
from pyspark import SparkContext

spark = SparkContext(appName="shuffle")
where = spark.parallelize(range(8), 8).map(lambda _: socket.gethostname()).distinct().collect()
rows = spark.parallelize(range(100000), 8).map(lambda n: (n % 1000, bytes(200) + b"%d" % n))
sizes = rows.groupByKey(8).mapValues(lambda found: sum(map(len, found))).values()
print("answer " + json.dumps([sorted(where), sizes.count(), sizes.sum()]))
"""
ANSWER = [[*NAMES], 1000, sum(200 + len(str(n)) for n in range(100000))]
SUBMIT = "spark-submit --total-executor-cores 2 --executor-memory 600m --driver-memory 600m"
PAGE = f"""python3 -c 'import urllib.request
print(urllib.request.urlopen("http://{MASTER}:8080/json/").read().decode())'"""
WAIT_S = 600


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CloudGuest]]:
    data, layer = heat_user_data(packaged=False, spark=True), spark_layer()
    with ExitStack() as stack:
        network = stack.enter_context(lan())
        guests = [
            stack.enter_context(
                cloud_guest(
                    tmp_path_factory.mktemp(name),
                    network,
                    number,
                    data,
                    meta=META,
                    layer=layer,
                    fast=True,
                )
            )
            for number, name in enumerate(NAMES, 1)
        ]
        for guest in guests:
            assert json.loads(guest.booted())["v1"]["errors"] == []
        yield guests


def workers(first: CloudGuest, before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Wait until the master has a worker on each machine, and others than before; returns them."""
    end = time.monotonic() + WAIT_S
    while True:
        done = first.run(PAGE)
        if done.returncode == 0:
            known = json.loads(done.stdout)["workers"]
            alive = frozenset(one["id"] for one in known if one["state"] == "ALIVE")
            if len(alive) == len(NAMES) and alive != before:
                return alive
        assert time.monotonic() < end, (
            done.stdout + done.stderr + first.run("journalctl -u 'nearmetal-*' -n 50").stdout
        )
        time.sleep(1)


def carried(guest: CloudGuest, card: str) -> int:
    """Return the bytes that a card has sent and received."""
    statistics = f"/sys/class/net/{card}/statistics"
    return sum(map(int, guest.tell(f"cat {statistics}/tx_bytes {statistics}/rx_bytes").split()))


def submitted(first: CloudGuest, more: str = "") -> tuple[int, str]:
    """Run the program as the user of the image; returns its exit code, and what it wrote."""
    first.tell(f"cat >~debian/shuffle.py <<'END'\n{PROGRAM}END")
    done = first.run(f"runuser -l debian -c 'timeout {WAIT_S} {SUBMIT} {more} shuffle.py'")
    return done.returncode, done.stdout + done.stderr


def answer(first: CloudGuest) -> object:
    """Run the program; returns its answer."""
    code, said = submitted(first)
    assert code == 0, said[-3000:]
    (found,) = (line for line in said.splitlines() if line.startswith("answer "))
    return json.loads(found.removeprefix("answer "))


def test_the_units_run_one_master_and_a_worker_on_each_machine(machines: list[CloudGuest]) -> None:
    first, second = machines
    workers(first)
    active = "systemctl is-active nearmetal-spark-master nearmetal-spark-worker"
    assert first.tell(active).split() == ["active", "active"]
    assert second.run(active).stdout.split() == ["inactive", "active"]
    for guest in machines:
        assert guest.run("systemctl --failed --plain --no-legend").stdout.strip() == ""
        # Spark was there, so the unit that installs it had nothing to do.
        assert guest.tell("systemctl show -P ConditionResult nearmetal-spark-install") == "no"
        for unit in ("master", "worker"):
            user = guest.tell(f"systemctl show -P DynamicUser nearmetal-spark-{unit}")
            assert user == "yes"
        assert "spark-submit" in guest.tell("cat /etc/motd.d/nearmetal")


def test_a_job_uses_both_machines_and_the_fast_network(machines: list[CloudGuest]) -> None:
    first, second = machines
    workers(first)
    before = {card: carried(second, card) for card in ("eth0", "eth1")}
    assert answer(first) == ANSWER
    # Half of the rows or more go to the other machine, and their bytes compress well.
    assert carried(second, "eth1") - before["eth1"] > 100_000
    assert carried(second, "eth0") - before["eth0"] < 20_000


def test_a_worker_that_dies_comes_back_and_runs_jobs(machines: list[CloudGuest]) -> None:
    first, second = machines
    before = workers(first)
    second.tell("systemctl kill --signal=KILL nearmetal-spark-worker")
    workers(first, before)
    assert second.tell("systemctl show -P NRestarts nearmetal-spark-worker") == "1"
    assert answer(first) == ANSWER


def test_a_program_with_another_secret_is_refused(machines: list[CloudGuest]) -> None:
    first = machines[0]
    workers(first)
    code, said = submitted(first, f"--conf spark.authenticate.secret={'x' * 32}")
    assert code != 0
    assert "answer " not in said
