# SPDX-License-Identifier: Apache-2.0
# Works by descriptors and system calls, and imports little to start at once: no pathlib.
# ruff: noqa: PTH116, PTH123
"""The confinement of every process in a node, and the way into it.

    python -I -S confine.py PID TICKS PROGRAM ARGS...

enters the node whose process 1 is PID and started at TICKS, confines itself as that process is
confined, and runs PROGRAM. It ends as PROGRAM ends. It needs only the standard library: the agent
starts a copy of this file.

    python -I -S confine.py door NODE COMMAND

asks the supervisor of a job to run COMMAND in NODE: the job's launcher is confined itself.

Three walls, each of which holds without the others:

    user namespace   owns nothing: mounts, network and host name belong to the cluster's namespace,
                     so no capability of a node reaches them. All nodes of a cluster share it,
                     because the kernel allows copies between processes (CMA) only within one.
    capabilities     CAPABILITIES, and no new privileges.
    system calls     a filter refuses what changes mounts, namespaces or the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import sys
from typing import NoReturn

CLONE_NEWTIME, CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x80, 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x8000000, 0x10000000, 0x20000000, 1 << 30
NAMESPACES = {
    "pid": CLONE_NEWPID,
    "net": CLONE_NEWNET,
    "uts": CLONE_NEWUTS,
    "ipc": CLONE_NEWIPC,
    "mnt": CLONE_NEWNS,
}
"""What a node has for itself. The mounts are last: the paths of the others are the launcher's."""

USERS = "/run/nearmetal-cluster/users"
"""The user namespace of all nodes, in the launcher's place; absent where the kernel has none."""

DOOR = "/run/nearmetal-cluster/door"
"""The socket of the supervisor, in the launcher's place of a job."""

CAPABILITIES = frozenset({2})
"""CAP_DAC_READ_SEARCH: the jobs of root read what root can read. No user gains by it, because the
user namespace of an ordinary user has no files but the user's own."""

NR_CAPABILITIES = 64
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
CAPABILITY_VERSION_3 = 0x20080522
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
"""SPEC_ALLOW: without it kernels before 5.16 slow a filtered process down (Spectre 4)."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of classic BPF: load a word, three conditional jumps, return."""
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
X32 = 0x40000000

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column in the tables of numbers, and the kernel's word for the architecture."""

SECCOMP, CLONE, CLONE3, UNSHARE = (317, 277), (56, 220), (435, 435), (272, 97)
SOCKET, SOCKETPAIR, IOCTL, FCNTL = (41, 198), (53, 199), (16, 29), (72, 25)
MKNOD, MKNODAT = (133, None), (259, 33)

REFUSED: dict[str, tuple[int, int | None]] = {
    # File systems and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    # Files by number instead of by path
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # The kernel itself
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "syslog": (103, 116),
    "acct": (163, 89),
    "iopl": (172, None),
    "ioperm": (173, None),
    # What the machine has once: keys, clock, names, console
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
}

