# SPDX-License-Identifier: Apache-2.0
"""One step in a host's shell: the script that carries it out, and what its answer says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearmetal.core.errors import HostError
from nearmetal.host.shell import ENVIRONMENT, quoted
from nearmetal.host.steps import (
    Burn,
    ByHand,
    EnterMaintenance,
    Install,
    LeaveMaintenance,
    SetArguments,
    SetBios,
    SetConfig,
    SetGovernor,
    SetMtu,
    SetOptions,
    SetPassthru,
    SetPower,
    SetProfile,
    SetVfs,
    Wait,
    WriteFile,
)

if TYPE_CHECKING:
    from nearmetal.host.shell import Shell
    from nearmetal.host.steps import Step

STEP_S = 600.0
BEGUN = ".begun"
"""What stands beside a file of ours while it is changed and does not count yet."""

_LOCK = "/run/nearmetal-host.lock"
# A step whose ssh was lost goes on: the next one waits for its end. Not in /run/lock, where anybody
# may make files.
_ALONE = f"""\
exec 9>{_LOCK}
flock -w {STEP_S / 2:.0f} 9 || {{ echo 'an earlier step still runs'; exit 1; }}
"""


def take(shell: Shell, step: Step) -> None:
    """Carry out one step on a Linux host; raises HostError with the host's own words."""
    _take(shell, step, _ALONE)


def take_on_esxi(shell: Shell, step: Step) -> None:
    """As `take`, on ESXi. We take no lock there, and write no file."""
    _take(shell, step, "")


def _take(shell: Shell, step: Step, alone: str) -> None:
    text = "set -e\n" + ENVIRONMENT + alone + _script(step)
    answer = shell.script(f"{{ {text}}} 2>&1\n", timeout_s=STEP_S)
    if answer.code:
        why = " ".join(answer.text.split())[-300:] or f"exit code {answer.code}"
        raise HostError(f"{step.text}: {why}", "nothing after this step was begun on this host")


def _script(step: Step) -> str:
    match step.action:
        case SetConfig(device=device, setting=setting, value=value):
            return _either(
                ("mlxconfig", "mstconfig"), ["-d", device, "-y", "set", f"{setting}={value}"]
            )
        case Burn() as burn:
            return _burn(burn)
        case WriteFile(path=path, content=content, refresh=refresh):
            return _write(path, content, quoted(refresh))
        case SetArguments(arguments=arguments, removed=removed):
            changes = (("--remove-args", removed), ("--args", arguments))
            return "".join(
                quoted(["grubby", "--update-kernel=ALL", f"{option}={' '.join(words)}"]) + "\n"
                for option, words in changes
                if words
            )
        case SetVfs(address=address, count=count, before=before):
            file = f"/sys/bus/pci/devices/{address}/sriov_numvfs"
            clear = f"echo 0 >{file}\n" if before and count else ""
            return f'{clear}echo {count} >{file}\n[ "$(cat {file})" = {count} ]\n'
        case SetMtu() as change:
            return _mtu(change)
        case SetGovernor(governor=governor):
            return (
                "for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do\n"
                f'echo {quoted([governor])} >"$f"\ndone\n'
            )
        case SetProfile(profile=profile):
            words = ["profile", *profile.split()] if profile else ["off"]
            return quoted(["tuned-adm", *words]) + "\n"
        case (
            SetBios()
            | Install()
            | SetOptions()
            | SetPower()
            | SetPassthru()
            | EnterMaintenance()
            | LeaveMaintenance()
            | ByHand()
            | Wait()
        ):
            raise HostError(f"{step.text}: this is no step of a shell")


def _burn(burn: Burn) -> str:
    """Burn an image, unless the flash holds it: one whose ssh was lost goes on, and is done now."""
    tools = ("flint", "mstflint")
    parts = r"\.".join(f"0*{int(part)}" for part in burn.version.split("."))
    return (
        f"stored=$({_either(tools, ['-d', burn.device, 'query'])}) || true\n"
        f"if ! echo \"$stored\" | grep -x 'FW Version: *{parts} *' >/dev/null; then\n"
        f"echo {quoted([f'{burn.sha256}  {burn.file}'])} | sha256sum -c -\n"
        f"{_either(tools, ['-d', burn.device, '-i', burn.file, '-y', 'burn'])}fi\n"
    )


def _mtu(change: SetMtu) -> str:
    devices = "/sys/bus/pci/devices"
    own = f"{devices}/{change.address}"
    places = {f"{own}/net/* {own}/virtfn*/net/*": change.mtu}
    places |= {f"{devices}/{vf}/net/*": mtu for vf, mtu in change.vfs.items()}
    return (
        "".join(
            f'for n in {place}; do\n[ -e "$n/mtu" ] || continue\necho {mtu} >"$n/mtu"\ndone\n'
            for place, mtu in places.items()
        )
        + f'[ "$(cat {own}/net/*/mtu | sort -u)" = {change.mtu} ]\n'
    )


def _either(tools: tuple[str, str], arguments: list[str]) -> str:
    first, second = tools
    tail = quoted(arguments)
    return f"if command -v {first} >/dev/null; then {first} {tail}; else {second} {tail}; fi\n"


def _write(path: str, content: str | None, refresh: str) -> str:
    """Replace a file in one go, so that no reader and no crash sees half of it, and make it count.

    A host that dies in between has the file without its effect. The mark beside it tells.
    """
    name, mark = quoted([path]), quoted([path + BEGUN])
    folder = quoted([path.rpartition("/")[0]])
    change = (
        f"rm -f {name}\n"
        if content is None
        else f"new=$(mktemp {quoted([path + '.XXXXXX'])})\n"
        f'printf %s {quoted([content])} >"$new"\nchmod 644 "$new"\nsync "$new"\nmv "$new" {name}\n'
    )
    return f": >{mark}\nsync {folder}\n{change}{refresh}\nsync -f {folder}\nrm {mark}\n"
