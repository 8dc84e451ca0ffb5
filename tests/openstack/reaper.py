# SPDX-License-Identifier: Apache-2.0
"""Runs a daemon, and asks for the exit codes of its orphans: python3 -I reaper.py PROGRAM ARGS...

libvirt waits up to ten seconds for a QEMU that has ended until a process has asked for its exit
code. A host's init does so at once; what is process 1 of a machine of CI may take its time.
"""

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Run until the daemon ends; exit with its code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    daemon = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
    while True:
        pid, status = os.wait()
        if pid == daemon:
            sys.exit(os.waitstatus_to_exitcode(status) & 255)


main()
