# SPDX-License-Identifier: Apache-2.0
"""`check` in a job of a real Slurm: a step on each node, beside the other steps of the job."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.system.local import ROOT, user_can_read_checkout
from tests.system.slurm_site import NODES, SlurmSite, need, slurm_site

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.root,
    pytest.mark.timeout(600),
]

need()
if not user_can_read_checkout():
    pytest.skip("users cannot read the checkout", allow_module_level=True)


@pytest.fixture
def site() -> Iterator[SlurmSite]:
    with slurm_site() as place:
        yield place


def test_a_job_is_asked_by_its_own_steps(site: SlurmSite) -> None:
    folder = site.home("ann") / "facts"
    check = f"{sys.executable} -m nearmetal check collect --slurm --output {folder} --json"
    # Variables of the job are options of srun, and another step has all processors.
    script = f"export SLURM_LABELIO=1 SLURM_NTASKS_PER_NODE=4; srun sleep 60 & {check}; kill $!"
    words = ("salloc", "--quiet", "--exclusive", f"--nodes={len(NODES)}", "bash", "-c", script)
    done = site.run("ann", *words, env={"PYTHONPATH": str(ROOT)}, timeout=240)
    assert done.stdout, done.stderr + site.logs()
    result = json.loads(done.stdout)
    assert result["silent"] == {}, done.stderr
    assert sorted(result["nodes"]) == sorted(NODES)
    index = json.loads((folder / "collection.json").read_text())
    assert sorted(index["nodes"]) == sorted(NODES)
    site.assert_clean()