SPACES = (
    CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
)
DEVICE_BIT = 0o020000
"""Set in the mode of block and of character devices, and of no other file."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type into the terminal that `exec` was called from."""
LEASES = (1024, 1040)
"""F_SETLEASE and F_SETDELEG: they hold up every process of the machine that opens the file."""
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others are no part of a network namespace (AF_VSOCK), or
are doors into the kernel that MPI does not need (AF_PACKET, AF_ALG)."""

STATUS = struct.Struct("i")
"""What is said at the door: the descriptor of the request, and the wait status of the command."""

libc = ctypes.CDLL(None, use_errno=True)

Program = list[tuple[int, int, int, int]]


def check(result: int, what: str) -> int:
    """Raise OSError with `what` for a failed system call."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def architecture() -> tuple[int, int]:
    """Return this machine's entry of ARCHITECTURES."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise OSError(
            0, f"the system calls of {machine} are not known, so nodes need x86_64 or aarch64"
        )
    return ARCHITECTURES[machine]


def argument(number: int, tests: Program, *, found: int, otherwise: int) -> Program:
    """Return `found` or `otherwise` by the low word of an argument.

    Each of `tests` says by its jump (1, 0) that it found something.
    """
    end = len(tests)
    jumps = [(code, end - i, 0, word) for i, (code, _, _, word) in enumerate(tests)]
    load = (LOAD, 0, 0, AT_ARGUMENTS + 8 * number)
    return [load, *jumps, (RETURN, 0, 0, otherwise), (RETURN, 0, 0, found)]


def filter_program() -> Program:
    """Return the filter of system calls in classic BPF."""
    column, word = architecture()
    refuse = ERRNO | errno.EPERM
    program: Program = [
        # The numbers mean other calls in another architecture.
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (EQUAL, 1, 0, word),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, AT_NUMBER),
        # Every call of x86-64 has a second number in the x32 ABI, of the same architecture.
        (AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, refuse),
    ]

    def case(numbers: tuple[int, int | None], body: Program) -> None:
        number = numbers[column]
        if number is not None:
            program.extend([(EQUAL, 0, len(body), number), *body])

    for numbers in REFUSED.values():
        case(numbers, [(RETURN, 0, 0, refuse)])
    # Its flags are in memory, where a filter cannot look: libraries go back to clone.
    case(CLONE3, [(RETURN, 0, 0, ERRNO | errno.ENOSYS)])

    def by(number: int, *tests: tuple[int, int]) -> Program:
        words: Program = [(code, 1, 0, word) for code, word in tests]
        return argument(number, words, found=refuse, otherwise=ALLOW)

    case(CLONE, by(0, (ANY_BIT, SPACES)))
    case(UNSHARE, by(0, (ANY_BIT, SPACES | CLONE_NEWTIME)))
    case(MKNOD, by(1, (ANY_BIT, DEVICE_BIT)))
    case(MKNODAT, by(2, (ANY_BIT, DEVICE_BIT)))
    case(IOCTL, by(1, *((EQUAL, request) for request in TERMINAL_INPUT)))
    case(FCNTL, by(1, *((EQUAL, command) for command in LEASES)))
    families: Program = [(EQUAL, 1, 0, family) for family in FAMILIES]
    for number in (SOCKET, SOCKETPAIR):
        case(number, argument(0, families, found=ALLOW, otherwise=ERRNO | errno.EAFNOSUPPORT))
    return [*program, (RETURN, 0, 0, ALLOW)]


def filter_system_calls() -> None:
    """Install the filter; children inherit it."""
    code = b"".join(struct.pack("HBBI", *step) for step in filter_program())
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
    number = SECCOMP[architecture()[0]]
    result = libc.syscall(
        number, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, ctypes.c_char_p(header)
    )
    check(result, "filter system calls (seccomp)")


def keep_capabilities() -> None:
    """Drop all other capabilities, also from the bound of what programs can gain."""
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    check(libc.capget(header, data), "read the capabilities")
    permitted = struct.unpack("6I", data)[1]
    for number in range(NR_CAPABILITIES):
        if number in CAPABILITIES or libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
            continue
        if ctypes.get_errno() == errno.EINVAL:
            break  # the kernel has no more
        check(-1, "drop capabilities")
    # All of CAPABILITIES are in the low word. The machine may be a container that lacks them.
    kept = sum(1 << number for number in CAPABILITIES) & permitted
    check(libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)), "drop capabilities")


def open_users() -> int | None:
    """Return a descriptor of USERS, for the time when its path is out of reach; None: absent."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(USERS, os.O_RDONLY | os.O_CLOEXEC)
    return None


def confine(users: int | None) -> None:
    """Confine this process and its children for good; `users` is of open_users().

    The process has entered or made all other namespaces: it has no right to afterwards.
    """
    if users is not None:
        enter(users, CLONE_NEWUSER, "user")
    keep_capabilities()
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "forbid new privileges")
    filter_system_calls()


