# SPDX-License-Identifier: Apache-2.0
"""Real OpenStack services on 127.0.0.1. Nova has its fake hypervisors, or one of libvirt.

    unshare --mount --mount-proc --pid --ipc --fork --kill-child PYTHON -m tests.openstack.cloud

It is process 1 of namespaces of its own, and all files are in a tmpfs there, so its end is the end
of everything. It ends when its input ends, so not even SIGKILL of its parent leaves anything. The
first line of its output is JSON: how to log in, or {"error": REASON}. A line `off` or `on` of its
input switches a hypervisor of libvirt, `kill NAME` or `start NAME` the API of a service; a line of
output follows. With --make, it makes DIR: the database with all tables and without secrets, from
which later starts begin.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import queue
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

from openstack.exceptions import SDKException

from tests.openstack import database, hypervisor, seed
from tests.openstack.settings import REGION, USERS, Place, write_settings
from tests.ports import free_ports

STATE = Path("/run/nearmetal-openstack")
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent

APIS = {
    "keystone": "keystone.wsgi.api",
    "placement": "placement.wsgi.api",
    "glance": "glance.wsgi.api",
    "neutron": "neutron.wsgi.api",
    "nova": "nova.wsgi.osapi_compute",
    "heat": "heat.wsgi.api",
    "blazar": "blazar.wsgi.api",
}

_START_S = 240


class CloudError(Exception):
    """A part of the cloud does not work, with the reason."""


class Cloud:
    """The services as processes of this one."""

    def __init__(
        self, without: Collection[str] = (), bridge: str = "", *, pair: bool = False
    ) -> None:
        self.apis = [name for name in APIS if name not in without]
        self.sockets = {name: _listener() for name in APIS}
        ports = {name: one.getsockname()[1] for name, one in self.sockets.items()}
        ports |= zip(("broker", "epmd", "broker-peer"), free_ports(3), strict=True)
        for name in without:
            self.sockets.pop(name).close()
        users = (*USERS, "admin", "member", "broker", "stacks")
        passwords = {name: secrets.token_hex(16) for name in users}
        self.place = Place(STATE, ports, passwords, bridge, "blazar" in self.apis, pair)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.logs = STATE / "log"
        self.logs.mkdir(parents=True)

    # Processes

    def environment(self) -> dict[str, str]:
        state = str(STATE)
        config = {
            f"OS_{name.upper()}_CONFIG_DIR": f"{state}/{name}"
            for name in ("keystone", "placement", "glance", "nova", "neutron", "blazar")
        }
        return {
            "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": state,
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{HERE.parents[1]}:{state}/packages",
            "PYTHONWARNINGS": "ignore",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "1",
            "OS_NEUTRON_CONFIG_FILES": "neutron.conf",
            **config,
        }

    def start(self, name: str, argv: list[str], **more: str) -> None:
        """Begin a service; its output is its log."""
        descriptors = [self.sockets[name].fileno()] if name in self.sockets else []
        with (self.logs / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                argv,
                env={**self.environment(), **more},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
                cwd=STATE,
            )

    def run(self, name: str, *argv: str, **more: str) -> None:
        """Run a program to its end."""
        self.start(name, [sys.executable, str(BIN / argv[0]), *argv[1:]], **more)
        code = self.running.pop(name).wait()
        if code:
            raise CloudError(f"{argv[0]} ended with {code}:\n{self.tail(name)}")

    def tail(self, name: str) -> str:
        """Return the end of a log."""
        text = (self.logs / f"{name}.log").read_text(errors="replace")
        return text[-3000:]

    def check(self) -> None:
        """Raise CloudError if a service has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise CloudError(f"{name} ended with {process.returncode}:\n{self.tail(name)}")

    # Parts

    def begin_database(self) -> None:
        self.start("database", database.server(self.place))

    def begin_broker(self, program: Path) -> None:
        """Begin RabbitMQ, which has no guest user and listens on 127.0.0.1 only."""
        home = STATE / "broker"
        home.mkdir()
        ports = self.place.ports
        settings = [
            f"listeners.tcp.local = 127.0.0.1:{ports['broker']}",
            "default_user = nearmetal",
            f"default_pass = {self.place.passwords['broker']}",
            "log.console = true",
            "log.file = false",
        ]
        (home / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
        (home / "enabled_plugins").write_text("[].\n")
        self.start(
            "broker",
            [str(program)],
            ERL_EPMD_ADDRESS="127.0.0.1",
            ERL_EPMD_PORT=str(ports["epmd"]),
            RABBITMQ_NODENAME="rabbit@localhost",
            RABBITMQ_DIST_PORT=str(ports["broker-peer"]),
            RABBITMQ_CONF_ENV_FILE=str(home / "none"),
            RABBITMQ_CONFIG_FILE=str(home / "rabbitmq.conf"),
            RABBITMQ_ADVANCED_CONFIG_FILE=str(home / "advanced.config"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(home / "enabled_plugins"),
            RABBITMQ_MNESIA_BASE=str(home),
            RABBITMQ_LOG_BASE=str(home),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        )

    def write_keys(self) -> None:
        """Make the keys of Keystone's tokens and credentials."""
        for name in ("tokens", "credentials"):
            directory = STATE / "keystone" / name
            directory.mkdir(parents=True)
            for number in (0, 1):
                key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
                (directory / str(number)).write_text(key)

    def begin_api(self, name: str) -> None:
        server = str(HERE / "wsgi_server.py")
        descriptor = self.sockets[name].fileno()
        # Heat looks for its configuration at home only.
        home = str(STATE / name)
        self.start(name, [sys.executable, server, APIS[name], str(descriptor)], HOME=home)

    def wait_for_api(self, name: str) -> None:
        """Wait for the first answer: requests wait in the socket until the service takes them."""
        end = time.monotonic() + _START_S
        while True:
            self.check()
            url = f"http://127.0.0.1:{self.place.ports[name]}/"
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except urllib.error.HTTPError:
                return  # an answer
            except OSError:
                if time.monotonic() > end:
                    raise CloudError(f"{name} does not answer:\n{self.tail(name)}") from None

    def wait_for_broker(self) -> None:
        """Wait until RabbitMQ listens: services that come before it wait for long seconds."""
        end = time.monotonic() + _START_S
        while True:
            self.check()
            try:
                socket.create_connection(("127.0.0.1", self.place.ports["broker"]), 5).close()
            except OSError:
                if time.monotonic() > end:
                    raise CloudError(f"no broker:\n{self.tail('broker')}") from None
                time.sleep(0.1)
            else:
                return

    def kill_api(self, name: str) -> None:
        """Kill an API amid its requests; later ones wait in its socket."""
        with self.running.pop(name) as process:
            process.kill()

    def _wait_for(self, path: Path, name: str) -> None:
        end = time.monotonic() + _START_S
        while not path.exists():
            self.check()
            if time.monotonic() > end:
                raise CloudError(f"no {name}:\n{self.tail(name)}")
            time.sleep(0.1)

    def prepare_hypervisors(self) -> None:
        """Prepare the namespaces; the first hypervisor is in this one, which the others copy."""
        first, *others = self.place.hosts
        for host in others:
            spaces, module = ("unshare", "--mount", "--uts"), "tests.openstack.hypervisor"
            self.start(f"host-{host}", [*spaces, sys.executable, "-m", module, str(STATE), host])
            ready = hypervisor.socket_of(STATE, host).parent / hypervisor.READY
            self._wait_for(ready, f"host-{host}")
        hypervisor.prepare(STATE, first)

    def _start_on(self, host: str, name: str, argv: list[str]) -> None:
        """Begin a program of a hypervisor, in its namespaces."""
        holder = self.running.get(f"host-{host}")
        inside = ["nsenter", "--mount", "--uts", f"--target={holder.pid}"] if holder else []
        self.start(f"{name}-{host}", [*inside, *argv])

    def begin_hypervisor(self, host: str) -> None:
        """Begin libvirtd, and wait until it listens."""
        self._start_on(host, "libvirtd", hypervisor.daemon(STATE, host))
        self._wait_for(hypervisor.socket_of(STATE, host), f"libvirtd-{host}")

    def power_off(self) -> None:
        """End all that runs on the first hypervisor at once; other services are elsewhere."""
        host = self.place.hosts[0]
        for name in ("libvirtd", "nova-compute"):
            self.running.pop(f"{name}-{host}").kill()
        hypervisor.power_off(STATE, host)

    def power_on(self) -> None:
        """Start what a hypervisor starts at its boot."""
        self.begin_hypervisor(self.place.hosts[0])
        self.begin_compute(self.place.hosts[0])

    def begin_nova(self) -> None:
        """Begin what is behind Nova's API."""
        for name in ("nova-conductor", "nova-scheduler"):
            config = str(STATE / "nova" / "nova.conf")
            self.start(name, [sys.executable, str(BIN / name), "--config-file", config])
        for host in self.place.hosts:
            self.begin_compute(host)

    def begin_compute(self, host: str) -> None:
        """Begin Nova's part on a hypervisor."""
        config = str(self.place.compute(host) / "nova.conf")
        program = str(BIN / "nova-compute" if self.place.bridge else HERE / "fake_compute.py")
        argv = [sys.executable, program, "--config-file", config]
        self._start_on(host, "nova-compute", argv)

    def begin_behind(self, api: str, name: str) -> None:
        """Begin the one program behind an API."""
        config = str(STATE / api / f"{api}.conf")
        self.start(name, [sys.executable, str(BIN / name), "--config-file", config])

    # All of it

    def make(self) -> None:
        """Make the tables of all services, and users and endpoints in Keystone."""
        database.install(STATE / "mysql")
        self.begin_database()
        write_settings(self.place)
        self.write_keys()
        database.make_databases(self.place)
        config = {name: str(STATE / name / f"{name}.conf") for name in ("nova", "neutron")}
        self.run(
            "keystone-db", "keystone-manage", "--config-dir", str(STATE / "keystone"), "db_sync"
        )
        self.run(
            "bootstrap",
            "keystone-manage",
            *("--config-dir", str(STATE / "keystone"), "bootstrap"),
            *("--bootstrap-region-id", REGION),
            *("--bootstrap-public-url", self.place.url("keystone")),
            *("--bootstrap-internal-url", self.place.url("keystone")),
            OS_BOOTSTRAP_PASSWORD=self.place.passwords["admin"],
        )
        self.begin_api("keystone")
        placement = str(STATE / "placement" / "placement.conf")
        self.run("placement-db", "placement-manage", "--config-file", placement, "db", "sync")
        glance = str(STATE / "glance" / "glance-api.conf")
        self.run("glance-db", "glance-manage", "--config-file", glance, "db_sync")
        neutron = ("neutron-db-manage", "--config-file", config["neutron"])
        self.run("neutron-db", *neutron, "upgrade", "heads")
        heat = str(STATE / "heat" / "heat.conf")
        self.run("heat-db", "heat-manage", "--config-file", heat, "db_sync")
        blazar = str(STATE / "blazar" / "blazar.conf")
        self.run("blazar-db", "blazar-db-manage", "--config-file", blazar, "upgrade", "head")
        nova = ("nova-manage", "--config-file", config["nova"])
        self.run("nova-api-db", *nova, "api_db", "sync")
        # Cells are told apart by templates: their secrets come from the settings of each start.
        address = "{scheme}://{username}@{hostname}"
        self.run(
            "nova-cell0",
            *(*nova, "cell_v2", "map_cell0"),
            *("--database_connection", address + "/nova_cell0?{query}"),
        )
        self.run("nova-db", *nova, "db", "sync")
        self.run(
            "nova-cell1",
            *(*nova, "cell_v2", "create_cell", "--name", "cell1"),
            *("--database_connection", address + "/nova?{query}"),
            *("--transport-url", "{scheme}://{username}:{password}@{hostname}:{port}/"),
        )
        self.wait_for_api("keystone")
        seed.users(self.place)
        self.running["keystone"].kill()
        self.running["database"].terminate()
        self.running["database"].wait()

    def serve(self, tables: Path, broker: Path) -> None:
        """Begin everything, and wait until it works."""
        self.begin_broker(broker)
        shutil.copytree(tables, STATE / "mysql")
        self.begin_database()
        write_settings(self.place)
        self.write_keys()
        database.renew(self.place)
        for name in self.apis:
            self.begin_api(name)
        self.wait_for_broker()
        if self.place.bridge:
            self.prepare_hypervisors()
            for host in self.place.hosts:
                self.begin_hypervisor(host)
            hypervisor.keep_bridged(STATE, self.place.bridge)
        self.begin_nova()
        for api, name in (("heat", "heat-engine"), ("blazar", "blazar-manager")):
            if api in self.apis:
                self.begin_behind(api, name)
        for name in self.apis:
            self.wait_for_api(name)
        seed.content(self.place, self.check, _START_S)


def _listener() -> socket.socket:
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen(64)
    return one


def _take_input(words: queue.Queue[str]) -> None:
    """Pass on each line, and end with the input: the kernel then kills all in the namespace."""
    for line in sys.stdin:
        words.put(line.strip())
    os._exit(0)


def _obey(cloud: Cloud, words: queue.Queue[str]) -> NoReturn:
    """Do what each line says, and say when it is done; raises CloudError if a service ends."""
    while True:
        cloud.check()
        with contextlib.suppress(queue.Empty):
            line = words.get(timeout=1)
            word, _, name = line.partition(" ")
            if name:
                {"kill": cloud.kill_api, "start": cloud.begin_api}[word](name)
            else:
                {"off": cloud.power_off, "on": cloud.power_on}[word]()
            _say(done=line)


def _say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _fail(error: Exception) -> NoReturn:
    _say(error=str(error))
    sys.exit(1)


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--broker", type=Path)
    parser.add_argument("--logs", type=Path, help="where the logs go if something fails")
    parser.add_argument("--heat", action="store_true", help="also serve stacks")
    parser.add_argument("--leases", action="store_true", help="also serve leases of hypervisors")
    parser.add_argument("--bridge", default="", help="real guests, with their ports on this bridge")
    parser.add_argument("--pair", action="store_true", help="two hypervisors of real guests")
    parser.add_argument("--make", action="store_true")
    given = parser.parse_args()
    if os.getpid() != 1:
        sys.exit("cloud.py must be process 1 of namespaces of its own: see its first lines")
    os.umask(0o077)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g,mode=0755", "tmpfs", "/run"], check=True)
    begin = time.monotonic()
    try:
        asked = {"heat": given.heat, "blazar": given.leases}
        cloud = Cloud(
            [name for name, wanted in asked.items() if not wanted], given.bridge, pair=given.pair
        )
        if given.make:
            cloud.make()
            shutil.copytree(STATE / "mysql", given.database)
            return
        words: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_take_input, args=(words,), daemon=True).start()
        cloud.serve(given.database, given.broker)
        _say(seconds=round(time.monotonic() - begin, 1), clouds=seed.clouds(cloud.place))
        _obey(cloud, words)
    except (CloudError, subprocess.CalledProcessError, OSError, SDKException) as error:
        if given.logs:
            shutil.copytree(STATE / "log", given.logs, dirs_exist_ok=True)
        _fail(error)


main()
