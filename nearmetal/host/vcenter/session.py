# SPDX-License-Identifier: Apache-2.0
"""A session with a vCenter: verified TLS, login, calls, tasks, and properties of many objects."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from typing import Any, TypeVar

from pyVmomi import SoapStubAdapter, vim, vmodl

from nearmetal.config.password import find_password
from nearmetal.core.errors import BackendError, Interrupted
from nearmetal.host.vcenter.spec import Vcenter

_T = TypeVar("_T")

Properties = dict[str, Any]

LOST = (OSError, HTTPException)
"""No answer of the service: a vCenter that starts sends 503 first."""

POLL_S, MAX_POLL_S = 0.02, 1.0
"""First and longest time between two looks at a task: short tasks are many, long ones need few."""

STALL_S = 1200.0
"""How long vCenter may report no progress of a task: a large clone as a whole may take hours."""

UNDER_WAY = frozenset({"queued", "running"})
"""States of a task that has not ended."""

ANSWER_S = 300
"""Limit of a call: the simulated vCenter took over 60 s for a thousand machines on a busy host."""

TEXTS = ("text", "reason", "msg", "faultMessage")
"""Attributes of faults with details."""

HINTS = {
    "NoPermission": "give the user the right, or log in as another user",
    "DuplicateName": "rename the node (vm: NAME), or remove the object of this name",
    "InsufficientResourcesFault": "reserve less: the host or the pool does not have enough",
    "CustomizationPending": "power the machine on once, so that the guest gets the last settings",
    "NoDiskSpace": "free space on the datastore, or use another datastore",
    "HostConfigFault": "an uplink may not carry the switch's mtu: lower it, or use other nics",
    "FileNotFound": "check the template's files on its datastore",
}

# Devices are most of the data of a machine, and most of them are its chassis, which no spec
# describes. A property path cannot select the others, and pyVmomi spends nearly all the time of a
# plan to build objects of them. So the chassis is cut from the text first. An answer of another
# form is left whole.
_CHASSIS = (
    rb"VirtualIDEController|VirtualPS2Controller|VirtualPCIController|VirtualSIOController"
    rb"|VirtualKeyboard|VirtualPointingDevice|VirtualMachineVideoCard|VirtualMachineVMCIDevice"
    rb"|ParaVirtualSCSIController|VirtualLsiLogicController|VirtualLsiLogicSASController"
    rb"|VirtualBusLogicController|VirtualAHCIController|VirtualNVMEController"
    rb"|VirtualDisk|VirtualCdrom|VirtualFloppy"
)
_DEVICE = re.compile(
    rb'<VirtualDevice [^<>]*?type="(?:\w+:)?(?:'
    + _CHASSIS
    + rb')"[^<>]*(?<!/)>.*?</VirtualDevice>',
    re.DOTALL,
)
"""One element of a list of devices: it has this name only there, and is never nested."""


def without_chassis(answer: bytes) -> bytes:
    """Return an answer without the controllers, disks and consoles in its lists of devices."""
    return _DEVICE.sub(b"", answer)


class _DevicesAnswer(HTTPResponse):
    _rest: BytesIO | None = None

    def read(self, amt: int | None = None) -> bytes:
        if self._rest is None:
            self._rest = BytesIO(without_chassis(super().read()))
        return self._rest.read(amt)


class _Stub(SoapStubAdapter):  # type: ignore[misc]
    """pyVmomi's end of a connection, without the chassis in lists of devices.

    The `config` of one machine has all of its devices.
    """

    def GetConnection(self) -> Any:  # noqa: N802 - pyVmomi's name
        connection = super().GetConnection()
        connection.response_class = _DevicesAnswer
        return connection


class _PinnedContext(ssl.SSLContext):
    """Accepts one certificate, on every connection, before the first byte is sent.

    pyVmomi's own pinning checks the first connection only.
    """

    fingerprint = ""

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Wrap as usual, and compare."""
        wrapped = super().wrap_socket(*args, **options)
        certificate = wrapped.getpeercert(binary_form=True) or b""
        if hashlib.sha256(certificate).hexdigest() != self.fingerprint:
            wrapped.close()
            raise ssl.SSLCertVerificationError(1, "the certificate does not have the thumbprint")
        return wrapped


