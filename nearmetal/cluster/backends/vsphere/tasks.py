# SPDX-License-Identifier: Apache-2.0
"""Tasks of vCenter that an earlier run left: they are waited for before anything else begins."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from pyVmomi import vim, vmodl

from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.session import UNDER_WAY, Properties, Session, TaskLeftError, fetch_of

_NAMES = ("info.state", "info.entity", "info.descriptionId")


def _recent(content: Any) -> dict[Any, Properties]:
    for _ in range(3):
        try:
            return fetch_of(content, vim.Task, content.taskManager.recentTask or [], _NAMES)
        except vmodl.fault.ManagedObjectNotFound:
            continue  # vCenter forgot an old task in between
    return {}


def wait_for_tasks(session: Session, entities: Collection[Any]) -> list[str]:
    """Wait for the tasks of these objects that vCenter works on now; returns notes on them.

    Failures are not errors: the plan shows what is missing. Raises BackendError for a stalled task.
    """
    found = session.call("looking for tasks", partial(_recent, session.content))
    waited: list[str] = []
    for task, info in found.items():
        if info.get("info.state") not in UNDER_WAY or info.get("info.entity") not in entities:
            continue
        what = str(info.get("info.descriptionId")).rpartition(".")[2]
        try:
            session.wait(f"{what} of an earlier run", partial(_same, task))
        except TaskLeftError:
            raise
        except BackendError as error:
            waited.append(str(error))
        else:
            waited.append(what)
    names = ", ".join(sorted(set(waited)))
    return [f"{len(waited)} tasks of an earlier run were waited for: {names}"] if waited else []


def _same(task: Any) -> Any:
    return task
