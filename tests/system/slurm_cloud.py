# SPDX-License-Identifier: Apache-2.0
"""A Slurm whose nodes reach a cloud of this machine, from the networks of their own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import pytest
import yaml

from nearmetal.slurm import holder
from nearmetal.slurm.servers import STORE
from tests.system.slurm_site import NODES, SlurmSite

if TYPE_CHECKING:
    from tests.system.openstack_cloud import RealCloud

Found = TypeVar("Found")

SETTINGS = """\
version: 1
cloud: member
clouds: {clouds}
images: {{default: {image}}}
flavor: hpc.small
networks: [{{name: mpi, subnet: {subnet}}}]
max_servers: {most}
timeout: 120
boot_timeout: {boot}
"""
_PIECE = 1 << 16


def settle(site: SlurmSite, image: str, **words: object) -> None:
    """Write the settings about servers beside those of the plugin."""
    etc = site.directory / "etc/slurm"
    path, clouds = etc / "slurm-openstack.yaml", etc / "clouds.yaml"
    path.touch(0o600)
    path.write_text(SETTINGS.format(clouds=clouds, image=image, **words))
    plugin = etc / "nearmetal.toml"
    plugin.write_text(plugin.read_text().replace("[limits]\n", '[limits]\nservers = "8"\n', 1))
    slurm = etc / "slurm.conf"
    text = slurm.read_text()
    # Epilogs remove servers.
    slurm.write_text(text.replace("PrologEpilogTimeout=60", "PrologEpilogTimeout=300"))
    site.ok("root", "scontrol", "reconfigure")


@contextlib.contextmanager
def joined(site: SlurmSite, cloud: RealCloud) -> Iterator[None]:
    """Let every node reach the services on 127.0.0.1, and give the site their clouds.yaml."""
    clouds = site.directory / "etc/slurm/clouds.yaml"
    clouds.touch(0o600)
    clouds.write_text(yaml.safe_dump({"clouds": dict(cloud.content)}))
    sdk = cloud.connected()
    kinds = ("identity", "compute", "network", "image", "placement")
    ports = {urlsplit(sdk.session.get_endpoint(service_type=kind)).port or 0 for kind in kinds}
    with doors(site, ports):
        yield


@contextlib.contextmanager
def doors(site: SlurmSite, ports: Iterable[int]) -> Iterator[None]:
    """Lead connections of nodes to these ports of their own addresses to the same address here."""
    with contextlib.ExitStack() as stack:
        for node in NODES:
            space = os.open(f"/proc/{site.pids[node]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, space)
            for port in ports:
                stack.enter_context(_door(space, port))
        yield


def _there(space: int, work: Callable[[], Found]) -> Found:
    """Do some work in a network namespace, by a thread that ends with it."""
    found: list[Found] = []

    def enter() -> None:
        holder.enter_network(space)
        found.append(work())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    (one,) = found
    return one


@contextlib.contextmanager
def _door(space: int, port: int) -> Iterator[None]:
    """Accept connections to any address of a namespace, and lead them to the same address here."""

    def listener() -> socket.socket:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("0.0.0.0", port))  # noqa: S104 - in a namespace of a test
        one.listen(64)
        return one

    with _there(space, listener) as door:
        thread = threading.Thread(target=_accept, args=(door,), daemon=True)
        thread.start()
        yield
        door.shutdown(socket.SHUT_RDWR)
        thread.join()


def _accept(door: socket.socket) -> None:
    while True:
        try:
            one, _ = door.accept()
        except OSError:
            return
        threading.Thread(target=_lead, args=(one,), daemon=True).start()


def _lead(one: socket.socket) -> None:
    with (
        one,
        contextlib.suppress(OSError),
        socket.create_connection(one.getsockname(), 60) as other,
    ):
        other.settimeout(None)
        back = threading.Thread(target=_copy, args=(other, one), daemon=True)
        back.start()
        _copy(one, other)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def holders(site: SlurmSite) -> list[int]:
    """Processes 1 of containers, by their records; the site's own numbers."""
    found = []
    for path in [p for node in NODES for p in site.state(node).glob("job-*/holder")]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found.append(int(path.read_text().split()[0]))
    return found


def keepers(site: SlurmSite) -> list[int]:
    """Children of processes 1 that make servers, or stand for them."""
    found = []
    for pid in holders(site):
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{site.pid}/root/proc/{pid}/task/{pid}/children")
            found += [int(one) for one in children.read_text().split()]
    return found


def reclaim(site: SlurmSite, node: str) -> None:
    """Run the watchdog of a node until it succeeds; an API that has just started may fail it."""
    for _ in range(3):
        said = watchdog(site, node)
        if not said:
            return
    pytest.fail(said)


def watchdog(site: SlurmSite, node: str) -> str:
    """Run the watchdog of a node once; returns why servers stay, or "". Nothing else may stay."""
    words = ("env", f"SLURMD_NODENAME={node}", site.launcher, "slurm", "reclaim", "--ended")
    # Some servers, and for each as long as the cloud may take.
    done = site.on_node(node, *words, "--drain", within_s=600)
    assert done.returncode == 0 or "stay in the cloud" in done.stderr, done.stderr
    return done.stderr if done.returncode else ""


def last_look(site: SlurmSite) -> None:
    """Have the watchdogs look for what keepers asked for when they died, as if it were later."""
    for path in on_record(site):
        about = json.loads(path.read_text())
        assert about["ended"], about
        path.write_text(json.dumps(about | {"ended": about["ended"] - 1000}))
    for node in NODES:
        reclaim(site, node)
    assert on_record(site) == []


def on_record(site: SlurmSite) -> list[Path]:
    """The records of servers of all nodes, as this machine sees them."""
    roots = [Path(f"/proc/{site.pids[node]}/root{STORE}") for node in NODES]
    return [path for root in roots for path in root.glob("jobs/*")]
