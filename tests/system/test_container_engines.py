# SPDX-License-Identifier: Apache-2.0
"""Two ranks in two containers of each engine on one host: the examples, and what carried them.

The image has a shell and Python. The build of this checkout is bound into the containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from nearmetal.core.resources import provider_library, share
from nearmetal.job.mpi import Mpi
from nearmetal.job.site import hello
from nearmetal.job.stats import read_stats
from tests.system.local import ROOT, UID
from tests.system.mpi_jobs import INSTALLED
from tests.system.need import lacking, need_build, need_mpi, need_ucx
from tests.system.small_image import PYTHON, make_image

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.root, pytest.mark.timeout(600)]
need_build()
need_mpi(Mpi.OPENMPI5)

IMAGE = "localhost/nearmetal-mpi"
EXAMPLES = share("examples", "containers")
BUILD = (ROOT / "build/mpi").resolve().parent
UCX = BUILD / "ucx/libucx"
SHOWN = (str(ROOT), str(BUILD))
AS_ROOT = {
    f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")
}
PODMAN = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'
PATIENCE_S = 240


def need_program(name: str) -> Path:
    found = shutil.which(name, path="/usr/bin:/usr/sbin")
    if found is None:
        lacking(f"{name} is not installed")
    return Path(found)


@dataclass
class Place:
    """A directory for one engine, as one user, with an image and the statistics of ranks."""

    directory: Path
    uid: int = 0
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("image", "stats", "bin", "home", "run"):
            (self.directory / name).mkdir(mode=0o755)
        (self.directory / "run").chmod(0o700)
        prefix = INSTALLED[Mpi.OPENMPI5].prefix
        files = [*prefix.glob("lib/**/*.so*"), prefix / "bin/prted", provider_library()]
        files += UCX.glob("lib/*.so.0")
        make_image(self.directory / "image", SHOWN, files)
        command = self.directory / "bin/nearmetal"
        start = shlex.join([sys.executable, "-m", "nearmetal.cli.main"])
        command.write_text(f'#!/bin/sh\nexec env PYTHONPATH={ROOT} {start} "$@"\n')
        command.chmod(0o755)
        self.directory.chmod(0o755)
        if self.uid:
            subprocess.run(
                ["chown", "-R", f"{self.uid}:{self.uid}", self.directory], check=True, timeout=60
            )
        self.env |= {
            "PATH": f"{self.directory}/bin:/usr/sbin:/usr/bin:/bin",
            "HOME": str(self.directory / "home"),
            "USER": "root" if not self.uid else "mpi",
            "XDG_RUNTIME_DIR": str(self.directory / "run"),
            "PYTHONDONTWRITEBYTECODE": "1",
        } | AS_ROOT

    @property
    def stats(self) -> Path:
        return self.directory / "stats"

    def run(self, *words: str | Path, stdin: bytes = b"", **env: str) -> str:
        user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        done = subprocess.run(
            [*(user if self.uid else ()), *words],
            env=self.env | env,
            cwd=self.directory,
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, f"{words}: {done.returncode}\n{said}"
        return done.stdout.decode(errors="replace")

    def archive(self) -> bytes:
        image = self.directory / "image"
        return subprocess.run(
            ["tar", "-C", image, "--owner=0", "--group=0", "--numeric-owner", "-c", "."],
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout


@pytest.fixture
def directory() -> Iterator[Path]:
    # The user of rootless containers must reach it.
    made = Path(tempfile.mkdtemp(prefix="nearmetal-test-"))
    before = set(Path("/dev/shm").glob("nearmetal-job-*"))
    yield made
    # Rootless Podman leaves a process that keeps its user namespace, and Docker a mount.
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((made / "run/libpod/tmp/pause.pid").read_text()), signal.SIGKILL)
    for line in Path("/proc/mounts").read_text().splitlines():
        if (place := line.split()[1]).startswith(f"{made}/"):
            subprocess.run(["umount", "--lazy", place], check=True, timeout=60)
    shutil.rmtree(made)
    left = set(Path("/dev/shm").glob("nearmetal-job-*")) - before
    for path in left:
        shutil.rmtree(path)
    assert left == set()


def launcher() -> str:
    return str(INSTALLED[Mpi.OPENMPI5].launcher)


def program() -> list[str]:
    library = INSTALLED[Mpi.OPENMPI5].prefix / "lib/libmpi.so.40"
    return [PYTHON, "-I", hello.__file__, str(library)]


def went_by_memory(stats: Path, relation: str) -> list[dict[str, Any]]:
    """Check that two ranks with two windows of their own exchanged their messages in memory."""
    endpoints = read_stats(stats)
    process = {one["identity"]: (one["host"], one["pid"]) for one in endpoints}
    assert len(set(process.values())) == 2, process
    between = [
        peer
        for one in endpoints
        for peer in one["peers"]
        if process.get(peer["id"]) not in (None, (one["host"], one["pid"]))
    ]
    sent = [peer for peer in between if peer["sent_messages"]]
    assert {(peer["relation"], peer["channel"]) for peer in sent} == {(relation, "shm")}, sent
    assert {name for peer in sent for name in peer["channels"]} == {"shm"}
    assert sum(peer["sent_messages"] for peer in sent) >= 2 * 2 * 100
    return endpoints


def engine_options(place: Place) -> str:
    words = [f"--volume={path}:{path}:ro" for path in SHOWN]
    words += [f"--volume={place.stats}:{place.stats}", f"--env=NEARMETAL_STATS_DIR={place.stats}"]
    words += [f"--env={name}={value}" for name, value in AS_ROOT.items()]
    return " ".join([*words, "--env=PATH=/usr/bin:/bin"])


def podman(directory: Path, uid: int = 0) -> Place:
    need_program("podman")
    need_program("runc")
    place = Place(directory, uid)
    storage = directory / "home/storage"
    for name, text in (("containers", PODMAN), ("storage", STORAGE.format(storage))):
        path = directory / f"{name}.conf"
        path.write_text(text)
        place.env[f"CONTAINERS_{'CONF' if name == 'containers' else 'STORAGE_CONF'}"] = str(path)
    return place


@pytest.mark.parametrize("uid", [0, UID], ids=["root", "rootless"])
def test_two_containers_of_podman(directory: Path, uid: int) -> None:
    place = podman(directory, uid)
    place.run("podman", "import", "-", IMAGE, stdin=place.archive())
    try:
        place.run(
            str(EXAMPLES / "two-containers.sh"),
            *("podman", IMAGE, launcher(), *program()),
            ENGINE_OPTIONS=engine_options(place),
        )
        # The script has removed both.
        assert place.run("podman", "ps", "--all", "--quiet") == ""
    finally:
        place.run("podman", "rm", "--all", "--force")
    hosts = {one["host"] for one in went_by_memory(place.stats, "host")}
    assert {host.partition("-")[0] for host in hosts} == {"near1", "near2"}


def over_ucx(place: Place) -> None:
    endpoints = went_by_memory(place.stats, "host")
    assert {one["interface"] for one in endpoints} == {"ucx"}


def test_two_containers_of_podman_over_ucx(directory: Path) -> None:
    need_ucx()
    place = podman(directory)
    place.run("podman", "import", "-", IMAGE, stdin=place.archive())
    try:
        place.run(
            str(EXAMPLES / "two-containers.sh"),
            *("podman", IMAGE, launcher(), *program()),
            ENGINE_OPTIONS=engine_options(place),
            CONTAINER_OPTIONS="--fabric=ucx",
        )
    finally:
        place.run("podman", "rm", "--all", "--force")
    over_ucx(place)


@pytest.fixture
def docker(directory: Path) -> Iterator[Place]:
    daemon = need_program("dockerd")
    client = need_program("docker")
    place = Place(directory)
    # A daemon of its own, without a network: the containers use that of this machine.
    socket = directory / "socket"
    words = [str(daemon), f"--host=unix://{socket}", f"--data-root={directory}/data"]
    words += [f"--exec-root={directory}/exec", f"--pidfile={directory}/pid"]
    words += ["--iptables=false", "--bridge=none", "--storage-driver=vfs"]
    place.env["DOCKER_HOST"] = f"unix://{socket}"
    (directory / "bin/docker").symlink_to(client)
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(words, env=place.env, stdout=log, stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + 60
            while not socket.exists():
                assert process.poll() is None, (directory / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield place
        finally:
            process.terminate()
            process.wait(60)


def test_two_containers_of_docker(docker: Place) -> None:
    docker.run("docker", "import", "-", IMAGE, stdin=docker.archive())
    docker.run(
        str(EXAMPLES / "two-containers.sh"),
        *("docker", IMAGE, launcher(), *program()),
        ENGINE_OPTIONS=engine_options(docker),
    )
    went_by_memory(docker.stats, "host")
    assert docker.run("docker", "ps", "--all", "--quiet") == ""


@pytest.mark.parametrize("uid", [0, UID], ids=["root", "user"])
def test_two_containers_of_charliecloud(directory: Path, uid: int) -> None:
    need_program("ch-run")
    place = Place(directory, uid)
    binds = [f"--bind={path}:{path}" for path in SHOWN]
    # ch-run binds /tmp, which holds the statistics.
    place.run(
        str(EXAMPLES / "charliecloud.sh"),
        *(str(directory / "image"), launcher(), *program()),
        ENGINE_OPTIONS=" ".join([*binds, f"--set-env=NEARMETAL_STATS_DIR={place.stats}"]),
    )
    # Both see the same processes; their user namespaces differ.
    went_by_memory(place.stats, "node")


def test_a_pod_of_kubernetes_by_podman(directory: Path) -> None:
    need_program("catatonit")
    place = podman(directory)
    place.run("podman", "import", "-", IMAGE, stdin=place.archive())
    pod = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    # The image of the example holds what is bound here.
    shown = {path: path for path in (*SHOWN, str(place.stats))}
    shown[str(provider_library().parent)] = "/usr/lib/nearmetal"
    for number, (path, at) in enumerate(shown.items()):
        volume = {"name": f"v{number}", "hostPath": {"path": path}}
        pod["spec"]["volumes"].append(volume)
        for container in pod["spec"]["containers"]:
            container["volumeMounts"] = [
                *container["volumeMounts"],
                {"name": f"v{number}", "mountPath": at},
            ]
    for container in pod["spec"]["containers"]:
        more = AS_ROOT | {"NEARMETAL_STATS_DIR": str(place.stats), "PATH": "/usr/bin:/bin"}
        container["env"] = container["env"] + [
            {"name": name, "value": value} for name, value in more.items()
        ]
    spec = directory / "pod.json"
    spec.write_text(json.dumps(pod))
    agent = directory / "agent"
    agent.write_text('#!/bin/sh\nhost=$1; shift\nexec podman exec "$host" sh -c "$*"\n')
    agent.chmod(0o755)
    place.run("podman", "play", "kube", "--network=host", str(spec))
    try:
        mount = place.run("podman", "exec", "nearmetal-job-rank0", "cat", "/proc/mounts")
        # Podman gives a volume of its own, not memory; ranks only meet there.
        assert " /run/nearmetal-job " in mount
        far = ["--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", str(agent)]
        far += ["--prtemca", "plm_ssh_no_tree_spawn", "1", "--bind-to", "none"]
        far += ["--host", "nearmetal-job-rank0,nearmetal-job-rank1", "--map-by", "node"]
        # The containers of a pod have one host name.
        far += ["--mca", "coll", "basic,libnbc,self,inter,sync"]
        place.run(launcher(), *far, "-n", "2", *program())
    finally:
        place.run("podman", "play", "kube", "--down", str(spec))
        place.run("podman", "volume", "rm", "--all", "--force")
    went_by_memory(place.stats, "host")
