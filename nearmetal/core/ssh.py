# SPDX-License-Identifier: Apache-2.0
"""Argument vectors of ssh(1). Pure: the caller starts the command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

NO_CONNECTION = 255
"""Exit code of ssh itself; every other code comes from the remote command."""

NO_CONFIG = "/dev/null"
"""As `config`: read neither the user's configuration nor the system's."""


def own_keys(identity: Path | str, known_hosts: Path | str) -> dict[str, str]:
    """Return the options that allow one key and only the host keys in `known_hosts`."""
    return {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "IdentityFile": str(identity),
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "LogLevel": "ERROR",
    }


def patient(seconds: float) -> dict[str, str]:
    """Return the options that end a connection after five thirds of a time without an answer."""
    return {"ServerAliveInterval": str(ceil(seconds / 3)), "ServerAliveCountMax": "4"}


@dataclass(frozen=True)
class Login:
    """A login on a host. Empty fields are left to the configuration of ssh.

    `options` are those of ssh_config(5), for example {"BatchMode": "yes"}.
    """

    host: str
    user: str = ""
    port: int | None = None
    config: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def argv(self, command: str = "") -> tuple[str, ...]:
        """Return the words that run a command of sh(1) there; "" opens the login shell."""
        return (*_words(self), "--", self.host, *((command,) if command else ()))

    def control(self, request: str) -> tuple[str, ...]:
        """Return the words that ask the kept connection, for example for `exit`."""
        return (*_words(self), "-O", request, "--", self.host)

    def through(self, jump: Login) -> Login:
        """Return this login by way of another host, which forwards the connection."""
        proxy = shlex.join((*_words(jump), "-W", "[%h]:%p", "--", jump.host))
        return replace(self, options={**self.options, "ProxyCommand": proxy})

    def kept(self, socket: Path | str, seconds: int) -> Login:
        """Return this login over a connection that stays open for later commands."""
        keep = {"ControlMaster": "auto", "ControlPath": str(socket), "ControlPersist": str(seconds)}
        return replace(self, options={**self.options, **keep})


def _words(login: Login) -> tuple[str, ...]:
    return (
        "ssh",
        *(("-F", login.config) if login.config else ()),
        *(word for name, value in login.options.items() for word in ("-o", f"{name}={value}")),
        *(("-p", str(login.port)) if login.port is not None else ()),
        *(("-l", login.user) if login.user else ()),
    )


def ssh_config(host: str, options: Mapping[str, str]) -> str:
    """Return a section of a client configuration, for a pattern of hosts."""
    return "\n".join([f"Host {host}", *(f"  {key} {value}" for key, value in options.items())])
