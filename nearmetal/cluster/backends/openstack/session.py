# SPDX-License-Identifier: Apache-2.0
"""The session with a cloud: openstacksdk reads clouds.yaml, and its values stay there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import openstack
import yaml
from keystoneauth1 import exceptions as auth_faults
from openstack import exceptions as faults

from nearmetal.core.errors import BackendError
from nearmetal.core.log import masked
from nearmetal.core.text import printable

for _library in ("keystoneauth", "openstack", "stevedore", "urllib3"):
    # Without a handler, Python would write their warnings, with addresses, to standard error.
    logging.getLogger(_library).addHandler(logging.NullHandler())

ANSWER_S = 120.0
"""Seconds that a service has for one answer."""

_MAX_REASON = 500
"""Characters of a reason that a service gives."""

_FORBIDDEN, _CONFLICT, _TOO_LARGE, _MEDIA = 403, 409, 413, 415

_BUSY = (429, 500, 502, 503, 504)

_LATER = "if the service is only busy, repeat the command: it continues"

_PLACES = (
    "openstacksdk reads clouds.yaml in this directory, ~/.config/openstack or /etc/openstack; "
    "OS_CLIENT_CONFIG_FILE names another file"
)


class GoneError(BackendError):
    """The object of a request does not exist."""


class DeniedError(BackendError):
    """The user lacks the right to a request."""


class BusyError(BackendError):
    """A service did not answer, or has too much to do: the same request may succeed later."""


class CloudSession:
    """Requests to the services of one cloud, as one project."""

    def __init__(self, cloud: str) -> None:
        self.cloud = cloud

    @cached_property
    def sdk(self) -> Any:
        """The connection of openstacksdk, after the first log-in."""
        with self.asking("logging in"):
            made = self._connected()
            # Its authorize() hides why Keystone refuses.
            made.session.get_token()
            return made

    def _connected(self) -> Any:
        """Return a connection; the fault of a file that openstacksdk cannot read has none of its text."""
        try:
            return openstack.connect(cloud=self.cloud, app_name="nearmetal", api_timeout=ANSWER_S)
        except yaml.YAMLError:
            # Some releases of openstacksdk do not catch it, and it has words of the file.
            what = "is not YAML"
        except (AttributeError, KeyError, TypeError, ValueError):
            what = f"has no valid entry for `{self.cloud}`"
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        raise BackendError(f"cloud {self.cloud}: clouds.yaml {what}", _PLACES)

    @property
    def project(self) -> str:
        """The ID of the project that owns all objects of a cluster."""
        with self.asking("reading the project"):
            found = self.sdk.current_project_id
        if not found:
            hint = f"add project_name or project_id to `{self.cloud}` in clouds.yaml"
            raise BackendError(f"cloud {self.cloud}: the credentials are for no project", hint)
        return str(found)

    @property
    def home(self) -> str:
        """The project and the region, which the same name of a cloud may change."""
        region = self.sdk.config.region_name
        return printable(f"project {self.project}" + (f", region {region}" if region else ""))

    @property
    def by_application(self) -> bool:
        """Whether the log-in is an application credential, which has fewer rights than its user."""
        names = self.sdk.config.get_auth_args()
        return any(name.startswith("application_credential") for name in names)

    @cached_property
    def roles(self) -> frozenset[str]:
        """The names of the roles that the log-in has in its project; none if it does not say them."""
        with suppress(BackendError), self.asking("reading the roles"):
            session = self.sdk.session
            return frozenset(map(str, session.auth.get_access(session).role_names))
        return frozenset()

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Turn each failure of a request into a BackendError that says `what`."""
        where = f"cloud {self.cloud}: {what}"
        try:
            yield
        except faults.ConfigException as error:
            raise BackendError(
                f"{where}: clouds.yaml: {_reason(error)}",
                _PLACES,
            ) from error
        except auth_faults.Unauthorized as error:
            raise BackendError(
                f"{where}: Keystone refuses the credentials",
                f"correct `{self.cloud}` in clouds.yaml",
            ) from error
        except faults.NotFoundException as error:
            raise GoneError(f"{where}: {_reason(error)}", "run `nearmetal up` again") from error
        except faults.HttpException as error:
            text = f"{where}: {_reason(error)}"
            if error.status_code in _BUSY:
                raise BusyError(text, _LATER) from error
            kind = DeniedError if error.status_code == _FORBIDDEN else BackendError
            raise kind(text, _hint(error)) from error
        except (auth_faults.ConnectionError, auth_faults.HttpServerError) as error:
            raise BusyError(f"{where}: {_reason(error)}", _LATER) from error
        except (auth_faults.ClientException, faults.SDKException) as error:
            raise BackendError(f"{where}: {_reason(error)}", _LATER) from error
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise strange(where) from error


def accepted(response: Any) -> Any:
    """Return an answer of a service; raises the error of openstacksdk if it is a refusal."""
    faults.raise_from_response(response)
    return response


def strange(what: str) -> BackendError:
    """Return the error of an answer that has another form than those of OpenStack."""
    hint = "is the address of the service right, and no proxy between?"
    return BackendError(f"{what}: the answer is not one of OpenStack", hint)


def reason_line(reason: object) -> str:
    """Return the reason that a service gave, bounded and in one line."""
    return printable(masked(" ".join(str(reason).split())))[:_MAX_REASON]


def _reason(error: Exception) -> str:
    detail = getattr(error, "details", None) or getattr(error, "message", None) or str(error)
    return reason_line(detail)


def _hint(error: faults.HttpException) -> str:
    code = error.status_code
    if "quota" in _reason(error).lower() or code == _TOO_LARGE:
        return "remove what is not needed, or ask for a larger quota"
    if code == _FORBIDDEN:
        return (
            "the user of clouds.yaml lacks the right; `physical` and `vlan` need an administrator"
        )
    if code == _CONFLICT and "no more ip addresses" in _reason(error).lower():
        return "the network has no free address: remove unused ones, or use another network"
    if code == _CONFLICT:
        return "something that is not of this cluster uses it; remove that, and repeat the command"
    if code == _MEDIA:
        return "Glance refuses the content: use a disk with a table of partitions, qcow2 or raw"
    return ""