def enter(descriptor: int, kind: int, name: str) -> None:
    """Enter a namespace."""
    check(libc.setns(descriptor, kind), f"enter the {name} namespace")


def be_unreadable() -> None:
    """Keep processes of a node away from our memory, descriptors and program until `execve`."""
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def start_time(pid: int) -> int:
    """Return the start of a process in clock ticks since boot: with the pid, its identity."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
        return int(stream.read().rpartition(")")[2].split()[19])


def namespaces(pid: int, begin: int) -> dict[str, int]:
    """Return descriptors of a process's namespaces that are not ours, in the order of entering."""
    found = {}
    for name in NAMESPACES:
        path = f"/proc/{pid}/ns/{name}"
        if not os.path.samestat(os.stat(path), os.stat(f"/proc/self/ns/{name}")):
            found[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if start_time(pid) != begin:
        raise OSError(0, "process 1 of the node has ended")
    return found


def end_as(status: int) -> NoReturn:
    """End as a process ended whose wait status this is."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def stand_for(child: int) -> NoReturn:
    """Stay outside, stop when the child stops, and end as it ends."""
    while True:
        status = os.waitpid(child, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            end_as(status)
        os.kill(os.getpid(), signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)


def environment() -> list[bytes]:
    """Return our variables; os.environ may have one of Python's own (LC_CTYPE)."""
    with open("/proc/self/environ", "rb") as stream:
        return stream.read().split(b"\0")


def variables(words: list[bytes]) -> dict[bytes, bytes]:
    """Return the variables in NAME=VALUE words."""
    split = (word.partition(b"=") for word in words)
    return {name: value for name, equals, value in split if name and equals}


def run(pid: int, begin: int, argv: list[str], env: dict[bytes, bytes]) -> NoReturn:
    """Run a program in a node, confined. Raises OSError if the node cannot be entered."""
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        # For the program: Python handles the first and ignores the last two.
        if number != signal.SIGINT or signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)
    be_unreadable()
    users, spaces = open_users(), namespaces(pid, begin)
    inside = spaces.pop("pid", None)
    if inside is not None:
        enter(inside, CLONE_NEWPID, "pid")
    child = os.fork()
    if child:
        stand_for(child)
    try:
        for name, descriptor in spaces.items():
            enter(descriptor, NAMESPACES[name], name)
        confine(users)
        os.closerange(3, 1 << 20)
        os.execve(argv[0], argv, env)  # noqa: S606 - the user's program
    except OSError as error:
        report(error)
    os._exit(255)


def ask(node: str, command: str) -> NoReturn:
    """Have a command run in a node, and end as it ends. Raises OSError."""
    import socket  # noqa: PLC0415 - slow to load, and other ways in need none

    request = os.memfd_create("request")
    with open(request, "wb", closefd=False) as stream:
        stream.write(b"\0".join([os.fsencode(node), os.fsencode(command), *environment()]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.connect(DOOR)
        try:
            socket.send_fds(door, [STATUS.pack(request)], [0, 1, 2, request])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            # Other processes of the user hold the limit of descriptors in flight: the supervisor
            # fetches them.
            door.send(STATUS.pack(request))
        answer = door.recv(STATUS.size)
    if len(answer) != STATUS.size:
        raise OSError(0, "the supervisor of the job has ended")
    end_as(STATUS.unpack(answer)[0])


def report(error: Exception) -> None:
    """Say why nothing was started."""
    reason = getattr(error, "strerror", None) or str(error)
    os.write(2, f"nearmetal: cannot enter the node: {reason}\n".encode())


def main() -> int:
    """Run one program in a node."""
    try:
        if sys.argv[1] == "door":
            ask(*sys.argv[2:])
        run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:], variables(environment()))
    except OSError as error:
        report(error)
    return 255


if __name__ == "__main__":
    sys.exit(main())
