# SPDX-License-Identifier: Apache-2.0
"""Threading models are answered as asked, and FI_THREAD_SAFE is safe for threads."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.system.faults.peer import BUILD, PROVIDER_DIR

pytestmark = pytest.mark.system


@pytest.mark.parametrize(("channel", "thread"), [("shm", "off"), ("net", "off"), ("net", "on")])
def test_threads_share_an_endpoint_and_a_queue(channel: str, thread: str, tmp_path: Path) -> None:
    meet = tmp_path / "meet"
    meet.mkdir(mode=0o700)
    env = {
        "PATH": os.environ["PATH"],
        "FI_PROVIDER_PATH": str(PROVIDER_DIR),
        "NEARMETAL_RUNDIR": str(meet),
        "NEARMETAL_CHANNELS": f"self,{channel}",
        "NEARMETAL_MOVE_THREAD": thread,
    }
    done = subprocess.run(
        [BUILD / "tests/system/fabric_threads"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "threads OK: 8000 messages\n"
    assert not list(meet.iterdir())
