# SPDX-License-Identifier: Apache-2.0
"""Runs libfabric's own tests for RDM endpoints, from a tree where they are built, over a provider.

    python -m tests.conformance.fabtests --tree DIR --provider nearmetal --record FILE.jsonl

DIR is a fabtests directory with its `scripts`, `test_configs` and the programs in `bin`. The list
of tests is read from its runfabtests.sh. Server and client start under --server and --client,
commands such as `nearmetal exec SPEC n1 --`. An interrupted run resumes; --again fail,timeout
repeats these results. The environment is passed on, and FI_PROVIDER_PATH also under --server and
--client. A test that nearmetal did not carry is `unproven` (tests/conformance/attest.py).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.conformance.attest import (
    Expected,
    Place,
    Trace,
    add_arguments,
    attested,
    place_of,
    run_all,
)
from tests.conformance.outcomes import Outcome, end

SUITES = ("unit", "functional", "standard", "threaded", "short", "complex")
NOT_RDM = re.compile(r"^fi_(msg|dgram|cm_data|mcast)\b|^fi_(msg|dgram)_|-e (msg|dgram)\b")
_NOT_RUN = {errno.ENODATA, errno.ENOSYS}
_COUNTS = re.compile(r"^\s*(Success|ENODATA|ENOSYS|ERROR|EOTHER|EIO)\s*:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Bench:
    """Where the programs are, and where server and client start."""

    tree: Path
    provider: str
    address: str
    oob: bool
    server: Sequence[str]
    client: Sequence[str]
    timeout_s: float
    iterations: int
    """of tests that measure; 0: as many as they want"""
    delay_s: float
    """head start of the server"""
    log: Path
    place: Place
    options: Sequence[str] = ()
    """of every test with two sides"""


def read_tests(script: str, suite: str) -> list[str]:
    """Return the command lines of one suite in the text of runfabtests.sh, those for RDM."""
    match = re.search(rf"^{suite}_tests=\(\s*\n(.*?)^\)", script, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"runfabtests.sh has no list {suite}_tests")
    lines = re.findall(r'^\s*"(.*?)"', match[1], re.MULTILINE)
    return [line for line in lines if not NOT_RDM.search(line)]


def read_blocks(config: str) -> list[str]:
    """Return the blocks in braces of a file of ubertest."""
    blocks, depth, begin = [], 0, 0
    for at, sign in enumerate(config):
        if sign == "{":
            begin = at if depth == 0 else begin
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                blocks.append(config[begin : at + 1])
    return blocks


def wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> bool:
    """Wait for all; once the last of them, the client, fails the others get two seconds."""
    deadline = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline:
            return False
        if processes[-1].poll() not in {None, 0}:
            deadline = min(deadline, time.monotonic() + 2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                processes[0].wait(2)
            return processes[0].poll() is not None
        time.sleep(0.02)
    return True


def run(
    commands: Sequence[Sequence[str]], timeout_s: float, logs: Sequence[Path], delay_s: float = 0.5
) -> tuple[list[int | None], bool]:
    """Start the commands one after the other; returns their exit codes and whether all ended."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in zip(commands, logs, strict=True):
            if processes:
                time.sleep(delay_s)
            with log.open("wb") as file:
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        ended = wait(processes, timeout_s)
        return [process.poll() for process in processes], ended
    finally:
        for process in processes:
            end(process)


def judge(codes: Sequence[int | None], ended: bool) -> str:
    """Say what exit codes mean. What the server is not offered, the client cannot try."""
    if codes[0] in _NOT_RUN:
        return "notrun"
    if any(code not in {None, 0} for code in codes):
        return "fail"
    return "pass" if ended else "timeout"


def judge_uber(client: str, codes: Sequence[int | None]) -> tuple[str, str]:
    """Judge by what the client counted: ubertest also exits with the code of what is not offered."""
    found = {word: int(number) for word, number in _COUNTS.findall(client)}
    words = ", ".join(f"{number} {word}" for word, number in found.items() if number)
    bad = sum(number for word, number in found.items() if word not in {"Success", "ENODATA"})
    if bad or not found or set(codes) - _NOT_RUN - {0}:
        return "fail", words
    return "pass" if found.get("Success") else "notrun", words


def tail(logs: Sequence[Path], codes: Sequence[int | None]) -> str:
    """Return exit codes and the last line of each side."""
    words = []
    for log, code in zip(logs, codes, strict=True):
        lines = [w for w in log.read_text(errors="replace").splitlines() if w.strip()]
        words.append(f"[{code}] {lines[-1][:160] if lines else ''}")
    return " / ".join(words)


def one_side(bench: Bench, test: str) -> list[Sequence[str]]:
    """Return the command of a unit test."""
    words = test.replace("GOOD_ADDR", bench.address).replace("SERVER_ADDR", bench.address)
    program, *options = shlex.split(words)
    return [[*bench.server, str(bench.tree / "bin" / program), *options, "-p", bench.provider]]


