# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/conformance.md, run on small trees, and runs that must prove nothing."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.mpi import Mpi
from tests.conformance import mpich, osu, shmem, ucx
from tests.conformance.outcomes import Outcome, load
from tests.system.local import ROOT
from tests.system.mpi_jobs import compile_for
from tests.system.need import need_build, need_mpi, need_ucx

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.mpi, pytest.mark.timeout(240)]

need_build()
need_mpi(Mpi.MPICH5)

PAGE = ROOT / "docs" / "conformance.md"
BUILD = ROOT / "build" / "c"
LIBRARY = BUILD / "src/provider/libnearmetal-fi.so"
FABRIC_STAND_IN = BUILD / "tests/conformance/fi_stand_in"
MPI_STAND_IN = ROOT / "tests/conformance/programs/mpi_stand_in.c"

UCX = ROOT / "build/ucx/libucx"
UCX_LIBRARY = BUILD / "src/ucx/libuct_nearmetal.so.0"
GTEST = f"""\
#!/bin/bash
if [[ $1 == --gtest_list_tests ]]; then
    for suite in nearmetal nearcma ucp_nearmetal ucp_posix_cma; do
        printf '%s/test_one.  # TypeParam\\n  sends/0  # GetParam()\\n  is_not_for_it/0\\n' $suite
    done
    exit
fi
suite=${{1#*=}}
suite=${{suite%%/*}}
transport=posix
[[ $suite == *near* ]] && transport=nearmetal
export LD_LIBRARY_PATH={UCX}/lib
words=({UCX}/bin/ucx_perftest -p $((20000 + RANDOM % 10000)) -d memory -x $transport)
"${{words[@]}}" >/dev/null &
sleep 1
"${{words[@]}}" -t am_lat -n 200 127.0.0.1 >/dev/null || exit 1
wait
for name in sends is_not_for_it; do
    echo "[ RUN      ] $suite/test_one.$name/0 <$transport/memory>"
    [[ $name == sends ]] || echo "[     SKIP ] (!check_caps(UCT_IFACE_FLAG_AM_ZCOPY))"
    echo "[       OK ] $suite/test_one.$name/0 (12 ms)"
done
"""

FABTESTS = """\
unit_tests=(
	"fi_stand_in -i"
)
functional_tests=(
	"fi_stand_in"
)
standard_tests=(
	"fi_stand_in -v"
)
threaded_tests=(
	"fi_stand_in -t"
)
short_tests=(
	"fi_stand_in -s"
)
"""
UBERTEST = "{\n\tprov_name: other,\n},\n"


def commands(heading: str) -> str:
    """Return the indented lines of a section of the page."""
    page = PAGE.read_text()
    match = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert match, heading
    lines = [line[4:] for line in match[1].splitlines() if line.startswith("    ")]
    assert lines, f"no commands under {heading}"
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def trees() -> Iterator[Path]:
    """Trees of stand-ins, below the checkout: nodes see it."""
    top = Path(tempfile.mkdtemp(prefix="conformance-", dir=ROOT / "build"))
    try:
        fabtests = top / "fabtests"
        for name in ("bin", "scripts", "test_configs/ofi_rxm", "test_configs/shm"):
            (fabtests / name).mkdir(parents=True)
        for name in ("fi_stand_in", "fi_ubertest"):
            shutil.copy(FABRIC_STAND_IN, fabtests / "bin" / name)
        (fabtests / "scripts" / "runfabtests.sh").write_text(FABTESTS)
        for name in ("ofi_rxm/tcp.test", "shm/all.test"):
            (fabtests / "test_configs" / name).write_text(UBERTEST)
        compile_for([Mpi.MPICH5], MPI_STAND_IN, top)
        program = top / Mpi.MPICH5.value
        for suite in mpich.SUITES:
            (top / "mpich" / suite).mkdir(parents=True)
            shutil.copy(program, top / "mpich" / suite / "stand_in")
            (top / "mpich" / suite / "testlist").write_text("stand_in 2\n")
        for suite in osu.SUITES:
            place = top / "osu" / "c" / "mpi" / suite
            place.mkdir(parents=True)
            shutil.copy(program, place / "osu_stand_in")
            shutil.copy(MPI_STAND_IN, place / "osu_stand_in.c")
        for suite in shmem.SUITES:
            (top / "shmem" / suite).mkdir(parents=True)
            shutil.copy(program, top / "shmem" / suite / "stand_in")
            (top / "shmem" / suite / "Makefile").write_text("TESTS = stand_in\n")
        gtest = top / "ucx" / "test" / "gtest" / "gtest"
        gtest.parent.mkdir(parents=True)
        gtest.write_text(GTEST)
        gtest.chmod(0o755)
        yield top
    finally:
        shutil.rmtree(top)


