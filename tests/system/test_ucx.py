# SPDX-License-Identifier: Apache-2.0
"""The transport for UCX: its structures, its messages in and between nodes, and lost peers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearmetal.job.stats import JobVerdict, Seen, judge, read_counters, read_stats
from tests.system.local import ROOT, Site, site
from tests.system.machines import free_port
from tests.system.need import lacking, need_build, need_root, need_ucx

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

need_build()
need_ucx()

UCX = (ROOT / "build/ucx").resolve() / "libucx"
PLUGIN = ROOT / "build/c/src/ucx"
LIBRARY = PLUGIN / "libuct_nearmetal.so.0"

PERFTEST = str(UCX / "bin/ucx_perftest")
CARRIED = re.compile(r"shm carried (\d+) messages out and (\d+) in")
TESTS = {
    "uct-short": ("-d", "memory", "-x", "nearmetal", "-t", "am_lat", "-s", "8"),
    "uct-bcopy": ("-d", "memory", "-x", "nearmetal", "-t", "am_bw", "-D", "bcopy", "-s", "16384"),
    "tag-small": ("-t", "tag_lat", "-s", "8"),
    "tag-large": ("-t", "tag_bw", "-s", "1048576"),
}
PATIENCE_S = 60.0


def variables(rundir: str) -> dict[str, str]:
    return {
        "LD_LIBRARY_PATH": str(UCX / "lib"),
        "UCX_PLUGIN_PATH": str(PLUGIN),
        "UCX_TLS": "nearmetal",
        "UCX_WARN_UNUSED_ENV_VARS": "n",
        "NEARMETAL_RUNDIR": rundir,
        "NEARMETAL_LOG": "info",
    }


# ---- The structures that UCX does not publish ----

STRUCTURES = (
    "uct_am_handler",
    "uct_base_iface",
    "uct_component",
    "uct_ep_is_connected_params",
    "uct_iface_config",
    "uct_iface_internal_ops",
    "uct_iface_is_reachable_params",
    "uct_md",
    "uct_md_attr_v2",
    "uct_md_ops",
    "uct_perf_attr",
    "uct_tl",
    "uct_tl_device_resource",
)
OURS_ONLY = {"others"}
"""Members of abi.h that stand for several of libuct's."""
ENTRY = re.compile(r"^ <(\d+)><([0-9a-f]+)>: Abbrev Number: \d+(?: \((\w+)\))?")
ATTRIBUTE = re.compile(r"^\s+<[0-9a-f]+>\s+(DW_AT_\w+)\s*: (.*)$")


class Layout(dict[str, int]):
    """The offset of each member, and the size."""

    size = 0


class Layouts:
    """The structures of a library, read from its debug information."""

    def __init__(self, library: Path) -> None:
        self.named: dict[str, Layout] = {}
        self._at: dict[str, Layout] = {}
        self._open: dict[int, Layout] = {}
        aliases: dict[str, str] = {}
        for depth, tag, values in entries(library):
            name = values.get("DW_AT_name", "").rpartition(": ")[2].strip()
            if tag == "DW_TAG_structure_type" and "DW_AT_byte_size" in values:
                self._begin(depth, name, values)
            elif tag == "DW_TAG_member" and depth - 1 in self._open:
                self._open[depth - 1][name] = int(values.get("DW_AT_data_member_location", "0"))
            else:
                self._open.pop(depth, None)
            if tag == "DW_TAG_typedef" and "DW_AT_type" in values:
                aliases[name.removesuffix("_t")] = values["DW_AT_type"].strip("<> \t")
        for name, place in aliases.items():
            if layout := self._at.get(place.removeprefix("0x")):
                self.named.setdefault(name, layout)

    def _begin(self, depth: int, name: str, values: dict[str, str]) -> None:
        layout = self._open[depth] = self._at[values["offset"]] = Layout()
        layout.size = int(values["DW_AT_byte_size"])
        if name:
            self.named.setdefault(name, layout)


