# SPDX-License-Identifier: Apache-2.0
"""Scripts in the nodes: read here, run there, and recorded.

    post.json       for each node: the identity of its machine, and how far each script came in it
    post/           the output of each script in each node

A script is recorded as begun before it starts. If `up` is killed, the next one ends the processes that
carry the token of that run, and runs the script again.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath

from pydantic import ValidationError

from nearmetal.cluster.backend import SWEEP, Backend
from nearmetal.cluster.diff import Plan
from nearmetal.cluster.model import ClusterSpec, some
from nearmetal.cluster.post import NodeScripts, ScriptRun, ScriptState, pending
from nearmetal.core.errors import BackendError, CommandError, StateError
from nearmetal.core.files import MAX_STATE, read_regular, replace_file
from nearmetal.core.process import Command, Completed, Runner
from nearmetal.core.text import printable_lines

MAX_SCRIPT = 1 << 20
MAX_LOG = 1 << 20
"""Bytes of a script's output that are kept: the last ones."""

_RECORD, _LOGS = "post.json", "post"
_GUARD_S = 90.0
"""Time that a node has besides that of the script: for the login, and to end processes."""

_TAIL_LINES = 12
_MAX_NODES = 12
"""Nodes that an error lists; it counts the rest."""

_END = re.compile(rb"\n?nearmetal: exit ([0-9]{1,3}) after ([0-9]{1,9}) s\n\Z")
_LATE = (124, 137)
"""Exit codes of timeout(1) where it ended the program; the program may have the same."""


def _wrapper() -> str:
    text = Path(__file__).with_name("post.sh").read_text(encoding="utf-8")
    return text.replace("@SWEEP@", SWEEP.strip())