def run(trees: Path, records: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run commands of the page as a reader does, with a rundir and a state of their own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEARMETAL_", "FI_", "UCX_"))}
    env |= {
        "FABTESTS": str(trees / "fabtests"),
        "TEST_MPI": str(trees / "mpich"),
        "OSU": str(trees / "osu"),
        "SHMEM_TESTS": str(trees / "shmem"),
        "UCX": str(trees / "ucx"),
        "RECORDS": str(records),
        "NEARMETAL_STATE_DIR": str(records / "state"),
        "TMPDIR": str(records),
    }
    own = f"export NEARMETAL_RUNDIR={records / 'meet'}\n"
    return subprocess.run(
        ["bash", "-euc", commands("Settings") + own + script],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def outcomes(record: Path) -> list[Outcome]:
    return list(load(record).values())


def expect_proof(record: Path, channels: set[str], alone: str = "") -> None:
    """Every outcome is a pass of this checkout's build. Programs of the suite ALONE have no peer."""
    found = outcomes(record)
    build = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()
    assert {(o.result, o.provider) for o in found} == {("pass", build)}, found
    for outcome in found:
        if outcome.suite == alone:
            assert not outcome.endpoints
        else:
            assert outcome.endpoints == (4 if outcome.suite == "collective" else 2)
            assert set(outcome.sent) - {"self"} == channels, outcome


def test_the_commands_for_fabtests(trees: Path, tmp_path: Path) -> None:
    done = run(trees, tmp_path, commands("libfabric's fabtests"))
    assert done.returncode == 0, done.stdout + done.stderr
    expect_proof(tmp_path / "nearmetal.jsonl", {"shm"}, alone="unit")
    assert {(o.result, o.provider) for o in outcomes(tmp_path / "tcp.jsonl")} == {("pass", "")}
    assert "| complex | 2 pass | 2 pass |" in done.stdout


def test_the_commands_for_mpich(trees: Path, tmp_path: Path) -> None:
    done = run(trees, tmp_path, commands("MPICH's test suite"))
    assert done.returncode == 0, done.stdout + done.stderr
    expect_proof(tmp_path / "mpich.jsonl", {"shm"})
    assert {(o.result, o.provider) for o in outcomes(tmp_path / "mpich-tcp.jsonl")} == {
        ("pass", "")
    }


def test_the_commands_for_openshmem(trees: Path, tmp_path: Path) -> None:
    done = run(trees, tmp_path, commands("Sandia OpenSHMEM"))
    assert done.returncode == 0, done.stdout + done.stderr
    expect_proof(tmp_path / "shmem.jsonl", {"shm"})


def test_the_commands_for_ucx(trees: Path, tmp_path: Path) -> None:
    need_ucx()
    done = run(trees, tmp_path, commands("UCX's gtest suite"))
    assert done.returncode == 0, done.stdout + done.stderr
    build = hashlib.sha256(UCX_LIBRARY.read_bytes()).hexdigest()
    found = outcomes(tmp_path / "ucx.jsonl")
    expected = {"test_one.sends/0": "pass", "test_one.is_not_for_it/0": "notrun"}
    assert {(o.suite, o.test, o.result, o.provider) for o in found} == {
        (suite, test, result, build) for suite in ucx.SUITES for test, result in expected.items()
    }
    assert all(o.endpoints == 2 and o.sent.get("shm", 0) > 200 for o in found), found
    reference = outcomes(tmp_path / "ucx-posix.jsonl")
    assert {(o.test, o.result, o.provider) for o in reference} == {
        (test, result, "") for test, result in expected.items()
    }


def test_a_suite_of_ucx_without_the_library_proves_nothing(trees: Path, tmp_path: Path) -> None:
    need_ucx()
    script = commands("UCX's gtest suite").replace("src/ucx", "src/none")
    done = run(trees, tmp_path, script)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {o.result for o in outcomes(tmp_path / "ucx.jsonl")}
    assert found, done.stdout + done.stderr
    assert found <= {"fail", "unproven"}


def test_the_commands_for_two_nodes(trees: Path, tmp_path: Path) -> None:
    done = run(trees, tmp_path, commands("Two isolated nodes"))
    assert done.returncode == 0, done.stdout + done.stderr
    expect_proof(tmp_path / "two-fabtests.jsonl", {"shm"})
    expect_proof(tmp_path / "osu.jsonl", {"shm"})
    assert not (tmp_path / "state").exists(), "the cluster is still there"


RELATIVE = "export FI_PROVIDER_PATH=+${FI_PROVIDER_PATH#+$PWD/}\n"


def test_a_provider_that_is_not_loaded_proves_nothing(trees: Path, tmp_path: Path) -> None:
    """libfabric refuses a relative path: fabtests then report [61], MPICH runs over tcp."""
    for heading, record in (
        ("libfabric's fabtests", "nearmetal.jsonl"),
        ("MPICH's test suite", "mpich.jsonl"),
    ):
        done = run(trees, tmp_path, RELATIVE + commands(heading))
        assert done.returncode == 1, done.stdout + done.stderr
        found = outcomes(tmp_path / record)
        assert found
        assert not {o.result for o in found} & {"pass", "notrun"}, found
        assert all("no process loaded nearmetal" in o.note for o in found if o.result != "fail")
        assert f"{len(found)} tests: " in done.stdout


def test_messages_over_another_provider_prove_nothing(trees: Path, tmp_path: Path) -> None:
    script = commands("MPICH's test suite").replace("FI_PROVIDER=nearmetal,tcp", "FI_PROVIDER=tcp")
    done = run(trees, tmp_path, script)
    assert done.returncode == 1, done.stdout + done.stderr
    found = outcomes(tmp_path / "mpich.jsonl")
    assert {(o.result, o.note) for o in found} == {
        ("unproven", "0 endpoints of nearmetal, 2 expected")
    }
    assert "5 tests: 5 unproven" in done.stdout


@pytest.mark.parametrize(
    ("heading", "record"),
    [
        ("libfabric's fabtests", "nearmetal.jsonl"),
        ("MPICH's test suite", "mpich.jsonl"),
        ("Sandia OpenSHMEM", "shmem.jsonl"),
        ("Two isolated nodes", "osu.jsonl"),
    ],
)
def test_a_tree_where_nothing_is_built(
    trees: Path, tmp_path: Path, heading: str, record: str
) -> None:
    bare = tmp_path / "trees"
    shutil.copytree(trees, bare, ignore=shutil.ignore_patterns("fi_*", "stand_in", "osu_stand_in"))
    wanted = re.compile(rf"^(SPEC|PLACE|IN|SHMEM)=|--record \$RECORDS/{record}")
    lines = [line for line in commands(heading).splitlines() if wanted.search(line)]
    done = run(bare, tmp_path, "\n".join(["NODE=$$", *lines]))
    assert done.returncode == 1, done.stdout + done.stderr
    found = outcomes(tmp_path / record)
    assert found
    assert {o.result for o in found} == {"missing"}
    assert f"error: no test ran; {len(found)} of {len(found)} are not built" in done.stdout


def test_a_selection_without_a_test(trees: Path, tmp_path: Path) -> None:
    runner = commands("MPICH's test suite").splitlines()[0]
    done = run(trees, tmp_path, f"{runner} --only no-such-test")
    assert done.returncode == 1, done.stdout
    assert "error: no test ran" in done.stdout