def entries(library: Path) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Read depth, tag and attributes of each entry of the debug information."""
    dump = subprocess.run(
        ["readelf", "--debug-dump=info", library], check=True, capture_output=True, text=True
    ).stdout
    depth, tag, values = 0, "", dict[str, str]()
    for line in dump.splitlines():
        if match := ENTRY.match(line):
            yield depth, tag, values
            depth, tag, values = int(match[1]), match[3] or "", {"offset": match[2]}
        elif match := ATTRIBUTE.match(line):
            values[match[1]] = match[2]
    yield depth, tag, values


def test_structures_are_those_of_the_library() -> None:
    theirs, ours = Layouts(UCX / "lib/libuct.so.0").named, Layouts(LIBRARY.resolve()).named
    for name in STRUCTURES:
        assert ours[name].size == theirs[name].size, name
        assert len(ours[name]) > 1, name
        for member, offset in ours[name].items():
            if member not in OURS_ONLY:
                assert theirs[name].get(member) == offset, f"{name}.{member}"


def test_settings_for_all_transports_hold_for_these(tmp_path: Path) -> None:
    output = subprocess.run(
        [UCX / "bin/ucx_info", "-d"],
        env=os.environ | variables(str(tmp_path)) | {"UCX_MAX_NUM_EPS": "9"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    said = {words.split()[0]: words for words in output.split("Transport: ")[1:]}
    for name in ("nearmetal", "nearcma"):
        assert re.search(r"max eps: 9$", said[name], re.MULTILINE), said[name]


def test_pieces_of_a_message_have_a_number_that_fits_on_a_stack() -> None:
    """UCX's own tests make an array of that length."""
    output = subprocess.run(
        [UCX / "bin/ucx_info", "-d"],
        env=os.environ | variables("/nonexistent"),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    said = re.findall(r"am_zcopy: .* up to (\d+) iov$", output, re.MULTILINE)
    assert said, output
    assert max(map(int, said)) <= 1024


# ---- Two processes of one kernel ----

SERVER = ("stdbuf", "-oL", PERFTEST)


def waits(process: subprocess.Popen[str]) -> None:
    """Return when a server takes connections."""
    assert process.stdout
    assert process.stdout.readline().startswith("Waiting")


@contextmanager
def server(rundir: Path, port: int, *options: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    options = options or ("-d", "memory", "-x", "nearmetal")
    with subprocess.Popen(
        [*SERVER, "-p", str(port), *options],
        env=os.environ | variables(str(rundir)) | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            waits(process)
            yield process
        finally:
            process.kill()


def client(rundir: Path, port: int, *options: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PERFTEST, "-p", str(port), *options, "127.0.0.1"],
        env=os.environ | variables(str(rundir)) | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_traffic(stats: Path) -> list[Seen]:
    """Wait until both processes have sent and received messages; return what they counted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = read_counters(stats)
        totals = [peer.total for seen in found for peer in seen.counters.peers]
        if len(totals) == 2 and all(min(t.sent_messages, t.received_messages) > 20 for t in totals):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def carried(output: str) -> int:
    """Messages that a process sent and received through memory."""
    return max((int(m[1]) + int(m[2]) for m in CARRIED.finditer(output)), default=0)


@pytest.mark.parametrize("name", TESTS)
def test_messages_between_processes(tmp_path: Path, name: str) -> None:
    port = free_port()
    with server(tmp_path, port):
        with client(tmp_path, port, "-n", "2000", *TESTS[name]) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        assert "ERROR" not in output
        assert carried(output) >= 2000


WALLS = ("unshare", "--pid", "--ipc", "--fork", "--mount-proc")
"""What UCX's own shared memory does not cross: no process sees another one's pid."""

COPIES = {"UCX_TLS": "nearmetal,nearcma", "UCX_PROTO_INFO": "y"}
"""Direct copies, which UCX reports when it chooses them."""
COPIED = re.compile(r"zero-copy.*\| nearcma/memory")
ONE_COPY = {
    "tag": ("-t", "tag_bw", "-s", "1048576", "-n", "200"),
    "get": ("-t", "ucp_get", "-s", "300000", "-n", "200"),
    "put": ("-t", "ucp_put_lat", "-s", "300000", "-n", "200"),
}


@pytest.mark.parametrize("name", ONE_COPY)
def test_large_messages_are_copied_once(tmp_path: Path, name: str) -> None:
    port = free_port()
    with server(tmp_path, port, **COPIES) as other:
        with client(tmp_path, port, *ONE_COPY[name], **COPIES) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        there, _ = other.communicate(timeout=PATIENCE_S)
    assert "ERROR" not in output
    assert COPIED.search(output + there)


def test_small_messages_go_the_short_way(tmp_path: Path) -> None:
    """By UCX's model a gathered message needs no copy: it would take that for a single byte."""
    port = free_port()
    more = {"UCX_TLS": "nearmetal,nearcma", "UCX_PROTO_INFO": "y"}
    with server(tmp_path, port, **more):
        with client(tmp_path, port, "-t", "tag_lat", "-s", "8", "-n", "10", **more) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
    tables = re.split(r"tagged message by ucp_tag_send", output)[1:]
    assert tables
    for table in tables:
        assert re.search(r" 0\.\.208 \| eager short ", table), table
        assert re.search(r" \d{3,4}\.\.\w+ \| eager zero-copy ", table), table


def test_peer_without_direct_copies_gets_messages(tmp_path: Path) -> None:
    """It forbids the proof, so UCX sends its large messages through memory."""
    port = free_port()
    with server(tmp_path, port, **COPIES, NEARMETAL_CMA="off") as other:
        with client(tmp_path, port, *ONE_COPY["tag"], **COPIES) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        there, _ = other.communicate(timeout=PATIENCE_S)
    assert not COPIED.search(output + there)
    assert carried(output) > 2000


def test_direct_copies_need_no_other_transport(tmp_path: Path) -> None:
    port, alone = free_port(), ("-d", "memory", "-x", "nearcma")
    with server(tmp_path, port, *alone) as other:
        work = ("-t", "put_bw", "-D", "zcopy", "-s", "100000", "-n", "200")
        with client(tmp_path, port, *alone, *work) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        assert other.wait(PATIENCE_S) == 0
    assert "ERROR" not in output


def run_program(directory: Path, name: str, **more: str) -> str:
    """Build a program of this suite against UCX and run it; return what it printed."""
    source, program = ROOT / f"tests/system/programs/{name}.c", directory / name
    libraries = (f"-I{UCX}/include", f"-L{UCX}/lib", "-lucp", "-luct", "-lucs")
    command = ["gcc", "-O1", "-Wall", "-Werror", str(source), "-o", str(program), *libraries]
    subprocess.run([*command, f"-Wl,-rpath-link,{UCX}/lib"], check=True)
    done = subprocess.run(
        [program],
        env=os.environ | variables(str(directory)) | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_direct_copies_outlive_the_interface_of_messages(tmp_path: Path) -> None:
    assert "all copies as expected\n" in run_program(tmp_path, "ucx_closing")


@pytest.mark.parametrize("transports", ["nearmetal", "nearmetal,nearcma"])
def test_mode_failover_of_active_messages(tmp_path: Path, transports: str) -> None:
    output = run_program(tmp_path, "ucx_failover", UCX_TLS=transports)
    assert "all messages as expected\n" in output


SLEEP = ("-E", "sleep")
"""ucp_worker_wait() between messages."""


@pytest.mark.parametrize("name", ["tag-small", "tag-large"])
def test_messages_between_processes_that_sleep(tmp_path: Path, name: str) -> None:
    port = free_port()
    with server(tmp_path, port, *SLEEP):
        with client(tmp_path, port, *SLEEP, "-n", "2000", *TESTS[name]) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        assert "ERROR" not in output
        assert carried(output) >= 2000


ENDLESS = ("-n", "1000000000", "-t", "tag_lat", "-s", "8")


@pytest.mark.parametrize("mode", [(), SLEEP])
def test_peer_that_dies_is_reported(tmp_path: Path, mode: tuple[str, ...]) -> None:
    port, counted = free_port(), {"NEARMETAL_STATS_DIR": str(tmp_path)}
    endless = (*mode, "-e", *ENDLESS)
    with (
        server(tmp_path, port, *mode, **counted) as other,
        client(tmp_path, port, *endless, **counted) as process,
    ):
        wait_for_traffic(tmp_path)
        assert process.poll() is None
        names = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/comm")]
        assert "nm-waker\n" in names
        other.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert "died: its socket hung up" in output
    assert "error handler called with status -25 (Connection reset by remote peer)" in output


def test_peer_that_is_stopped_is_waited_for(tmp_path: Path) -> None:
    """It is silent for longer than any time limit of a handshake or of a sleep."""
    port = free_port()
    counted = {"NEARMETAL_STATS_DIR": str(tmp_path), "NEARMETAL_STATS_MS": "1"}
    many = (*SLEEP, "-e", "-n", "60000", "-t", "tag_lat", "-s", "8")
    with (
        server(tmp_path, port, *SLEEP, **counted) as other,
        client(tmp_path, port, *many, **counted) as process,
    ):
        wait_for_traffic(tmp_path)
        other.send_signal(signal.SIGSTOP)
        time.sleep(3)
        assert process.poll() is None
        other.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert "ERROR" not in output


def test_statistics_of_both_processes(tmp_path: Path) -> None:
    """What `top` reads and `run` takes for a proof, also of a process that was killed."""
    port = free_port()
    stats = tmp_path / "stats"
    stats.mkdir(mode=0o700)
    with (
        server(tmp_path, port, NEARMETAL_STATS_DIR=str(stats)) as other,
        client(tmp_path, port, "-e", *ENDLESS, NEARMETAL_STATS_DIR=str(stats)) as process,
    ):
        running = wait_for_traffic(stats)
        other.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
    assert [seen.alive for seen in running] == [True, True]
    for seen in running:
        assert seen.counters.interface == "ucx"
        (traffic,) = [peer.channels["shm"] for peer in seen.counters.peers if peer.channels]
        assert traffic.sent_messages > 20
        assert traffic.received_bytes > 160
    ended = [seen.counters.peers for seen in read_counters(stats) if not seen.alive]
    assert any("its socket hung up" in peer.down_reason for peers in ended for peer in peers)
    proof = judge(read_stats(stats), 2)
    assert proof.verdict is JobVerdict.PROVEN
    assert set(proof.messages) == {"shm"}


def test_process_of_another_rundir_is_not_reached(tmp_path: Path) -> None:
    """UCX says the reason that the handshake has."""
    port = free_port()
    here, there = tmp_path / "here", tmp_path / "there"
    for path in (here, there):
        path.mkdir(mode=0o700)
    with (
        server(here, port),
        client(there, port, "-n", "10", "-t", "tag_lat") as process,
    ):
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert re.search(r"nearmetal/memory - shm: \S", output), output


@pytest.mark.parametrize("lack", ["NEARMETAL_CHANNELS=net", "NEARMETAL_RUNDIR=/dev/null/none"])
def test_process_without_channels_uses_other_transports(tmp_path: Path, lack: str) -> None:
    port = free_port()
    name, _, value = lack.partition("=")
    more = {name: value, "UCX_TLS": "all"}
    with (
        server(tmp_path, port, **more),
        client(tmp_path, port, "-n", "10", "-t", "tag_lat", **more) as process,
    ):
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert not carried(output)


UNEXPECTED = ("-n", "1000", "-t", "tag_bw", "-U", "-s", "60000")
"""Messages that UCX copies into its own memory."""


@pytest.mark.parametrize("transports", ["all", "nearmetal"])
def test_lengths_of_messages_that_differ(tmp_path: Path, transports: str) -> None:
    """UCX would write a long message beyond its memory for short ones."""
    port = free_port()
    more = {"UCX_TLS": transports, "UCX_RNDV_THRESH": "inf"}
    with (
        server(tmp_path, port, NEARMETAL_CHUNK_SIZE="4096", **more) as other,
        client(tmp_path, port, *UNEXPECTED, NEARMETAL_CHUNK_SIZE="65536", **more) as process,
    ):
        output, _ = process.communicate(timeout=PATIENCE_S)
        other.communicate(timeout=PATIENCE_S)
    assert other.returncode != -signal.SIGSEGV
    if transports == "all":
        assert process.returncode == 0, output
    else:
        assert "at most 4096 bytes, and here 32768: set NEARMETAL_CHUNK_SIZE" in output


# ---- Sealed nodes ----

SPEC = """\
version: 1
name: ucx
backend: local
show: ['{ucx}', '{plugin}', '{directory}']
hosts:
  - name: h1
    nodes: [{{name: n1}}, {{name: n2}}]
"""


@pytest.fixture(scope="module")
def up() -> Iterator[tuple[Site, str]]:
    with site() as place:
        spec = place.write(
            "spec.yaml", SPEC.format(ucx=UCX.parent, plugin=PLUGIN, directory=place.directory)
        )
        place.ok("up", spec)
        yield place, spec
        place.look(spec)
        place.ok("down", "--yes", spec)
        place.assert_no_trace()


def in_node(name: str, spec: str, *command: str, **more: str) -> list[str]:
    values = variables("/run/nearmetal") | more
    words = (f"{key}={value}" for key, value in values.items())
    return ["exec", spec, name, "--", "env", *words, *command]


@pytest.mark.parametrize("name", TESTS)
def test_messages_between_nodes(up: tuple[Site, str], name: str) -> None:
    place, spec = up
    uct = ("-d", "memory", "-x", "nearmetal")
    with place.start(*in_node("n1", spec, *SERVER, *uct)) as other:
        try:
            waits(other)
            options = ("-n", "2000", *TESTS[name], "10.77.0.11")
            done = place.run(*in_node("n2", spec, PERFTEST, *options))
            other.communicate(timeout=PATIENCE_S)
        finally:
            other.kill()
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert carried(output) >= 2000, output


def test_nodes_that_forbid_direct_copies_get_messages(up: tuple[Site, str]) -> None:
    """They have PID namespaces of their own, so there is no proof."""
    place, spec = up
    with place.start(*in_node("n1", spec, *SERVER, **COPIES)) as other:
        try:
            waits(other)
            options = (*ONE_COPY["tag"], "10.77.0.11")
            done = place.run(*in_node("n2", spec, PERFTEST, *options, **COPIES))
            other.communicate(timeout=PATIENCE_S)
        finally:
            other.kill()
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert not COPIED.search(output), output
    assert carried(output) > 2000, output


MPI = Path("/usr/bin/mpirun.openmpi")
TRAFFIC = ROOT / "build/programs/openmpi4/mpi_traffic"
MCA = ("pml", "ucx"), ("osc", "^ucx"), ("pml_ucx_tls", "any"), ("pml_ucx_devices", "any")


@pytest.mark.parametrize(
    ("ranks", "walls", "transports"),
    [
        (2, (), "nearmetal"),
        (4, (), "nearmetal,nearcma"),
        (2, WALLS, "nearmetal"),
        (2, WALLS, "nearmetal,nearcma"),
    ],
)
def test_open_mpi_keeps_content_and_order(
    tmp_path: Path, ranks: int, walls: tuple[str, ...], transports: str
) -> None:
    """Debian's Open MPI loads its UCX by its name, so another one can take the place."""
    if walls:
        need_root()
    if not MPI.exists() or not TRAFFIC.exists():
        lacking("Debian's Open MPI or its programs are missing")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    shutil.copy(TRAFFIC, tmp_path)
    values = variables(str(tmp_path)) | {"UCX_TLS": transports}
    options = [word for name, value in MCA for word in ("--mca", name, value)]
    options += [word for name in values for word in ("-x", name)]
    program = (*walls, str(tmp_path / "mpi_traffic"), "-n", "1500", "-b", "60M", "-s", "7")
    done = subprocess.run(
        [str(MPI), "--oversubscribe", *options, "-n", str(ranks), *program],
        check=False,
        capture_output=True,
        env=os.environ | root | values,
        text=True,
        timeout=PATIENCE_S,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "traffic OK" in output
    assert len([m for m in CARRIED.finditer(output) if int(m[1]) > 100]) == ranks