def tls_context(vcenter: Vcenter) -> ssl.SSLContext:
    """Return the context that verifies the certificate; raises BackendError for a bad ca_file."""
    if vcenter.thumbprint is not None:
        pinned = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        pinned.check_hostname = False
        pinned.verify_mode = ssl.CERT_NONE
        pinned.fingerprint = vcenter.thumbprint.replace(":", "").lower()
        return pinned
    try:
        return ssl.create_default_context(cafile=vcenter.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BackendError(f"ca_file {vcenter.ca_file}: {error}", "use a file of PEM") from error


def explain(what: str, fault: Exception) -> BackendError:
    """Return a fault of vCenter in words. Of a fault of several hosts, the first."""
    if isinstance(fault, vim.fault.DvsOperationBulkFault) and fault.hostFault:
        first = fault.hostFault[0]
        with contextlib.suppress(vmodl.MethodFault, OSError):
            what = f"{what}: {first.host.name}"
        fault = first.fault
    names = [base.__name__.rpartition(".")[2] for base in type(fault).__mro__]
    text = next((f": {t}" for n in TEXTS if (t := getattr(fault, n, None))), "")
    hint = next((hint for name, hint in HINTS.items() if name in names), "")
    return BackendError(f"{what}: {names[0]}{text}", hint)


class TaskLeftError(BackendError):
    """A task is not waited for any more, and continues in vCenter."""


def _hang_up(content: Any, stub: Any) -> None:
    # An expired session is not an error.
    with contextlib.suppress(vmodl.MethodFault, *LOST):
        content.sessionManager.Logout()
    stub.DropConnections()


class Session:
    """Connection to one vCenter, made by the first call. Several threads may use it."""

    def __init__(self, vcenter: Vcenter, stall_s: float = STALL_S) -> None:
        self.vcenter = vcenter
        self._stall_s = stall_s
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._content: Any = None
        self._closing: Callable[[], object] = lambda: None
        self._login_nr = 0
        self._refused: BackendError | None = None

    @property
    def content(self) -> Any:
        """The service's content, logged in."""
        with self._lock:
            if self._content is None:
                self._content = self._connect()
            return self._content

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        """Turn faults and lost connections into BackendError."""
        try:
            yield
        except vmodl.MethodFault as fault:
            raise explain(what, fault) from fault
        except LOST as error:
            where = f"{self.vcenter.server}:{self.vcenter.port}"
            if isinstance(error, ssl.SSLCertVerificationError):
                hint = "verify the certificate, then add its thumbprint or a ca_file to vcenter"
                raise BackendError(f"{where} is not trusted: {error}", hint) from error
            if self._content is None:
                hint = "check server and port of vcenter"
                raise BackendError(f"cannot reach {where}: {error}", hint) from error
            msg = (
                f"{what}: the connection to {where} was lost: {str(error) or type(error).__name__}"
            )
            hint = "vCenter continues the tasks that it has; repeat the command when it answers"
            raise BackendError(msg, hint) from error

    def call(self, what: str, work: Callable[[], _T]) -> _T:
        """Do something with managed objects; logs in again once when the session has expired."""
        _ = self.content
        number = self._login_nr
        with self._explaining(what):
            try:
                return work()
            except vim.fault.NotAuthenticated:
                with self._lock:
                    # Another thread may have logged in since.
                    if number == self._login_nr:
                        self._login(self._content)
            return work()

    def wait(self, what: str, start: Callable[[], Any]) -> Any:
        """Start a task and return its result.

        Raises BackendError when it fails or stalls, and TaskLeftError after `leave`.
        """
        if self._leaving.is_set():
            raise BackendError(f"{what}: not begun")
        task = self.call(what, start)
        seen, since, pause = None, time.monotonic(), POLL_S
        try:
            while True:
                info = self.call(what, lambda: task.info)
                if info.state == "success":
                    return info.result
                if info.state == "error":
                    raise explain(what, info.error)
                if seen != (info.state, info.progress):
                    seen, since = (info.state, info.progress), time.monotonic()
                elif time.monotonic() - since > self._stall_s:
                    raise self._stalled(what, info)
                if self._leaving.wait(pause):
                    raise TaskLeftError(f"{what} continues in vCenter")
                pause = min(1.5 * pause, MAX_POLL_S)
        except Interrupted as error:
            error.hint = f"{what} continues in vCenter"
            raise

    def _stalled(self, what: str, info: Any) -> BackendError:
        msg = f"{what}: vCenter reported no progress for {self._stall_s:g} s ({info.state}"
        msg += f", {info.progress} %)" if info.progress else ")"
        return TaskLeftError(
            msg, "the task continues: look at it in vCenter, then repeat the command"
        )

    def pause(self, seconds: float) -> None:
        """Wait between two looks; raises BackendError after `leave`."""
        if self._leaving.wait(seconds):
            raise BackendError("interrupted")

    def leave(self) -> None:
        """Make all threads wait for no task any more, and begin none."""
        self._leaving.set()

    def close(self) -> None:
        """Log out and hang up; also happens when the session is collected, or at exit."""
        self._closing()

    def _connect(self) -> Any:
        stub = _Stub(
            host=self.vcenter.server,
            port=self.vcenter.port,
            path="/sdk",
            version="vim.version.v7_0",
            sslContext=tls_context(self.vcenter),
            httpConnectionTimeout=ANSWER_S,
            # A compressed answer cannot be cut before it is read.
            acceptCompressedResponses=False,
        )
        try:
            with self._explaining("connecting"):
                content = vim.ServiceInstance("ServiceInstance", stub).RetrieveContent()
                self._login(content)
        finally:
            if self._login_nr == 0:
                stub.DropConnections()
        self._closing = weakref.finalize(self, _hang_up, content, stub)
        return content

    def _login(self, content: Any) -> None:
        # A wrong password is tried once: a few failed logins lock an account.
        if self._refused is not None:
            raise self._refused
        password = find_password(self.vcenter.password, self.vcenter.user, os.environ)
        try:
            content.sessionManager.Login(self.vcenter.user, password)
        except vim.fault.InvalidLogin:
            self._refused = BackendError(
                f"{self.vcenter.server} refuses user {self.vcenter.user} with this password",
                "check the password at the place that vcenter.password names",
            )
            raise self._refused from None
        except vmodl.MethodFault as fault:
            raise explain("logging in", fault) from fault
        self._login_nr += 1


def fetch(content: Any, root: Any, kind: Any, names: Sequence[str]) -> dict[Any, Properties]:
    """Return properties of all objects of a kind below a folder or container, in a few calls."""
    collector = vmodl.query.PropertyCollector
    view = content.viewManager.CreateContainerView(container=root, type=[kind], recursive=True)
    try:
        walk = collector.TraversalSpec(
            name="view", path="view", skip=False, type=vim.view.ContainerView
        )
        start = collector.ObjectSpec(obj=view, skip=True, selectSet=[walk])
        return _collect(content, [start], kind, names)
    finally:
        view.Destroy()


def fetch_of(
    content: Any, kind: Any, refs: Sequence[Any], names: Sequence[str]
) -> dict[Any, Properties]:
    """Return properties of these objects, in a few calls."""
    specs = [vmodl.query.PropertyCollector.ObjectSpec(obj=ref) for ref in refs]
    return _collect(content, specs, kind, names) if specs else {}


def _collect(
    content: Any, objects: list[Any], kind: Any, names: Sequence[str]
) -> dict[Any, Properties]:
    collector, service = vmodl.query.PropertyCollector, content.propertyCollector
    paths = collector.PropertySpec(type=kind, pathSet=list(names), all=False)
    spec = collector.FilterSpec(objectSet=objects, propSet=[paths])
    found: dict[Any, Properties] = {}
    page = service.RetrievePropertiesEx([spec], collector.RetrieveOptions(maxObjects=100))
    while page is not None:
        for item in page.objects:
            for missing in item.missingSet or []:
                if isinstance(missing.fault, vim.fault.NotAuthenticated):
                    raise missing.fault  # the session has expired: `call` logs in again
            found[item.obj] = {prop.name: prop.val for prop in item.propSet}
        page = service.ContinueRetrievePropertiesEx(page.token) if page.token else None
    return found