def two_sides(bench: Bench, suite: str, test: str) -> list[Sequence[str]]:
    """Return the commands of server and client."""
    program, *options = shlex.split(test)
    if bench.iterations and suite in {"standard", "threaded"}:
        options += ["-I", str(bench.iterations)]  # the last one counts
    argv = [str(bench.tree / "bin" / program), *options, *bench.options, "-p", bench.provider]
    if bench.oob:
        return [[*bench.server, *argv, "-E"], [*bench.client, *argv, "-E", bench.address]]
    server = [*bench.server, *argv, "-s", bench.address]
    return [server, [*bench.client, *argv, bench.address]]


def traced(command: Sequence[str], program: Path, trace: Trace) -> list[str]:
    """Return the command, with settings for the program wherever it starts."""
    at = command.index(str(program))
    kept = {name: os.environ[name] for name in ("FI_PROVIDER_PATH",) if name in os.environ}
    settings = [f"{name}={value}" for name, value in (kept | trace.env).items()]
    return [*command[:at], "env", *settings, *trace.named(command[at:])]


def try_one(bench: Bench, suite: str, test: str, commands: list[Sequence[str]]) -> Outcome:
    """Run one test."""
    program = bench.tree / "bin" / shlex.split(test)[0]
    if not program.is_file():
        return Outcome(suite, test, "missing", 0, f"{program} is not built")
    stem = re.sub(r"[^\w.-]+", "_", f"{suite}.{test}")
    logs = [bench.log / f"{stem}.{side}" for side in ("server", "client")[: len(commands)]]
    begin = time.monotonic()
    with bench.place.trace() as trace:
        started = [traced(command, program, trace) for command in commands]
        codes, ended = run(started, bench.timeout_s, logs, bench.delay_s)
        proof = trace.read()
    result = judge(codes, ended)
    note = "" if result == "pass" else tail(logs, codes)
    if suite == "complex" and result != "timeout":
        result, counted = judge_uber(logs[-1].read_text(errors="replace"), codes)
        note = f"{counted} {note}" if result == "fail" else counted
    outcome = Outcome(suite, test, result, round(time.monotonic() - begin, 1), note)
    sides = 0 if suite == "unit" else len(commands)
    return attested(outcome, proof, Expected(bench.provider, sides, messages=sides > 1))


def uber(bench: Bench, place: Path) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """Yield each block of the files for RDM over TCP and shared memory as a test of its own."""
    base = [str(bench.tree / "bin" / "fi_ubertest")]
    oob = ["-E"] if bench.oob else []
    for name in ("ofi_rxm/tcp.test", "shm/all.test"):
        text = (bench.tree / "test_configs" / name).read_text(encoding="utf-8")
        text = re.sub(r"prov_name:\s*[^,\n]+", f"prov_name: {bench.provider}", text)
        for number, block in enumerate(read_blocks(text), 1):
            file = place / f"{name.replace('/', '.')}.{number}"
            file.write_text(block + "\n", encoding="utf-8")
            yield (
                f"fi_ubertest {name} block {number}",
                [
                    [*bench.server, *base, "-x", *oob],
                    [*bench.client, *base, "-u", str(file), bench.address, *oob],
                ],
            )


def tests(bench: Bench, suite: str, place: Path) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """Yield the tests of a suite and their commands."""
    if suite == "complex":
        yield from uber(bench, place)
        return
    script = (bench.tree / "scripts" / "runfabtests.sh").read_text(encoding="utf-8")
    for test in read_tests(script, suite):
        if suite == "unit":
            yield test, one_side(bench, test)
        else:
            yield test, two_sides(bench, suite, test)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 if every test passed or does not apply, and the provider is proven."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__.split("\n")[0] if __doc__ else None
    )
    add_arguments(parser, SUITES)
    parser.add_argument("--address", default="127.0.0.1", help="of the server")
    parser.add_argument("--no-oob", action="store_true", help="the provider resolves addresses")
    parser.add_argument("--server", default="", help="command to start the server under")
    parser.add_argument("--client", default="", help="command to start the client under")
    parser.add_argument("--delay", type=float, default=0.5, help="seconds the server is ahead")
    parser.add_argument("--iterations", type=int, default=0, help="of standard and threaded tests")
    parser.add_argument(
        "--options", default="", help="of tests with two sides, such as '-D cuda'; not of complex"
    )
    options = parser.parse_args(argv)
    log = options.record.with_suffix(".log")
    log.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        options.tree.resolve(),
        options.provider,
        options.address,
        not options.no_oob,
        shlex.split(options.server),
        shlex.split(options.client),
        options.timeout,
        options.iterations,
        options.delay,
        log,
        place_of(options),
        shlex.split(options.options),
    )
    with tempfile.TemporaryDirectory() as place:
        try:
            found = [
                (suite, test, partial(try_one, bench, suite, test, commands))
                for suite in options.suites.split(",")
                for test, commands in tests(bench, suite, Path(place))
            ]
        except (OSError, ValueError) as error:
            parser.exit(1, f"error: {error}: --tree must be a built fabtests\n")
        return run_all(options, found)


if __name__ == "__main__":
    sys.exit(main())
