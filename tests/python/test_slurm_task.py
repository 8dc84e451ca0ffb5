# SPDX-License-Identifier: Apache-2.0
"""Tasks of a step in a container of their own making, without a Slurm: real user namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nearmetal.core.errors import SlurmError, UsageError
from nearmetal.slurm.task import SEGMENT, Share, TaskStep, enter, step_of, tasks_per_node, variables
from tests.system.local import user_can_read_checkout

ROOT = Path(__file__).parents[2]
SHARE = Share(1 << 20, 1 << 20)
USER = ["setpriv", "--reuid=64321", "--regid=64321", "--clear-groups"]
AS_USER = USER if os.geteuid() == 0 else []

can_be_user = pytest.mark.skipif(
    os.geteuid() == 0 and not user_can_read_checkout(),
    reason="an ordinary user cannot read this checkout",
)
has_user_namespaces = pytest.mark.skipif(
    subprocess.run([*AS_USER, "unshare", "-U", "true"], check=False, capture_output=True).returncode
    != 0,
    reason="users may not make user namespaces here",
)


def task(local: int, nr: int, *program: str, step: int = 0, job: int = 5) -> subprocess.Popen[str]:
    """Start a task as srun would, as an ordinary user."""
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": str(step),
        "SLURM_NODEID": "1",
        "SLURM_LOCALID": str(local),
        "SLURM_STEP_TASKS_PER_NODE": f"7,{nr}(x2)",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MINE": "kept",
    }
    argv = [*AS_USER, sys.executable, "-m", "nearmetal", "slurm", "task", "--segment", "2 MiB"]
    return subprocess.Popen(
        [*argv, "--", *program],
        env=env,
        text=True,
        cwd="/usr",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def told(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out.splitlines(), err


@pytest.mark.parametrize(
    ("text", "nr"),
    [("3", [3]), ("2(x3),1", [2, 2, 2, 1]), ("1,2,3(x1)", [1, 2, 3])],
)
def test_tasks_of_each_node(text: str, nr: list[int]) -> None:
    assert tasks_per_node(text) == nr


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2,", "-1", "1(x9999999)"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any word of it
        tasks_per_node(text)


def test_outside_of_a_step_one_is_told_to_use_srun() -> None:
    env = {
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_ID": "1",
        "SLURM_NODEID": "2",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "4,2(x2)",
    }
    assert step_of(env) == TaskStep("5.1.2", 1, 2)
    for change in ({"SLURM_NODEID": "3"}, {"SLURM_STEP_ID": ""}, {"SLURM_JOB_ID": "x"}):
        with pytest.raises(UsageError) as caught:
            step_of(env | change)
        assert "srun nearmetal slurm task" in caught.value.hint


def test_sizes_are_checked() -> None:
    with pytest.raises(SlurmError, match="scratch of 5 bytes"):
        enter(TaskStep("5.0", 0, 1), Share(1 << 20, 5), {})


def test_the_users_variables_stay_but_for_the_segment_directory() -> None:
    share = Share(1 << 20, 1 << 20, channels="self,shm")
    given = {"NEARMETAL_RUNDIR": "/elsewhere", "NEARMETAL_CHANNELS": "net", "A": "b"}
    env, providers = variables(share, given)
    assert env == {
        "NEARMETAL_RUNDIR": SEGMENT,
        "NEARMETAL_CHANNELS": "net",
        "A": "b",
        "PMIX_MCA_gds": "hash",
    }
    assert providers == ()
    assert variables(share, {})[0]["NEARMETAL_CHANNELS"] == "self,shm"


@can_be_user
@has_user_namespaces
def test_tasks_of_a_step_share_what_nobody_else_sees() -> None:
    look = (
        'echo x >"$NEARMETAL_RUNDIR/$SLURM_LOCALID"; until [ "$(ls "$NEARMETAL_RUNDIR" '
        '| wc -l)" = 2 ]; do sleep 0.05; done; echo $PWD $MINE $(id -u) $(ls /tmp | wc -l); '
        "for n in user mnt ipc pid; do readlink /proc/self/ns/$n; done; exit 7"
    )
    # The one that makes the container is not the first to start.
    started = [task(local, 2, "sh", "-c", look) for local in (1, 0)]
    alone = 'cd "$NEARMETAL_RUNDIR" && touch other && sleep 1 && ls'
    other = task(0, 1, "sh", "-c", alone, step=1)
    one, two = (told(process) for process in started)
    assert one == two
    code, lines, said = one
    assert (code, said) == (7, "")
    uid = 64321 if AS_USER else os.geteuid()
    assert lines[0] == f"/usr kept {uid} 0"
    outside = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("user", "mnt", "ipc")]
    assert not set(lines[1:4]) & set(outside)
    assert lines[4] == str(Path("/proc/self/ns/pid").readlink())
    assert told(other) == (0, ["other"], "")


@can_be_user
@has_user_namespaces
def test_a_program_that_is_not_there_is_said() -> None:
    code, _, said = told(task(0, 1, "/nowhere/app"))
    assert code == 1
    assert "cannot start /nowhere/app: No such file or directory" in said


@can_be_user
@has_user_namespaces
@pytest.mark.parametrize(
    ("local", "words"),
    [
        (0, "step 77.0: not all of its 2 tasks on this node have started"),
        (1, "step 77.0: the first task on this node has not made the container"),
    ],
)
def test_a_task_whose_siblings_never_come_ends_in_words(local: int, words: str) -> None:
    script = (
        "from nearmetal.slurm.task import Share, TaskStep, enter\n"
        "from nearmetal.core.errors import SlurmError\n"
        f"try: enter(TaskStep('77.0', {local}, 2), Share(1 << 20, 1 << 20), {{}}, wait_s=0.3)\n"
        "except SlurmError as error: print(error.message)\n"
    )
    done = subprocess.run(
        [*AS_USER, sys.executable, "-c", script],
        cwd=ROOT,
        text=True,
        timeout=60,
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == words


@can_be_user
@has_user_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a /dev/shm of its own")
@pytest.mark.parametrize("put", ["printf 77.0 >", "mkfifo "])
def test_what_others_put_where_tasks_meet_is_not_looked_at(put: str) -> None:
    script = (
        "from nearmetal.slurm.task import Share, TaskStep, enter\n"
        "from nearmetal.core.errors import SlurmError\n"
        "try: enter(TaskStep('77.0', 1, 2), Share(1 << 20, 1 << 20), {}, wait_s=0.3)\n"
        "except SlurmError as error: print(error.message)\n"
    )
    outside = (
        "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mkdir /dev/shm/nearmetal && "
        f'{put}/dev/shm/nearmetal/step && exec "$@"'
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", outside, "-", *AS_USER, sys.executable, "-c", script],
        cwd=ROOT,
        text=True,
        timeout=60,
        capture_output=True,
        check=True,
    )
    assert (
        done.stdout.strip() == "step 77.0: the first task on this node has not made the container"
    )
