# SPDX-License-Identifier: Apache-2.0
"""Run attacks on the channel shm: from inside a node of a job, until the file `stop` is there.

Arguments: the directory in which each job has its rundir, and the names of attacks that run at the
same time. It prints `ready`, and at the end one JSON object with what each of them did.
"""

import json
import os
import resource
import struct
import sys
import threading
from pathlib import Path

from tests.system.faults import (  # noqa: F401
    shm_callers,
    shm_identities,
    shm_names,
    shm_peers,
    shm_relays,
    shm_windows,
)
from tests.system.faults.shm_scene import Scene
from tests.system.faults.shm_table import ATTACKS

__all__ = ["ATTACKS"]


def quiet(raised: threading.ExceptHookArgs) -> None:
    """Threads of an attack end with the sockets that they use; other errors are errors."""
    if not isinstance(raised.exc_value, OSError | struct.error):
        threading.__excepthook__(raised)


def main() -> None:
    """Attack, and count."""
    directory, *names = sys.argv[1:]
    scene = Scene(Path(directory))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.excepthook = quiet
    # The processors are the host's to share; no attack is meant to take them.
    os.nice(10)
    # One attack must not keep the others from what they pass on.
    sys.setswitchinterval(0.0005)
    views = {name: scene.view() for name in names}
    threads = [
        threading.Thread(target=ATTACKS[name].run, args=(view,)) for name, view in views.items()
    ]
    threads.append(threading.Thread(target=scene.start_ranks))
    print("ready", flush=True)  # noqa: T201
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scene.tidy()
    counts = {name: dict(view.counts) for name, view in views.items()}
    done = sum(view.counts.total() for view in views.values())
    print(json.dumps({"done": done, "attacks": counts}), flush=True)  # noqa: T201
    # Threads may still wait for callers.
    os._exit(0)


if __name__ == "__main__":
    main()
