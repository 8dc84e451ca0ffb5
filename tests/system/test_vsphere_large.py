# SPDX-License-Identifier: Apache-2.0
"""A thousand machines on a simulated vCenter: memory, tasks in flight, calls, and how long it takes."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import pytest

from nearmetal.cluster.apply import down, plan_up, up
from nearmetal.cluster.backends.vsphere.spec import VsphereSpec
from nearmetal.cluster.diff import Action
from tests.system.vcenter import PASSWORD, TEMPLATE, opened, simulator, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.system, pytest.mark.timeout(7200)]

PARALLEL = 8
MEMORY_MIB = 256
MAX_READS = 9
"""How often all machines are read, however many they are.

By each plan, by status, and for rules and removal.
"""

BODY = """\
machine:
  template: %s
  vcpus: 2
  memory: 64 MiB
  adapters: [{kind: vmxnet3, port_group: DC0_DVPG0}]
  guest: {address: 10.0.0.1-10.0.15.200/16}
parallel: %d
hosts:
"""


def body(nr_machines: int) -> str:
    """Return the spec of so many machines on four hosts, below its head."""
    lines = [BODY % (TEMPLATE, PARALLEL)]
    for host in range(4):
        names = ", ".join(f"{{name: n{i}}}" for i in range(host, nr_machines, 4))
        lines.append(f"  - {{name: h{host}, esxi: DC0_C0_H{host}, nodes: [{names}]}}\n")
    return "".join(lines)


def work_through(head: str, nr_machines: int, directory: str) -> dict[str, Any]:
    """Plan, up, plan, change, down, in a process of its own; returns what was measured."""
    from nearmetal.cluster.backends.vsphere import driver  # noqa: PLC0415 - needs the SDK
    from nearmetal.host.vcenter.session import Session  # noqa: PLC0415

    os.environ[PASSWORD] = "pass"
    measured: dict[str, Any] = {"most": 0, "tasks": 0, "reads": 0}
    module: Any = driver
    lock, waiting, wait, fetch = threading.Lock(), [0], Session.wait, module.fetch

    def counted(self: Session, what: str, start: Callable[[], Any]) -> Any:
        with lock:
            waiting[0] += 1
            measured["tasks"] += 1
            measured["most"] = max(measured["most"], waiting[0])
        try:
            return wait(self, what, start)
        finally:
            with lock:
                waiting[0] -= 1

    def fetched(*args: Any, **options: Any) -> Any:
        measured["reads"] += 1
        return fetch(*args, **options)

    module.fetch = fetched
    Session.wait = counted  # type: ignore[method-assign]

    def timed(what: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.monotonic(), time.process_time()
        result = work()
        seconds = round(time.monotonic() - wall, 1), round(time.process_time() - cpu, 1)
        measured[what] = seconds
        (place / "measured.json").write_text(json.dumps(measured))
        return result

    place, text = Path(directory), head + body(nr_machines)
    spec = timed("read the spec", lambda: spec_of(text))
    plan = timed("plan nothing there", lambda: plan_up(opened(spec, place), spec))
    assert plan.count(Action.CREATE) == nr_machines + 1
    timed("up", lambda: up(opened(spec, place), spec))
    assert timed("plan all there", lambda: plan_up(opened(spec, place), spec)).empty
    addresses = Mock(wraps=spec.guest_addresses)
    with patch.object(VsphereSpec, "guest_addresses", addresses):
        nodes = timed("status", opened(spec, place).backend.status)
    assert all(node.healthy for node in nodes)
    assert addresses.call_count <= 1
    changed = spec_of(text.replace("vcpus: 2", "vcpus: 1"))
    plan = timed("change all", lambda: up(opened(changed, place), changed))
    assert sum(c.in_place for c in plan.effective) == nr_machines
    timed("down", lambda: down(opened(changed, place)))
    assert len(plan_up(opened(spec, place), spec).effective) == nr_machines + 1
    measured["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return measured


@pytest.mark.parametrize("nr_machines", [24, pytest.param(1000, marks=pytest.mark.full)])
def test_many_machines_in_bounded_memory_at_most_so_many_at_a_time(
    nr_machines: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    running = simulator(tmp_path)
    vcenter = next(running)
    try:
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            arguments = (vcenter.head("many"), nr_machines, str(tmp_path))
            measured = pool.apply(work_through, arguments)
    finally:
        running.close()
    record_property("measured", measured)
    assert 1 < measured["most"] <= PARALLEL
    assert 0 < measured["reads"] <= MAX_READS
    assert measured["peak_mib"] < MEMORY_MIB
