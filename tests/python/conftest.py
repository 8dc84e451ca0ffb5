# SPDX-License-Identifier: Apache-2.0
"""Every result that a test makes a verb show is checked by the schema of the verb.

Property tests have no deadline: a busy machine makes no test wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

from nearmetal.cli.verbs import VERBS, VerbParser
from nearmetal.cli.view import View
from tests.documents import check_document

settings.register_profile("without a clock", deadline=None)
settings.load_profile("without a clock")

DIRECT = {
    ("host", "show_plan"): "host plan",
    ("host", "show_status"): "host status",
    ("host", "show_vfs"): "host vf",
    ("host", "apply_hosts"): "host apply",
    ("host", "roll_back"): "host rollback",
    ("slurm", "show_status"): "slurm status",
    ("slurm", "launch"): "slurm launch",
    ("slurm", "reclaim"): "slurm reclaim",
}
"""Functions of nearmetal.cli that tests call without a command line, and their verbs."""


@pytest.fixture(autouse=True, scope="session")
def _results_have_their_schema() -> Iterator[None]:
    verb = ""
    parse, show = VerbParser.parse_known_args, View.result

    def parse_known_args(self: VerbParser, args: Any = None, namespace: Any = None) -> Any:
        nonlocal verb
        verb = self.prog.removeprefix("nearmetal ")
        return parse(self, args, namespace)

    def result(self: View, data: dict[str, Any], lines: Sequence[str] = ()) -> None:
        caller = sys._getframe(1)
        package, _, module = caller.f_globals["__name__"].rpartition(".")
        used = DIRECT.get((module, caller.f_code.co_name), verb)
        # The demo shows lines without a document, and programs that are no verbs use View, too.
        if data and package == "nearmetal.cli" and used in VERBS:
            check_document(used, data)
        show(self, data, lines)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VerbParser, "parse_known_args", parse_known_args)
        patch.setattr(View, "result", result)
        yield
