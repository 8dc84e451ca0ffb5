# SPDX-License-Identifier: Apache-2.0
"""Every promise of the provider, checked by a program over the public libfabric interface."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from nearmetal.job.stats import read_counters
from tests.system.faults.peer import BUILD, REPOSITORY
from tests.system.test_faults_loading import LIBFABRICS, library_of

pytestmark = pytest.mark.system

TIMEOUT_S = 280
BUILD_TIMEOUT_S = 900
CHANNELS = ["self,shm", "self,net", "self,shm,net"]
SUPPRESSED_LEAKS = "leak:libfabric.so\n"
"""libfabric 1.17's net provider loses an fi_info for each endpoint and connection."""


@pytest.fixture
def rundir(tmp_path: Path) -> Path:
    directory = tmp_path / "meet"
    directory.mkdir(mode=0o700)
    return directory


def run(
    program: list[str], rundir: Path, provider_path: Path, **extra: str
) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "FI_PROVIDER": "nearmetal",
        "FI_PROVIDER_PATH": str(provider_path),
        "NEARMETAL_RUNDIR": str(rundir),
        **extra,
    }
    return subprocess.run(
        program, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def expect_ok(done: subprocess.CompletedProcess[str], rundir: Path) -> None:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines()[-1].startswith("traffic OK: 25 cases"), done.stdout
    assert not list(rundir.iterdir()), "something was left where neighbours meet"


def provider_path(library_name: str, tmp_path: Path) -> Path:
    """A directory with our library, and with those of the libfabric that needs its own there."""
    library = library_of(library_name)
    directory = tmp_path / "providers"
    directory.mkdir()
    (directory / "libnearmetal-fi.so").symlink_to(BUILD / "src/provider/libnearmetal-fi.so")
    if library.needs_own:
        for other in (REPOSITORY / library.directory).glob("*-fi.so"):
            (directory / other.name).symlink_to(other)
    return directory


def traffic(build: Path, *arguments: str) -> list[str]:
    return [str(build / "tests/fabric/fabric_traffic"), "-m", "1500", "-w", "250", *arguments]


@pytest.mark.parametrize("name", LIBFABRICS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_every_case_over_every_libfabric(
    name: str, channels: str, rundir: Path, tmp_path: Path
) -> None:
    library = library_of(name)
    done = run(
        [*library.prefix(), *traffic(BUILD)],
        rundir,
        provider_path(name, tmp_path),
        NEARMETAL_CHANNELS=channels,
        **library.environment(),
    )
    expect_ok(done, rundir)


@pytest.mark.parametrize("channels", CHANNELS)
def test_four_ranks(channels: str, rundir: Path, tmp_path: Path) -> None:
    done = run(
        traffic(BUILD, "-n", "4"),
        rundir,
        provider_path("1.17", tmp_path),
        NEARMETAL_CHANNELS=channels,
    )
    expect_ok(done, rundir)


@pytest.mark.parametrize("channels", CHANNELS[:2])
def test_accesses_are_counted_by_way(channels: str, rundir: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    stats.mkdir()
    done = run(
        traffic(BUILD),
        rundir,
        provider_path("1.17", tmp_path),
        NEARMETAL_CHANNELS=channels,
        NEARMETAL_STATS_DIR=str(stats),
    )
    expect_ok(done, rundir)
    kinds: dict[str, set[str]] = {}
    for seen in read_counters(stats):
        for peer in seen.counters.peers:
            assert set(peer.channels) <= set(channels.split(","))
            for way, done_so in peer.accesses.items():
                kinds.setdefault(way, set()).update(done_so)
    assert "atomic" in kinds["served"]
    if "shm" in channels:
        assert kinds["cma"] == {"put", "get"}
    else:
        assert set(kinds) <= {"served", "direct"}
        assert kinds["served"] == {"put", "get", "atomic"}


# What makes every path short of room: queues of a few slots, messages that are never eager.
TIGHT: Mapping[str, str] = {
    "NEARMETAL_RING_SLOTS": "16",
    "NEARMETAL_INLINE_MAX": "40",
    "NEARMETAL_POOL_SIZE": "1M",
    "NEARMETAL_CHUNK_SIZE": "4K",
    "NEARMETAL_SHM_EAGER_MAX": "256",
    "NEARMETAL_NET_EAGER_MAX": "256",
}


@pytest.mark.parametrize("channels", CHANNELS[:2])
def test_every_case_with_little_room(channels: str, rundir: Path, tmp_path: Path) -> None:
    done = run(
        traffic(BUILD),
        rundir,
        provider_path("1.17", tmp_path),
        NEARMETAL_CHANNELS=channels,
        **TIGHT,
    )
    expect_ok(done, rundir)


@pytest.mark.full
def test_a_message_past_two_gigabytes(rundir: Path, tmp_path: Path) -> None:
    for channels in CHANNELS[:2]:
        path = tmp_path / channels
        path.mkdir()
        done = run(
            traffic(BUILD, "-c", "huge", "-L"),
            rundir,
            provider_path("1.17", path),
            NEARMETAL_CHANNELS=channels,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """The build with AddressSanitizer and UndefinedBehaviorSanitizer."""
    subprocess.run(
        [REPOSITORY / "tools/setup/c_build.sh", "asan"],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=BUILD_TIMEOUT_S,
    )
    return REPOSITORY / "build" / "c-asan"


@pytest.mark.timeout(BUILD_TIMEOUT_S + TIMEOUT_S)
@pytest.mark.parametrize("channels", CHANNELS[:2])
def test_every_case_under_sanitizers(
    sanitized: Path, channels: str, rundir: Path, tmp_path: Path
) -> None:
    suppressions = tmp_path / "leaks"
    suppressions.write_text(SUPPRESSED_LEAKS)
    done = run(
        ["setarch", os.uname().machine, "--addr-no-randomize", *traffic(sanitized)],
        rundir,
        sanitized / "src" / "provider",
        NEARMETAL_CHANNELS=channels,
        ASAN_OPTIONS="detect_leaks=1:fast_unwind_on_malloc=0",
        UBSAN_OPTIONS="print_stacktrace=1",
        LSAN_OPTIONS=f"suppressions={suppressions}:print_suppressions=0",
    )
    assert "Sanitizer" not in done.stderr, done.stderr
    expect_ok(done, rundir)


@pytest.mark.parametrize("channels", ["shm", "net"])
def test_pingpong_prints_complete_tables(channels: str, rundir: Path, tmp_path: Path) -> None:
    done = run(
        [str(BUILD / "benchmarks/fabric_pingpong"), "-t", "2", "-x", "64K"],
        rundir,
        provider_path("1.17", tmp_path),
        NEARMETAL_CHANNELS=f"self,{channels}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "# nearmetal-bench 1 fabric_pingpong"
    assert lines[-1] == "# done fabric_pingpong"
    for table in ("fabric_pingpong", "fabric_stream"):
        begin, end = lines.index(f"# table {table}"), lines.index(f"# end {table}")
        rows = [line.split() for line in lines[begin + 2 : end]]
        assert [int(row[0]) for row in rows] == [8 * 2**i for i in range(14)]
        assert all(len(row) == 11 and all(float(x) > 0 for x in row) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-t", "FI_EP_MSG"), "endpoint type 1 requested"),
        (("-c", "FI_HMEM"), "FI_HMEM requested, but there is no device"),
        (("-c", "FI_COLLECTIVE"), "capabilities 0x"),
        (("-a", "FI_SOCKADDR_IN"), "address format 2 requested"),
        (("-d", "eth7"), "domain 'eth7' requested"),
        (("-f", "192.0.2.0/24"), "fabric '192.0.2.0/24' requested"),
    ],
)
def test_what_is_not_offered_is_refused_with_a_reason(
    arguments: tuple[str, ...], reason: str, rundir: Path, tmp_path: Path
) -> None:
    refused(["-p", "nearmetal", *arguments], reason, rundir, tmp_path)


def test_a_host_is_no_destination_for_a_program_that_may_take_any_provider(
    rundir: Path, tmp_path: Path
) -> None:
    refused(["-n", "somewhere"], "'somewhere' names a destination", rundir, tmp_path)


def refused(arguments: list[str], reason: str, rundir: Path, tmp_path: Path) -> None:
    done = run(
        ["fi_info", *arguments],
        rundir,
        provider_path("1.17", tmp_path),
        NEARMETAL_LOG="info",
    )
    assert done.returncode != 0
    assert f"not offered: {reason}" in done.stderr, done.stderr
