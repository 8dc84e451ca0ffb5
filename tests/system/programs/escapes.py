# SPDX-License-Identifier: Apache-2.0
"""What a hostile program in a node tries, each in a process of its own.

    escapes.py DIRECTORY

DIRECTORY is a writable directory of the machine. Prints one JSON object: the name of each attempt
and "refused", or how it ended. No attempt does harm where it succeeds: what is written is what was
there, and what would break the machine has arguments that the kernel refuses after permissions.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)

ON_X86 = platform.machine() == "x86_64"
DIRECTORY = Path(sys.argv[1] if len(sys.argv) > 1 else "/var/tmp")
SCRATCH = Path("/tmp/escape")
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 0x20, 0x1000
REFUSALS = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EAFNOSUPPORT)

Attempt = Callable[[], object]
ATTEMPTS: dict[str, Attempt] = {}


def attempt(name: str) -> Callable[[Attempt], Attempt]:
    def add(function: Attempt) -> Attempt:
        ATTEMPTS[name] = function
        return function

    return add


def check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def call(x86: int, other: int, *args: object) -> int:
    return check(libc.syscall(x86 if ON_X86 else other, *args))


def mount(source: str, target: Path, kind: str, flags: int = 0, data: str = "") -> None:
    words = [text.encode() for text in (source, str(target), kind, data)]
    check(libc.mount(*words[:3], ctypes.c_ulong(flags), words[3] or None))


def rewrite(path: str) -> None:
    """Write back what a file has."""
    with Path(path).open("rb+", buffering=0) as file:
        file.write(file.read())


@attempt("remount / read-write")
def remount() -> None:
    mount("none", Path("/"), "none", MS_REMOUNT | MS_BIND)


@attempt("create a file of the machine")
def create_file() -> None:
    libc.mount(b"none", b"/", b"none", ctypes.c_ulong(MS_REMOUNT | MS_BIND), None)
    (DIRECTORY / "made-in-a-node").write_text("by a node")


@attempt("mount a tmpfs")
def mount_tmpfs() -> None:
    mount("tmpfs", SCRATCH, "tmpfs")


@attempt("mount by the new calls")
def mount_new() -> None:
    call(430, 430, b"tmpfs", 0)


@attempt("mount the memory control group")
def mount_cgroup() -> None:
    if libc.mount(b"cgroup", bytes(SCRATCH), b"cgroup", 0, b"memory") < 0:
        mount("cgroup2", SCRATCH, "cgroup2")


@attempt("see the machine's control groups")
def see_cgroup() -> None:
    if not list(Path("/sys/fs/cgroup").iterdir()):
        raise PermissionError(errno.ENOENT, "hidden")


PATHS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/vm/overcommit_ratio",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
    "/run/nearmetal-cluster/agent",
    "/etc/hosts",
)
ATTEMPTS |= {f"write {path}": partial(rewrite, path) for path in PATHS}


@attempt("open /proc/sysrq-trigger")
def sysrq() -> None:
    # A write to /dev/null, which may lie there, triggers nothing.
    if os.fstat(os.open("/proc/sysrq-trigger", os.O_WRONLY)).st_rdev:
        raise PermissionError(errno.EACCES, "covered")


@attempt("read what is root's in /proc")
def read_kernel() -> None:
    if not Path("/proc/slabinfo").read_bytes():
        raise PermissionError(errno.EACCES, "empty")


@attempt("find a device of the machine")
def find_device() -> None:
    wanted = {"null", "zero", "full", "random", "urandom", "tty", "infiniband"}
    wanted |= {"fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"}
    if {path.name for path in Path("/dev").iterdir()} <= wanted:
        raise PermissionError(errno.ENOENT, "no other device")


@attempt("make a device")
def make_device() -> None:
    os.mknod(SCRATCH / "disk", 0o060600, os.makedev(254, 0))


@attempt("change the mode of /dev/null")
def change_null() -> None:
    path = Path("/dev/null")
    path.chmod(path.stat().st_mode & 0o7777)


@attempt("open a file by its handle")
def by_handle() -> None:
    handle = ctypes.create_string_buffer(b"\x80\0\0\0" + bytes(200))
    number = ctypes.c_int()
    call(303, 264, -100, b"/", handle, ctypes.byref(number), 0)
    root = os.open("/", os.O_RDONLY)
    os.close(call(304, 265, root, handle, os.O_RDONLY))


@attempt("make a user namespace")
def make_user_namespace() -> None:
    check(libc.unshare(CLONE_NEWUSER))


@attempt("make a mount namespace")
def make_mount_namespace() -> None:
    check(libc.unshare(CLONE_NEWNS))


@attempt("make a user namespace with clone")
def clone_user_namespace() -> None:
    if call(56, 220, CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


@attempt("make a user namespace with clone3")
def clone3_user_namespace() -> None:
    words = (ctypes.c_uint64 * 11)(CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD)
    try:
        if call(435, 435, ctypes.byref(words), 88) == 0:
            os._exit(0)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise PermissionError(errno.EPERM, "no such call") from error
        raise


@attempt("enter a namespace")
def enter_namespace() -> None:
    here = os.open("/proc/1/ns/net", os.O_RDONLY)
    check(libc.setns(here, CLONE_NEWNET))


@attempt("open the program of process 1")
def program_of_process_1() -> None:
    os.open("/proc/1/exe", os.O_RDONLY)


@attempt("trace process 1")
def trace_process_1() -> None:
    call(101, 117, 0x4206, 1, 0, 0)  # PTRACE_SEIZE


@attempt("load a module")
def load_module() -> None:
    call(175, 105, None, 0, b"")


@attempt("load a kernel")
def load_kernel() -> None:
    call(246, 104, 0, 0, None, 0xFFFF)


@attempt("restart the machine")
def restart() -> None:
    call(169, 142, 0, 0, 0, None)


@attempt("load a BPF program")
def load_bpf() -> None:
    call(321, 280, 5, ctypes.create_string_buffer(120), 120)


@attempt("watch the processor's counters")
def perf_event() -> None:
    words = (ctypes.c_uint32 * 32)(1, 128)
    call(298, 241, ctypes.byref(words), 0, -1, -1, 0)


@attempt("use a key ring")
def key_ring() -> None:
    call(250, 219, 0, -3, 1)


@attempt("set the clock")
def set_clock() -> None:
    words = (ctypes.c_long * 2)(-1, -1)
    call(227, 112, 0, ctypes.byref(words))


@attempt("set the host name")
def set_host_name() -> None:
    socket.sethostname(socket.gethostname())


@attempt("swap to a file")
def swap() -> None:
    call(167, 224, b"/dev/null", 0)


@attempt("make an io_uring")
def make_uring() -> None:
    call(425, 425, 1, ctypes.create_string_buffer(120))


@attempt("send raw packets")
def raw_packets() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


@attempt("hold up every process that opens a file of the machine")
def take_lease() -> None:
    fcntl.fcntl(os.open(__file__, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)


@attempt("make a pair of sockets of another family")
def pair_of_sockets() -> None:
    socket.socketpair(socket.AF_VSOCK, socket.SOCK_STREAM)


@attempt("change the network")
def change_network() -> None:
    request = b"lo".ljust(16, b"\0") + bytes(24)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = fcntl.ioctl(control, 0x8913, request)
        fcntl.ioctl(control, 0x8914, flags)


@attempt("type into the terminal")
def type_into_terminal() -> None:
    _, terminal = os.openpty()
    os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)
    fcntl.ioctl(terminal, 0x5412, b"x")


@attempt("gain a capability by a program")
def set_uid_program() -> None:
    text = Path("/proc/self/status").read_text()
    bound = int(text.split("CapBnd:")[1].split()[0], 16)
    if "NoNewPrivs:\t1" in text and bound & ~4 == 0:
        raise PermissionError(errno.EPERM, "bound")


def machine_code(code: bytes) -> int:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


if ON_X86:

    @attempt("call the kernel as a 32-bit program")
    def as_32_bit() -> None:
        machine_code(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov $20 (getpid), %eax; int $0x80; ret

    @attempt("call the kernel in the x32 ABI")
    def as_x32() -> None:
        call(0x40000000 | 165, 0, b"tmpfs", bytes(SCRATCH), b"tmpfs", 0, None)


# The last one: without /proc others could not be tried.
@attempt("unmount /proc/sys")
def unmount() -> None:
    libc.umount2(b"/proc/sys", 2)
    check(libc.umount2(b"/proc", 2))


def outcome(function: Attempt) -> str:
    """Run it in a child, whose last word says how it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function()
            words = "done"
        except OSError as error:
            words = "refused" if error.errno in REFUSALS else str(error)
        os.write(write, words.encode())
        os._exit(0)
    os.close(write)
    words = os.read(read, 4096).decode()
    os.close(read)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "refused" if os.WTERMSIG(status) == signal.SIGSYS else f"signal {status}"
    return words


if __name__ == "__main__":
    if "Seccomp:\t2\n" not in Path("/proc/self/status").read_text():
        sys.exit("run this in a node only: without the walls it takes /proc from the machine")
    SCRATCH.mkdir(exist_ok=True)
    outcomes = {name: outcome(function) for name, function in ATTEMPTS.items()}
    sys.stdout.write(json.dumps(outcomes) + "\n")