@dataclass(frozen=True)
class PostScripts:
    """The scripts of one cluster. `directory`: of its state."""

    spec: ClusterSpec
    backend: Backend
    directory: Path
    runner: Runner

    # What has to run

    @cached_property
    def _contents(self) -> dict[str, bytes]:
        found, faults = {}, []
        for path in dict.fromkeys(entry.script for entry in self.spec.post):
            try:
                found[path] = read_regular(path, MAX_SCRIPT)
            except OSError as error:
                faults.append(f"\n  {path}: {error.strerror or error}")
        if faults:
            raise StateError(
                f"scripts of `post` are not readable:{''.join(faults)}",
                "correct `script` in the spec; no script has run",
            )
        return found

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {p: hashlib.sha256(text).hexdigest() for p, text in self._contents.items()}

    def _known(self) -> dict[str, NodeScripts]:
        path = self.directory / _RECORD
        try:
            data = json.loads(read_regular(path, MAX_STATE))
            return {str(name): NodeScripts.model_validate(one) for name, one in data.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, ValidationError, RecursionError) as error:
            raise StateError(
                f"the record of scripts {path} is not readable",
                "remove it to run all scripts again",
            ) from error

    def added(self, plan: Plan) -> Plan:
        """Return the plan with the scripts that have to run after its changes."""
        if not self.spec.post:
            return plan
        machines = self.backend.incarnations()
        kept = {node: machine for node, machine in machines.items() if node not in plan.fresh}
        runs = pending(self.spec, self._digests, kept, self._known())
        off = [node.name for _, node in self.spec.nodes if not self.spec.is_on(node.name)]
        notes = (f"scripts of `post` wait until these are on: {some(off)}",) if off else ()
        return replace(plan, scripts=runs, notes=plan.notes + notes)

    # Running

    def run(self, run: ScriptRun) -> None:
        """Run one script in its nodes.

        Raises BackendError that names the nodes where it fails, and StateError if its content is not
        the one of the plan.
        """
        content = self._contents[run.entry.script]
        if self._digests[run.entry.script] != run.digest:
            raise StateError(
                f"script {run.entry.script} has changed since the plan was made",
                "run `nearmetal up` again, which shows the plan with the new content",
            )
        machines, known = self.backend.incarnations(), self._known()
        gone = [node for node in run.nodes if node not in machines]
        if gone:
            raise BackendError(f"node {some(gone)} is gone", "run `nearmetal up` again")
        text, commands = _wrapper(), dict[str, Command]()
        for node in run.nodes:
            mine = known.get(node)
            if mine is None or mine.machine != machines[node]:
                mine = NodeScripts(machine=machines[node])
            old = mine.scripts.get(run.digest)
            # The same token again: processes of a node that did not answer may be of any earlier run.
            token = old.token if old else secrets.token_hex(16)
            # An earlier version of the script, or one that is not in the spec now, may run still.
            left = [s.token for s in mine.scripts.values() if s.state != "done"]
            known[node] = _with(mine, run.digest, ScriptState(state="begun", token=token))
            words = (token, node, str(run.entry.timeout), str(MAX_LOG), str(len(content)), *left)
            argv = ["sh", "-c", text, "sh", *words]
            enter = self.backend.on_node(node, argv, root=True)
            commands[node] = replace(enter, stdin=content)
        (self.directory / _LOGS).mkdir(mode=0o700, exist_ok=True)
        self._record(known)
        faults: dict[str, str] = {}

        def ended(index: int, end: Completed) -> None:
            node = run.nodes[index]
            state = known[node].scripts[run.digest]
            why, known[node] = self._outcome(run, node, end, known[node], state)
            self._record(known)
            if why:
                faults[node] = why

        limit = run.entry.timeout + _GUARD_S
        try:
            self.runner.run_all(list(commands.values()), timeout_s=limit, ended=ended)
        except CommandError as error:
            raise BackendError(f"script {run.entry.script}: {error.message}", error.hint) from error
        if faults:
            raise self._failure(run, faults)

    def _record(self, known: Mapping[str, NodeScripts]) -> None:
        nodes = {node.name for _, node in self.spec.nodes}
        data = {name: one.model_dump() for name, one in known.items() if name in nodes}
        replace_file(self.directory / _RECORD, json.dumps(data, indent=1) + "\n")

    def log_of(self, run: ScriptRun, node: str) -> Path:
        """Return the file of a script's output in a node."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", PurePath(run.entry.script).name)[:100]
        return self.directory / _LOGS / f"{node}.{name}.{run.digest[:8]}.log"

    def _outcome(
        self, run: ScriptRun, node: str, end: Completed, mine: NodeScripts, state: ScriptState
    ) -> tuple[str, NodeScripts]:
        """Return the fault, "" for none, and the new record."""
        found = None if end.timed_out else _END.search(end.stdout)
        if found is None:
            # The connection was lost, or the script never began: it may run still.
            late = f"no answer after {run.entry.timeout + _GUARD_S:.0f} s"
            reason = late if end.timed_out else end.error_tail or f"exit code {end.code}"
            return f"cannot be run there: {printable_lines(reason)}", mine
        output = end.stdout[: found.start()]
        replace_file(self.log_of(run, node), output, sync=False)
        # Before it began, all that an earlier version had left was ended.
        mine = mine.model_copy(update={"scripts": self._wanted(mine.scripts)})
        code, seconds = int(found[1]), int(found[2])
        if code == 0:
            return "", _with(mine, run.digest, state.model_copy(update={"state": "done"}))
        why = f"it failed with exit status {code}"
        if code in _LATE and seconds >= run.entry.timeout:
            why = f"it did not end within {run.entry.timeout} s"
        lines = output.decode("utf-8", "replace").strip().splitlines()[-_TAIL_LINES:]
        shown = "".join(f"\n      {printable_lines(line)}" for line in lines)
        failed = state.model_copy(update={"state": "failed", "why": why})
        return f"{why}{shown or ', without output'}", _with(mine, run.digest, failed)

    def _wanted(self, scripts: Mapping[str, ScriptState]) -> dict[str, ScriptState]:
        now = self._digests.values()
        return {d: one for d, one in scripts.items() if one.state == "done" or d in now}

    def _failure(self, run: ScriptRun, faults: Mapping[str, str]) -> BackendError:
        shown = [*faults.items()][:_MAX_NODES]
        listed = "".join(f"\n  node {node}: {why}" for node, why in shown)
        more = len(faults) - len(shown)
        listed += f"\n  and {more} nodes more" if more else ""
        return BackendError(
            f"script {run.entry.script}, step {run.entry.step}, in {len(faults)} of "
            f"{len(run.nodes)} nodes:{listed}",
            f"the output is in {self.directory / _LOGS}; correct the cause and run `nearmetal up` "
            "again: it runs the script again where it failed, and then the later ones",
        )


def _with(mine: NodeScripts, digest: str, state: ScriptState) -> NodeScripts:
    return mine.model_copy(update={"scripts": {**mine.scripts, digest: state}})
