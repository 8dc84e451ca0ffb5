# SPDX-License-Identifier: Apache-2.0
"""A cluster in one set of namespaces on this machine.

    machine
    └── process 1 of the cluster     PID, mount, network, UTS, IPC (and user) namespace
        ├── bridge br0, launcher     mpirun and mpiexec.hydra run here
        ├── segments/HOST            a private tmpfs per host of the spec
        └── process 1 of each node   eth0 on br0; segments/HOST bound to /run/nearmetal

The state is read from the namespaces themselves, never from a record that may be stale.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Unpack

from nearmetal.cluster.backend import (
    JOB_SUFFIXES,
    SWEEP,
    Backend,
    CommandEntry,
    NodeEntry,
    NodeStatus,
    agent_text,
)
from nearmetal.cluster.backends.local.identity import (
    CLUSTER,
    Init,
    boot_id,
    find_init,
    machine_pid,
    start_time,
    uptime_s,
)
from nearmetal.cluster.backends.local.plan import (
    MODELS,
    ContainerCluster,
    ContainerHost,
    ContainerNetwork,
    ContainerNode,
    part,
)
from nearmetal.cluster.backends.local.spec import LocalSpec
from nearmetal.cluster.model import ClusterSpec
from nearmetal.cluster.resource import Facts, Key, Kind, Observed, Resource
from nearmetal.cluster.store import SPEC, Store
from nearmetal.config.size import format_size
from nearmetal.core.errors import BackendError, CommandError
from nearmetal.core.files import remove_file, replace_file
from nearmetal.core.process import Command, Runner
from nearmetal.core.resources import REPOSITORY

STEP_S = 30.0
"""Limit of a step, which takes milliseconds on a sound machine."""

MEETING = Path("/run/nearmetal")
"""The rundir of its host, as a node sees it."""

MEETINGS = ("segments", "shared")
"""Directories of a host that its nodes share, below CLUSTER."""

AGENT = f"/{CLUSTER}/agent"

UNCONFINED = (
    "this kernel gives root no user namespace of its own (user.max_user_namespaces, or a container "
    "around us), so the nodes lack one of three walls: dropped capabilities and the filter of "
    "system calls remain."
)
_HERE = Path(__file__).parent
_LAUNCHER_TMP = 256 << 20


class LocalBackend(Backend):
    """Implements Backend; see there for the contracts."""

    shares_files = True
    interface = "br0"

    def __init__(self, cluster: str, store: Store, runner: Runner) -> None:
        self.name = cluster
        self._directory = store.cluster(cluster)
        self._runner = runner

    # Observing

    def prepare(self) -> None:
        """Do nothing: nothing outlives a cluster."""

    def finish(self) -> None:
        """Do nothing: every step waits for the resource that it makes."""

    def facts(self) -> Facts:
        """Return the cores that this process may use, and what the kernel forbids."""
        cores = tuple(sorted(os.sched_getaffinity(0)))
        return Facts(cores, cautions=() if self._makes_user_namespaces else (UNCONFINED,))

    @cached_property
    def _makes_user_namespaces(self) -> bool:
        """Whether the cluster gets user namespaces. An ordinary user cannot do without."""
        if os.geteuid() != 0:
            return True
        # Within another container the kernel may allow the namespace and refuse its /proc.
        words = "--user --map-root-user --pid --fork --mount-proc --net true"
        return self._runner.run(Command(("unshare", *words.split())), timeout_s=STEP_S).code == 0

    def observe(self) -> Observed:
        """Read the records inside the living namespaces."""
        init, cluster = find_init(self._directory), Key(Kind.CLUSTER, self.name)
        if init is None:
            dead = [cluster] if self._directory.exists() else []
            return Observed(broken=frozenset(dead))
        sound, broken = [], set()
        for path in sorted((init.inside / "resources").glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
                word, _, name = path.stem.partition(".")
                kind = Kind(word)
                values = MODELS[kind].read(json.loads(path.read_text()))
                sound.append(part(self.name, Key(kind, name), values))
        recorded = {item.key for item in sound}
        for path in (init.inside / "nodes").iterdir():
            key = Key(Kind.NODE, path.name)
            if key not in recorded or self._node_pid(init, path.name) is None:
                broken.add(key)
        if cluster not in recorded:
            broken.add(cluster)
        return Observed(tuple(sound), frozenset(broken))

    def status(self) -> list[NodeStatus]:
        """Return one entry per node that is recorded inside."""
        init = find_init(self._directory)
        if init is None:
            return []
        observed = self.observe()
        return [
            self._node_status(init, item, broken=item.key in observed.broken)
            for item in observed.resources
            if item.key.kind is Kind.NODE
        ]

    def _node_status(self, init: Init, item: Resource, *, broken: bool) -> NodeStatus:
        inner = self._node_pid(init, item.key.name)
        started = None if inner is None else start_time(inner, init.proc)
        values = item.of(ContainerNode)
        return NodeStatus(
            name=item.key.name,
            host=values.host,
            hostname=values.hostname,
            address=values.address,
            slots=values.slots,
            cpus=values.cpus,
            shm=format_size(values.shm),
            pid=0 if inner is None else machine_pid(init, inner),
            uptime_s=0.0 if started is None else uptime_s(started),
            healthy=not broken,
            health="process 1 is gone: run `nearmetal up` again" if broken else "running",
        )

    def incarnations(self) -> Mapping[str, str]:
        """Return when process 1 of each living node began, and in which cluster and boot."""
        init = find_init(self._directory)
        if init is None:
            return {}
        found, ours = {}, f"{boot_id()} {init.pid} {start_time(init.pid, Path('/proc'))}"
        for path in (init.inside / "nodes").iterdir():
            pid = self._node_pid(init, path.name)
            if pid is not None:
                found[path.name] = f"{ours} {pid} {start_time(pid, init.proc)}"
        return found

    def _node_pid(self, init: Init, name: str) -> int | None:
        """Return the pid, as the cluster sees it, of a living node's process 1."""
        try:
            text = (init.inside / "nodes" / name / "pid").read_text(encoding="ascii")
            pid, started = map(int, text.split())
        except (OSError, ValueError):
            return None
        return pid if start_time(pid, init.proc) == started else None

    # Making and removing

    def create(self, item: Resource, spec: ClusterSpec) -> None:
        """Make one resource and record it as the last step."""
        if not isinstance(spec, LocalSpec):
            raise BackendError(f"cluster {self.name}: the spec is not of the local backend")
        makers: dict[Kind, Callable[[Resource, LocalSpec], None]] = {
            Kind.CLUSTER: self._create_cluster,
            Kind.NETWORK: self._create_network,
            Kind.HOST: self._create_host,
            Kind.NODE: self._create_node,
        }
        try:
            makers[item.key.kind](item, spec)
            replace_file(
                _record(self._init(), item.key), json.dumps(dict(item.attributes)), mode=0o644
            )
            if item.key.kind is Kind.NODE:
                self._write_hosts()
        except CommandError as error:
            raise BackendError(
                f"{item.key} of cluster {self.name}: {error.message}", error.hint
            ) from error
        except OSError as error:
            raise BackendError(f"{item.key} of cluster {self.name}: {error}") from error

    def delete(self, key: Key) -> None:
        """Remove one resource and its record."""
        if key.kind is Kind.CLUSTER:
            self._delete_cluster()
            return
        init = find_init(self._directory)
        if init is None:
            return
        _record(init, key).unlink(missing_ok=True)
        if key.kind is Kind.NODE:
            self._script("remove", {"name": key.name})
            self._write_hosts()
        elif key.kind is Kind.HOST:
            self._delete_host(key.name)
        else:
            self._delete_network()

    def _create_cluster(self, item: Resource, spec: LocalSpec) -> None:
        self._delete_cluster(keep_directory=True)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._directory / SPEC, spec.canonical(), mode=0o644)
        config = {
            "directory": str(self._directory),
            "boot_id": boot_id(),
            "user_namespace": self._makes_user_namespaces,
            "show": self._shown(item.of(ContainerCluster).show),
            "tmp_bytes": _LAUNCHER_TMP,
            "agent": agent_text(_HERE / "agent.sh"),
            "confine": (_HERE / "confine.py").read_text(encoding="utf-8"),
            "python": os.path.realpath(sys.executable),
            "hosts": "127.0.0.1 localhost\n",
        }
        self._script("cluster", config, inside=False)

    def _delete_cluster(self, *, keep_directory: bool = False) -> None:
        init = find_init(self._directory)
        if init is not None and not init.end():
            raise BackendError(
                f"cluster {self.name}: process {init.pid} does not end",
                "check whether a debugger holds it",
            )
        remove_file(self._directory / "init.json")
        if not keep_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _create_network(self, item: Resource, _spec: LocalSpec) -> None:
        self._delete_network()
        network = item.of(ContainerNetwork)
        prefix = ipaddress.IPv4Network(network.subnet).prefixlen
        self._ip(
            None,
            f"link add br0 mtu {network.mtu} address {_mac(network.launcher)} type bridge",
            "link set br0 addrgenmode none",
            f"addr add {network.launcher}/{prefix} dev br0",
            "link set br0 up",
        )

    def _delete_network(self) -> None:
        self._runner.run(self.on_launcher(["ip", "link", "del", "br0"]), timeout_s=STEP_S)

    def _create_host(self, item: Resource, _spec: LocalSpec) -> None:
        self._delete_host(item.key.name)
        nr_bytes = item.of(ContainerHost).segments
        for kind in MEETINGS:
            target = f"/{CLUSTER}/{kind}/{item.key.name}"
            (self._init().inside / kind / item.key.name).mkdir(mode=0o700)
            options = f"size={nr_bytes},mode=0700,nosuid,nodev"
            argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", target]
            self._runner.check(self.on_launcher(argv), timeout_s=STEP_S)

    def _delete_host(self, name: str) -> None:
        for kind in MEETINGS:
            argv = ["umount", "-l", f"/{CLUSTER}/{kind}/{name}"]
            self._runner.run(self.on_launcher(argv), timeout_s=STEP_S)
            with contextlib.suppress(FileNotFoundError):
                (self._init().inside / kind / name).rmdir()

    def _create_node(self, item: Resource, spec: LocalSpec) -> None:
        name, node = item.key.name, item.of(ContainerNode)
        self._script("remove", {"name": name})
        config = {
            "name": name,
            "host": node.host,
            "hostname": node.hostname,
            "pids": node.pids,
            "shm_bytes": node.shm,
            "show": self._shown(spec.show),
            "hosts": "127.0.0.1 localhost\n",
        }
        self._script("node", config)
        init = self._init()
        pid = self._node_pid(init, name)
        if pid is None:
            raise BackendError(f"node {name} ended immediately")
        cpus = ",".join(map(str, node.cpus)) + "\n"
        replace_file(init.inside / "nodes" / name / "cpus", cpus, mode=0o644)
        network = ipaddress.IPv4Network(spec.network.subnet)
        link = f"v{int(ipaddress.IPv4Address(node.address)) - int(network[0])}"
        mtu = spec.network.mtu
        # The kernel removes that of a node that has ended later, with its last connection.
        self._runner.run(self.on_launcher(["ip", "link", "del", link]), timeout_s=STEP_S)
        self._ip(
            None,
            f"link add {link} mtu {mtu} type veth peer name eth0 mtu {mtu} "
            f"address {_mac(node.address)} netns {pid}",
            f"link set {link} addrgenmode none",
            f"link set {link} master br0 up",
        )
        self._ip(
            pid,
            "link set eth0 addrgenmode none",
            f"addr add {node.address}/{network.prefixlen} dev eth0",
            "link set eth0 up",
        )

    def _write_hosts(self) -> None:
        """Rewrite each /etc/hosts in place, because it is bind-mounted."""
        init = self._init()
        observed = self.observe()
        lines = {}
        for bridge in observed.named(ContainerNetwork).values():
            lines["launcher"] = f"{bridge.launcher} launcher"
        for name, node in observed.named(ContainerNode).items():
            lines[name] = f"{node.address} {' '.join(dict.fromkeys((name, node.hostname)))}"
        for place, own in lines.items():
            others = [line for name, line in lines.items() if name != place]
            text = "\n".join(["127.0.0.1 localhost", own, *others]) + "\n"
            path = init.inside / "hosts"
            if place != "launcher":
                path = init.inside / "nodes" / place / "hosts"
            with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="ascii") as file:
                file.truncate(0)
                file.write(text)

    # Reaching in

    def _init(self) -> Init:
        init = find_init(self._directory)
        if init is None:
            raise BackendError(f"cluster {self.name} is not up", "run `nearmetal up SPEC` first")
        return init

    def _enter(self, argv: Sequence[str], **entry: Unpack[NodeEntry]) -> Command:
        namespaces = ["-m", "-u", "-i", "-n", "-p"]
        init = self._init()
        if not Path("/proc/self/ns/user").samefile(f"/proc/{init.pid}/ns/user"):
            namespaces = ["-U", "--preserve-credentials", *namespaces]
        start = ["nsenter", "-t", str(init.pid), *namespaces, "--", AGENT]
        env, workdir = entry.get("env"), entry.get("workdir")
        full = dict(os.environ if env is None else env)
        if workdir is not None:
            full["NEARMETAL_WORKDIR"] = str(workdir)
        return Command((*start, *argv), env=full)

    def on_node(self, node: str, argv: Sequence[str], **entry: Unpack[NodeEntry]) -> Command:
        """Enter through the agent, which pins the command to the node's cores."""
        return self._enter(["--exec", node, *argv], **entry)

    def on_launcher(self, argv: Sequence[str], **entry: Unpack[CommandEntry]) -> Command:
        """Enter the outer namespaces."""
        return self._enter(["--here", *argv], **entry)

    def remote_shell(self) -> str:
        """Return the agent, which has the same path everywhere."""
        return AGENT

    def job_root(self) -> Path:
        """Return the rundir."""
        return MEETING

    def staged(self, node: str) -> Path | None:
        """Return None: nodes see our files."""
        del node
        return None

    def meeting_directory(self, host: str) -> Path:
        """Return the host's tmpfs, through the root directory of the cluster's process 1."""
        return self._init().inside / "segments" / host

    def supervisor(self, job: str, nodes: Sequence[str], deadline_s: float | None) -> Command:
        """Run job.py, which lives in the cluster."""
        observed = self.observe()
        parts = observed.named(ContainerNode)
        show = [path for c in observed.named(ContainerCluster).values() for path in c.show]
        chosen = {name: parts[name] for name in nodes if name in parts}
        config = {
            "job": job,
            "nodes": {name: node.shm for name, node in chosen.items()},
            "hosts": sorted({node.host for node in chosen.values()}),
            "suffixes": JOB_SUFFIXES,
            "show": self._shown(show),
            "tmp_bytes": max((node.shm for node in chosen.values()), default=_LAUNCHER_TMP),
            "deadline_s": deadline_s,
        }
        argv = [sys.executable, "-I", "-S", str(_HERE / "job.py"), json.dumps(config)]
        return self.on_launcher(argv, env={"PATH": "/usr/bin:/bin"}, workdir=Path("/"))

    def end_marked(self, marker: str) -> int:
        """Kill from the outer namespace, which sees the processes of all nodes."""
        argv = ["sh", "-c", f"marker=$1{SWEEP}echo $killed", "sh", marker]
        try:
            done = self._runner.check(self.on_launcher(argv), timeout_s=STEP_S)
        except CommandError as error:
            raise BackendError(f"cannot end a job: {error.message}", error.hint) from error
        shutil.rmtree(self._init().inside / "jobs" / marker.partition("=")[2], ignore_errors=True)
        return int(done.text)

    def _ip(self, node: int | None, *lines: str) -> None:
        """Configure the launcher's network or that of a node's process 1, which may not itself."""
        into = [] if node is None else ["nsenter", "-t", str(node), "-n", "--"]
        enter = self.on_launcher([*into, "ip", "-batch", "-"])
        text = "".join(line + "\n" for line in lines).encode()
        self._runner.check(replace(enter, stdin=text), timeout_s=STEP_S)

    def _script(self, mode: str, config: Mapping[str, object], *, inside: bool = True) -> int:
        """Run init.py; return its number, or raise BackendError with its reason."""
        argv = [sys.executable, "-I", "-S", str(_HERE / "init.py"), mode]
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
        command = Command(tuple(argv), env)
        if inside:
            command = self.on_launcher(argv, env=env, workdir=Path("/"))
        command = replace(command, stdin=json.dumps(config).encode())
        completed = self._runner.run(command, timeout_s=STEP_S)
        try:
            answer = json.loads(completed.stdout)
            if "pid" in answer:
                return int(answer["pid"])
            reason = str(answer["error"])
        except (ValueError, KeyError, TypeError):
            reason = completed.error_tail or f"exit code {completed.code}"
        raise BackendError(f"{mode} in cluster {self.name}: {reason}", _namespace_hint(reason))

    @staticmethod
    def _shown(show: Sequence[str]) -> list[str]:
        """Return the directories that nodes must see although a private mount hides them."""
        paths = [*show, sys.prefix, sys.base_prefix, str(REPOSITORY)]
        paths += filter(None, os.environ.get("NEARMETAL_MPI_PATH", "").split(os.pathsep))
        real = sorted({os.path.realpath(path) for path in paths} | set(paths))
        return [p for p in real if not any(p != q and p.startswith(q + "/") for q in real)]


def _namespace_hint(reason: str) -> str:
    if "make namespaces" not in reason and "Operation not permitted" not in reason:
        return ""
    if os.geteuid() == 0:
        return "in a container, start it with --privileged, or with SYS_ADMIN and without seccomp"
    return (
        "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, "
        "user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0"
    )


def _mac(address: str) -> str:
    """Return the MAC address for an IPv4 address.

    A node that is made again has the same one: its neighbours keep what they know for over a minute.
    """
    return ":".join(f"{byte:02x}" for byte in (2, 0, *ipaddress.IPv4Address(address).packed))


def _record(init: Init, key: Key) -> Path:
    return init.inside / "resources" / f"{key.kind.value}.{key.name}.json"


def open_backend(spec: LocalSpec, store: Store, runner: Runner) -> LocalBackend:
    """Return the backend of a spec's cluster; nothing is touched yet."""
    return LocalBackend(spec.name, store, runner)
