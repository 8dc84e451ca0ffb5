# SPDX-License-Identifier: Apache-2.0
"""A session with a vCenter: verified TLS, one login, a new one when it expires, tasks to their end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import threading
import time
import weakref
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar

from pyVmomi import vim, vmodl

from nearmetal.config.password import find_password
from nearmetal.core.errors import BackendError
from nearmetal.host.vcenter.answers import Stub

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearmetal.host.vcenter.spec import Vcenter

_T = TypeVar("_T")

LOST = (OSError, HTTPException)
"""No answer of the service: a vCenter that starts says 503 before it has one."""

POLL_S = 0.1
TASK_S = 3600.0
"""A task that takes longer never ends."""

ANSWER_S = 300
"""How long a call may take: the simulated one, on a crowded machine, told a thousand machines in over 60 s."""

TEXTS = ("text", "reason", "msg", "faultMessage")
"""Where faults say more than their kind."""

HINTS = {
    "NoPermission": "give the user the right, or log in as another",
    "DuplicateName": "rename the node (vm: NAME), or remove what has the name",
    "InsufficientResourcesFault": "the host or the pool has not so much to reserve",
    "CustomizationPending": "switch the machine on once, so that the last settings reach the guest",
    "NoDiskSpace": "free space on the datastore, or name another",
    "HostConfigFault": "an uplink may not carry the switch's mtu: lower it, or name other nics",
    "FileNotFound": "look at the template's files on its datastore",
}


class _PinnedContext(ssl.SSLContext):
    """Accepts one certificate, on every connection, before anything is sent.

    pyVmomi's own way of pinning looks at the first connection only.
    """

    fingerprint = ""

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Wrap as usual, and compare."""
        wrapped = super().wrap_socket(*args, **options)
        certificate = wrapped.getpeercert(binary_form=True) or b""
        if hashlib.sha256(certificate).hexdigest() != self.fingerprint:
            wrapped.close()
            raise ssl.SSLError(1, "the certificate is not the one of the thumbprint")
        return wrapped


def tls_context(vcenter: Vcenter) -> ssl.SSLContext:
    """Return how the certificate is verified; raises BackendError for an unusable ca_file."""
    if vcenter.thumbprint is not None:
        pinned = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        pinned.check_hostname = False
        pinned.verify_mode = ssl.CERT_NONE
        pinned.fingerprint = vcenter.thumbprint.replace(":", "").lower()
        return pinned
    try:
        return ssl.create_default_context(cafile=vcenter.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BackendError(f"ca_file {vcenter.ca_file}: {error}", "give a file of PEM") from error


def explain(what: str, fault: Exception) -> BackendError:
    """Return a fault of vCenter in words. Of one that holds those of several hosts, the first."""
    if isinstance(fault, vim.fault.DvsOperationBulkFault) and fault.hostFault:
        first = fault.hostFault[0]
        with contextlib.suppress(vmodl.MethodFault, OSError):
            what = f"{what}: {first.host.name}"
        fault = first.fault
    kind = type(fault).__name__.rpartition(".")[2]
    text = next((str(t) for n in TEXTS if (t := getattr(fault, n, None))), "")
    hint = next((h for name, h in HINTS.items() if _is_a(fault, name)), "")
    return BackendError(f"{what}: {kind}{f': {text}' if text else ''}", hint)


def _is_a(fault: Exception, name: str) -> bool:
    return any(base.__name__.rpartition(".")[2] == name for base in type(fault).__mro__)


def _hang_up(content: Any, stub: Any) -> None:
    # A session that is gone already is no error.
    with contextlib.suppress(vmodl.MethodFault, *LOST):
        content.sessionManager.Logout()
    stub.DropConnections()


class Session:
    """Talks to one vCenter. May be used by several threads."""

    def __init__(self, vcenter: Vcenter) -> None:
        """Remember whom to talk to; the first call connects."""
        self.vcenter = vcenter
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

    def call(self, what: str, work: Callable[[], _T]) -> _T:
        """Do something with managed objects; logs in again once when the session has expired."""
        _ = self.content
        number = self._login_nr
        try:
            return work()
        except vim.fault.NotAuthenticated:
            self._login_again(number)
        except vmodl.MethodFault as fault:
            raise explain(what, fault) from fault
        except LOST as error:
            raise self._unreachable(error) from error
        try:
            return work()
        except vmodl.MethodFault as fault:
            raise explain(what, fault) from fault
        except LOST as error:
            raise self._unreachable(error) from error

    def wait(self, what: str, start: Callable[[], Any]) -> Any:
        """Start a task and return its result; raises BackendError when it fails."""
        task = self.call(what, start)
        deadline = time.monotonic() + TASK_S
        while time.monotonic() < deadline:
            info = self.call(what, lambda: task.info)
            if info.state == "success":
                return info.result
            if info.state == "error":
                raise explain(what, info.error)
            time.sleep(POLL_S)
        raise BackendError(f"{what}: vCenter did not end it within {TASK_S:.0f} s")

    def close(self) -> None:
        """Log out and hang up; also done when the session is forgotten, at the latest at exit."""
        self._closing()

    def _unreachable(self, error: Exception) -> BackendError:
        where = f"{self.vcenter.server}:{self.vcenter.port}"
        if isinstance(error, ssl.SSLError):
            hint = "verify the certificate, then write its thumbprint or a ca_file under vcenter"
            return BackendError(f"{where} is not trusted: {error}", hint)
        return BackendError(f"cannot reach {where}: {error}", "look at server and port of vcenter")

    def _connect(self) -> Any:
        stub = Stub(
            host=self.vcenter.server,
            port=self.vcenter.port,
            path="/sdk",
            version="vim.version.v7_0",
            sslContext=tls_context(self.vcenter),
            httpConnectionTimeout=ANSWER_S,
            # What is compressed cannot be made shorter before it is read.
            acceptCompressedResponses=False,
        )
        try:
            content = vim.ServiceInstance("ServiceInstance", stub).RetrieveContent()
            self._login(content)
        except vmodl.MethodFault as fault:
            raise explain("connecting", fault) from fault
        except LOST as error:
            raise self._unreachable(error) from error
        finally:
            if self._login_nr == 0:
                stub.DropConnections()
        self._closing = weakref.finalize(self, _hang_up, content, stub)
        return content

    def _login(self, content: Any) -> None:
        # A wrong password is tried once: accounts are locked after a few.
        if self._refused is not None:
            raise self._refused
        password = find_password(self.vcenter.password, self.vcenter.user, os.environ)
        try:
            content.sessionManager.Login(self.vcenter.user, password)
        except vim.fault.InvalidLogin:
            self._refused = BackendError(
                f"{self.vcenter.server} refuses user {self.vcenter.user} with this password",
                "look at the password where the spec says it is",
            )
            raise self._refused from None
        except vmodl.MethodFault as fault:
            raise explain("logging in", fault) from fault
        self._login_nr += 1

    def _login_again(self, number: int) -> None:
        """Log in unless another thread has done it since."""
        with self._lock:
            if number == self._login_nr:
                try:
                    self._login(self._content)
                except LOST as error:
                    raise self._unreachable(error) from error
