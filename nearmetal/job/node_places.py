# SPDX-License-Identifier: Apache-2.0
"""A job's directories within machines that share no file with this one.

A login takes an emulated machine about a second, and a command over one that is there a tenth, so
a job has two scripts per node: one before it, one after. Both run as root of the node, who alone makes and removes what lies beside the jobs'.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cluster.backend import STAGED, SWEEP
from nearmetal.core.errors import LaunchError
from nearmetal.image.seed import GUEST_USER
from nearmetal.job.copies import NEW, packed, stage, unpack
from nearmetal.job.stale import MARKER, is_stale
from nearmetal.job.stats import cause, read_exit_codes, read_stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearmetal.cluster.backend import Backend
    from nearmetal.core.process import Completed, Runner
    from nearmetal.job.places import Wanted

FILES = ".files"
_STEP_S = 120.0
_MAX_STALE = 64
"""How many jobs whose owner is gone one job ends: a node may invent their names."""

_CARRY_S = 1800.0
"""An MPI is some ten megabytes, and a guest under TCG decrypts less than one in a second."""

_PATH = {"PATH": "/usr/bin:/bin"}

# Words after the first three: see=FILE that must be there, have=NAME that should be staged,
# link=LIBRARY for the job's directory of providers; without a job's name it only looks. A second
# try finds what the first one made.
_MAKE = f"""
cd -- "$1" || exit
user=$2 job=$3
shift 3
for name in * {STAGED}/*; do echo "there ${{name#{STAGED}/}}"; done
for word; do
  case $word in
    see=*) [ -e "${{word#*=}}" ] || echo "unseen ${{word#*=}}" ;;
    have=*) [ -e "{STAGED}/${{word#*=}}" ] || echo "lacks ${{word#*=}}" ;;
  esac
done
[ -n "$job" ] || exit 0
umask 077
mkdir -p -- "$job" "$job.stats" "$job.providers" || exit
for word; do
  case $word in link=*) ln -sfn -- "${{word#*=}}" "$job.providers/" || exit ;; esac
done
chown -hR -- "$user:" "$job" "$job.stats" "$job.providers"
"""

# Another job may be faster with the same files: what is there stays.
_CARRY = """
umask 022
new=$2 code=0
mkdir -p -- "$new" && tar -xzf - --no-same-owner -C "$new" &&
  { [ -e "$1" ] || mv -T -- "$new" "$1" || [ -e "$1" ]; } || code=1
rm -rf -- "$new"
exit $code
"""

# A marker per line; the directory to read; all names to remove.
_END = f"""
cd -- "$1" || exit
marker=$2 stats=$3 code=0
{SWEEP}
shift 3
[ ! -d "$stats" ] || tar -cf - -- "$stats" || code=$?
rm -rf -- "$@" && exit $code
"""


@dataclass(frozen=True)
class _Answer:
    """What a node said: names beside the job's, files it does not have."""

    there: frozenset[str]
    unseen: tuple[str, ...]
    lacks: frozenset[str]


def _answer(text: str) -> _Answer:
    """Read a node's lines; others than those asked for are ignored. Pure."""
    told: dict[str, list[str]] = {"there": [], "unseen": [], "lacks": []}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word in told:
            told[word].append(rest)
    return _Answer(frozenset(told["there"]), tuple(told["unseen"]), frozenset(told["lacks"]))


class NodePlaces:
    """Directories in every node; read by copying."""

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[str],
        job: str,
        runner: Runner,
        *,
        everyone: Sequence[str] = (),
        user: str = GUEST_USER,
    ) -> None:
        """Nothing is made yet. `everyone`: all nodes of the cluster, where remains are looked for."""
        self._backend = backend
        self._nodes = tuple(nodes)
        self._everyone = tuple(everyone or nodes)
        self._runner = runner
        self._user = user
        self._root = backend.job_root()
        self._copies: Path | None = None
        self._ended = False
        self.job = job

    def _run(
        self, nodes: Sequence[str], script: str, words: dict[str, list[str]], stdin: bytes = b""
    ) -> dict[str, Completed]:
        """Run a script in these nodes side by side, each with its own words."""
        commands = [
            replace(
                self._backend.on_node(
                    node, ["sh", "-c", script, "sh", *words[node]], env=_PATH, root=True
                ),
                stdin=stdin,
            )
            for node in nodes
        ]
        ends = self._runner.run_all(commands, timeout_s=_CARRY_S if stdin else _STEP_S)
        return dict(zip(nodes, ends, strict=True))

    def make(self, wanted: Wanted) -> None:
        """Make them in every node, after what jobs whose owner is gone left there was removed."""
        asked = [f"see={path}" for path in wanted.seen]
        asked += [f"have={name}" for _, name in wanted.files]
        asked += [f"link={path}" for path in wanted.providers]
        done = self._try(self._everyone, asked)
        gone = sorted(self._stale(done))[:_MAX_STALE]
        if gone:
            self._clear(gone)
        failed = [node for node in self._nodes if _failed(done[node])]
        if gone and failed:
            # Perhaps for want of what the others took.
            done |= self._try(failed, asked)
        _check(done, self._nodes, "cannot make the job's directories")
        answers = {node: _answer(done[node].text) for node in self._nodes}
        for node, answer in answers.items():
            if answer.unseen:
                raise LaunchError(
                    f"node {node} has no {answer.unseen[0]}",
                    "give the path of a file here, and it is brought there",
                )
        self._bring(wanted, answers)

    def _try(self, nodes: Sequence[str], asked: list[str]) -> dict[str, Completed]:
        words = {
            node: [str(self._root), self._user, self.job if node in self._nodes else "", *asked]
            for node in nodes
        }
        return self._run(nodes, _MAKE, words)

    def _stale(self, done: dict[str, Completed]) -> set[str]:
        names = {name for end in done.values() for name in _answer(end.text).there}
        return {name.partition(".")[0] for name in names if is_stale(name)}

    def _shared(self) -> set[Path]:
        """Return the directories here that nodes of the cluster see."""
        found = (self._backend.staged(node) for node in self._everyone)
        return {path for path in found if path is not None}

    def _bring(self, wanted: Wanted, answers: dict[str, _Answer]) -> None:
        """Stage what is not there yet; an MPI stays for the jobs that follow."""
        for path, name in wanted.files:
            lacking = [node for node in self._nodes if name in answers[node].lacks]
            shared = {node: self._backend.staged(node) for node in lacking}
            for place in {place for place in shared.values() if place is not None}:
                stage(path, place, name, self.job)
            rest = [node for node in lacking if shared[node] is None]
            if rest:
                there = self._root / STAGED
                words = {node: [str(there / name), str(there / (self.job + NEW))] for node in rest}
                done = self._run(rest, _CARRY, words, packed(path))
                _check(done, rest, f"cannot copy {path.name} there")

    def _end(self) -> dict[str, Completed]:
        """End and remove everything, take what the nodes of the job left."""
        done = self._clear([self.job], f"{self.job}.stats")
        self._ended = True
        return done

    def _clear(self, jobs: Sequence[str], stats: str = "") -> dict[str, Completed]:
        """End and remove these jobs everywhere, with one command per node."""
        markers = "\n".join(f"{MARKER}={job}" for job in jobs)
        made = [job + suffix for job in jobs for suffix in ("", ".stats", ".providers")]
        copies = [job + suffix for job in jobs for suffix in (FILES, NEW)]
        words = {}
        for node in self._everyone:
            copied = self._backend.staged(node) is None
            own = [f"{STAGED}/{name}" for name in copies if copied]
            words[node] = [str(self._root), markers, stats, *made, *own]
        try:
            return self._run(self._everyone, _END, words)
        finally:
            for place in self._shared():
                for name in copies:
                    shutil.rmtree(place / name, ignore_errors=True)

    def stats(self) -> list[dict[str, Any]]:
        """End the job, and read copies: what comes from a node is hostile until checked."""
        top = self._copied()
        return [e for node in self._nodes for e in read_stats(top / node)]

    def first_failure(self) -> int | None:
        """As `stats`; the nodes' clocks decide, which a host keeps together."""
        top = self._copied()
        return cause([f for node in self._nodes for f in read_exit_codes(top / node)])

    def _copied(self) -> Path:
        """Return a directory here with what the nodes' statistics directories held."""
        if self._copies is None:
            self._copies = Path(tempfile.mkdtemp(prefix="nearmetal-"))
            done = self._end()
            _check(done, self._nodes, "cannot read its counters")
            for node in self._nodes:
                unpack(done[node].stdout, self._copies / node)
        return self._copies

    def end(self) -> None:
        """End the job if that was not done; drop the copies. Nodes may be gone by now."""
        if not self._ended:
            self._end()
        if self._copies is not None:
            shutil.rmtree(self._copies, ignore_errors=True)
            self._copies = None


def _failed(end: Completed) -> bool:
    return end.code != 0 or end.timed_out


def _check(done: dict[str, Completed], nodes: Sequence[str], what: str) -> None:
    """Raise LaunchError for the first of these nodes that failed; others may be dead."""
    for node in nodes:
        if _failed(done[node]):
            raise LaunchError(f"node {node}: {what}: {done[node].error_tail or 'no answer'}")
