# SPDX-License-Identifier: Apache-2.0
"""env, wrap and doctor with the launchers of real MPIs, and with libraries that only claim to be."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nearmetal.core.resources import provider_library
from nearmetal.job.mpi import Mpi
from nearmetal.job.site import hello
from nearmetal.job.stats import JobVerdict, judge, read_stats
from tests.system.local import ROOT
from tests.system.mpi_jobs import INSTALLED, MPIS
from tests.system.need import need_build, need_mpi

pytestmark = [pytest.mark.system, pytest.mark.mpi]
need_build()
need_mpi(*Mpi)

SELECTING = ("FI_", "OMPI_", "PRTE_", "MPIR_", "I_MPI_", "NEARMETAL_", "UCX_", "LD_LIBRARY_PATH")
OVER_UCX = ("openmpi4", "openmpi5", "mpich5")
WAYS = [*((mpi, "ofi") for mpi in MPIS), *((mpi, "ucx") for mpi in OVER_UCX)]
AS_ROOT = {
    f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")
}
AGENT = """\
#!/bin/sh
# usage: agent HOST COMMAND...: a remote shell that forwards no variable, as sshd does.
shift
exec env -i PATH=/usr/bin:/bin HOME=/ sh -c "$*"
"""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(SELECTING)}
    return kept | {"PYTHONPATH": str(ROOT)} | more


def nearmetal(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "nearmetal.cli.main", *words]
    return subprocess.run(
        argv, env=environment(**env), text=True, capture_output=True, timeout=240, check=False
    )


def options(mpi: str) -> list[str]:
    if mpi.startswith("openmpi"):
        return ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    return []


def ranks(mpi: str, launcher: Path | str) -> list[str]:
    """Return the command of two ranks that exchange messages."""
    found = INSTALLED[Mpi(mpi)]
    directory = found.library_directory or Path("/usr/lib/x86_64-linux-gnu")
    program = [sys.executable, "-I", hello.__file__, str(directory / found.mpi.family.value)]
    return [str(launcher), *options(mpi), "-n", "2", *program]


def carried(directory: Path) -> dict[str, int]:
    proof = judge(read_stats(directory), 2)
    assert proof.verdict is JobVerdict.PROVEN, proof
    return proof.messages


@pytest.mark.parametrize(("mpi", "fabric"), WAYS)
def test_a_shell_that_evaluates_env_runs_jobs_by_nearmetal(
    mpi: str, fabric: str, tmp_path: Path
) -> None:
    launcher = INSTALLED[Mpi(mpi)].launcher
    said = nearmetal("env", "--fabric", fabric, str(launcher))
    assert said.returncode == 0, said.stderr
    words = ["sh", "-c", f'eval "$1"; {shlex.join(ranks(mpi, launcher))}', "sh", said.stdout]
    env = environment(NEARMETAL_STATS_DIR=str(tmp_path), **AS_ROOT)
    done = subprocess.run(words, env=env, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert carried(tmp_path)["shm"] >= 2 * 200
    interfaces = {endpoint["interface"] for endpoint in read_stats(tmp_path)}
    assert interfaces == {"ucx" if fabric == "ucx" else "libfabric"}


@pytest.mark.parametrize("mpi", OVER_UCX)
def test_doctor_over_ucx_names_the_ucx_that_the_mpi_loads(mpi: str) -> None:
    done = nearmetal("doctor", "--fabric", "ucx", "--json", str(INSTALLED[Mpi(mpi)].launcher))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["id"]: one for one in json.loads(done.stdout)["diagnoses"]}
    for name in ("transport", "transport-loads", "mpi-ucx", "ucx", "ucx-tls", "hello"):
        assert found[name]["severity"] == "ok", found[name]
    assert "UCX 1.22." in found["ucx"]["words"]
    assert "shm" in found["hello"]["words"]


def test_a_wrong_ucx_is_refused_by_env_wrap_and_doctor() -> None:
    own = INSTALLED[Mpi.MPICH5].prefix / "lib/mpich"
    old = {"NEARMETAL_UCX": str(own)}
    assert (own / "libucp.so.0").exists()
    for verb, *words in (("env", "mpich5"), ("wrap", "--mpi", "mpich5", "--", "true")):
        done = nearmetal(verb, "--fabric", "ucx", *words, **old)
        assert done.returncode == 1, done.stdout
        assert "nearmetal's transport is for UCX 1.22" in done.stderr
    done = nearmetal("doctor", "--fabric", "ucx", "--no-run", "mpich5", **old)
    assert done.returncode == 4
    assert "fail  transport-loads" in done.stdout


@pytest.mark.parametrize("mpi", OVER_UCX)
def test_wrap_over_ucx(mpi: str, tmp_path: Path) -> None:
    launcher = INSTALLED[Mpi(mpi)].launcher
    words = ("wrap", "--fabric", "ucx", "--", *ranks(mpi, launcher))
    done = nearmetal(*words, NEARMETAL_STATS_DIR=str(tmp_path), **AS_ROOT)
    assert done.returncode == 0, done.stderr
    assert carried(tmp_path)["shm"] >= 2 * 200


@pytest.mark.parametrize("mpi", MPIS)
def test_wrap_sets_the_variables_of_the_launcher_in_path(mpi: str, tmp_path: Path) -> None:
    launcher = INSTALLED[Mpi(mpi)].launcher
    found = tmp_path / "stats"
    found.mkdir()
    done = nearmetal(
        "wrap",
        "--channels",
        "self,net",
        "--",
        *ranks(mpi, launcher.name),
        PATH=f"{launcher.parent}:{os.environ['PATH']}",
        NEARMETAL_STATS_DIR=str(found),
        **AS_ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert set(carried(found)) - {"self"} == {"net"}


@pytest.mark.parametrize("mpi", ["openmpi4", "openmpi5"])
def test_open_mpi_forwards_the_variables_to_a_host_that_has_none(mpi: str, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    five = mpi == "openmpi5"
    option, shell = ("--prtemca", "ssh") if five else ("--mca", "rsh")
    launcher = INSTALLED[Mpi(mpi)].launcher
    far = [option, "plm", shell, option, f"plm_{shell}_agent", str(agent), "--host", "192.0.2.7"]
    show = "echo $FI_PROVIDER $FI_PROVIDER_PATH"
    words = [str(launcher), *far, "--bind-to", "none", "-n", "1", "sh", "-c", show]
    done = nearmetal("wrap", "--", *words, **AS_ROOT)
    assert done.returncode == 0, done.stderr
    provider, path = done.stdout.split()
    assert provider.startswith("nearmetal,")
    assert str(provider_library().parent) in path
    # With an -x of the user, Open MPI 4.1 would refuse the list; one of the program changes nothing.
    for crossed in ([words[0], "-x", "MINE", *words[1:]], [*words, "-x"]):
        again = nearmetal("wrap", "--", *crossed, MINE="1", **AS_ROOT)
        assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


def test_a_provider_in_a_path_with_spaces_is_found_by_every_mpi(tmp_path: Path) -> None:
    place = tmp_path / "it's a $(place)"
    place.mkdir()
    library = shutil.copy(provider_library(), place)
    for mpi in MPIS:
        launcher = INSTALLED[Mpi(mpi)].launcher
        said = nearmetal("env", str(launcher), NEARMETAL_PROVIDER_LIB=str(library))
        stats = tmp_path / mpi
        stats.mkdir()
        words = ["sh", "-c", f'eval "$1"; {shlex.join(ranks(mpi, launcher))}', "sh", said.stdout]
        env = environment(NEARMETAL_STATS_DIR=str(stats), **AS_ROOT)
        subprocess.run(words, env=env, capture_output=True, timeout=120, check=True)
        assert carried(stats)["shm"], mpi


@pytest.mark.parametrize("mpi", MPIS)
def test_doctor_finds_each_mpi_sound_and_shows_the_channel(mpi: str) -> None:
    done = nearmetal("doctor", "--json", mpi)
    report = json.loads(done.stdout)
    found = {one["id"]: one for one in report["diagnoses"]}
    assert (done.returncode, report["good"]) == (0, True), found
    assert list(found) == [
        *("mpi", "provider", "mpi-ofi", "libfabric", "provider-loads", "environment"),
        *("rundir", "window", "shm", "cma", "segment", "memlock", "user-namespaces", "tuning"),
        *("network", "meeting", "hello"),
    ]
    assert found["hello"]["severity"] == "ok"
    assert "shm 4" in found["hello"]["words"]
    assert found["environment"]["severity"] == "warn"
    own = "the system's" if mpi == "openmpi4" else "the MPI's own"
    assert own in found["libfabric"]["words"]


def test_doctor_sees_that_only_the_network_is_left() -> None:
    done = nearmetal("doctor", "--json", "mpich5", NEARMETAL_CHANNELS="self,net")
    (last,) = [one for one in json.loads(done.stdout)["diagnoses"] if one["id"] == "hello"]
    assert last["severity"] == "warn"
    assert "used the network" in last["words"]
    assert last["remedy"]


def test_doctor_names_a_provider_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "libnearmetal-fi.so"
    broken.write_bytes(b"\x7fELF and nothing more")
    done = nearmetal("doctor", "--json", "openmpi5", NEARMETAL_PROVIDER_LIB=str(broken))
    grades = {one["id"]: one["severity"] for one in json.loads(done.stdout)["diagnoses"]}
    assert done.returncode == 4
    assert (grades["provider-loads"], grades["hello"]) == ("fail", "fail")


def pretended(directory: Path, version: str, code: str = "") -> Path:
    """Build a library that answers MPI_Get_library_version with these words."""
    (directory / "lib").mkdir(parents=True)
    source = directory / "mpi.c"
    words = json.dumps(version)
    source.write_text(
        "#include <string.h>\n#include <stdlib.h>\n"
        "int MPI_Get_library_version(char *text, int *length)\n"
        f"{{ {code} strcpy(text, {words}); *length = strlen(text); return 0; }}\n"
    )
    library = directory / "lib/libmpi.so.12"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return library


def test_an_mpich_over_ucx_is_refused_with_its_device(tmp_path: Path) -> None:
    version = "MPICH Version:      4.0.2\nMPICH Device:       ch4:ucx\n"
    library = pretended(tmp_path, version)
    done = nearmetal("env", str(library))
    assert done.returncode == 1
    assert "MPICH 4.0.2 cannot use libfabric (device ch4:ucx)" in done.stderr
    done = nearmetal("doctor", "--json", str(tmp_path))
    grades = {one["id"]: one["severity"] for one in json.loads(done.stdout)["diagnoses"]}
    assert (done.returncode, grades["mpi-ofi"], "hello" in grades) == (4, "fail", False)


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [
        ("Some MPI 9", "", "calls itself 'Some MPI 9'"),
        ("Open MPI v3.1.4, package", "", "calls itself 'Open MPI v3.1.4, package'"),
        ("x", "abort();", "cannot be loaded"),
        ("x", "exit(0);", "cannot be loaded"),
    ],
)
def test_a_library_that_is_not_a_known_mpi_is_refused(
    tmp_path: Path, version: str, code: str, words: str
) -> None:
    done = nearmetal("env", str(pretended(tmp_path, version, code)))
    assert done.returncode == 1
    assert words in done.stderr
