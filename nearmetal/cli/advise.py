# SPDX-License-Identifier: Apache-2.0
"""`nearmetal advise`: the adapters that meet given needs, and the reasons against the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from nearmetal.advise.needs import Needs
    from nearmetal.advise.rank import Advice, Option
    from nearmetal.advise.tax import Tax
    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View

_OPTIONS = {
    "adapter MODEL": "model of the network card, for example ConnectX-6; a model without facts is refused",
    "vsphere VERSION": "version of vSphere, for example 8.0U2",
    "kernel VERSION": "kernel version of the KVM host",
    "qemu VERSION": "version of QEMU",
    "libvirt VERSION": "version of libvirt",
    "guest_kernel VERSION": "kernel version in the virtual machine, on vSphere",
    "hardware_version N": "hardware version of the virtual machine, on vSphere",
    "vms_per_adapter N": "number of virtual machines that share one adapter (default: 1)",
    "ranks_per_node N": "number of MPI ranks on a node, on vSphere",
    "cores N": "number of cores of a node; needs --reserved-cores",
    "reserved_cores N": "number of these cores that the hypervisor keeps; needs --cores",
}
_SWITCHES = {
    "live_migration": "live migration must work with the adapter",
    "snapshots": "snapshot, suspend and resume must work with the adapter",
    "ha": "restart on another host after a host failure must work with the adapter",
    "drs": "placement by the cluster at power-on must work with the adapter",
}
_FIELDS = ("platform", "fabric", "messages", *(w.split()[0] for w in _OPTIONS), *_SWITCHES)


def advise_options(parser: VerbParser) -> None:
    """Add the arguments of `advise`."""
    from nearmetal.advise.needs import Fabric, Messages, Platform

    parser.option(
        "needs NEEDS",
        "YAML file with needs, see nearmetal-advise(1); options on the command line override it",
        nargs="?",
        type=Path,
    )
    choices = {
        "--platform": (Platform, "platform of the virtual machines (default: any)"),
        "--fabric": (
            Fabric,
            "protocol that the guest needs; rdma accepts ib and roce (default: any)",
        ),
        "--messages": (
            Messages,
            "size of most messages: small is at most 1 KiB, large is at least 64 KiB, mixed is anything else (default: unknown)",
        ),
    }
    for words, (names, text) in choices.items():
        parser.option(words, text, choices=[str(name) for name in names])
    parser.option(
        "--trace FILE",
        "message sizes as a CSV file with the columns size_B and count; replaces --messages",
    )
    for words, text in _OPTIONS.items():
        parser.option(_flag(words), text if "default" in text else f"{text} (default: unknown)")
    for name, text in _SWITCHES.items():
        parser.option(
            _flag(name), f"{text} (default: not needed)", action="store_true", default=None
        )
    parser.option(
        "--measured FILE",
        "measured losses of performance as a CSV file with the columns adapter, workload, tax_low_percent, tax_high_percent and source (default: only published losses)",
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _needs(args: argparse.Namespace) -> Needs:
    """Return the needs of the file, overridden by the command line."""
    from pydantic import ValidationError

    from nearmetal.advise.needs import Needs, load_trace
    from nearmetal.config.explain import load_yaml, reason

    given = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    if args.trace is not None:
        if "messages" in given:
            raise UsageError("--trace and --messages contradict each other", "give one of them")
        given["messages"] = load_trace(args.trace)
    base: dict[str, Any] = {}
    if args.needs is not None:
        base = load_yaml(args.needs, Needs, "a file of needs")[0].model_dump(exclude_unset=True)
    try:
        return Needs.model_validate(base | given)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        why, hint = reason(detail)
        where = "".join(_flag(str(name)) + ": " for name in detail["loc"])
        raise UsageError(where + why, hint) from error


def _percent(low: float, high: float) -> str:
    return f"{low:.1%}" if round(high - low, 4) == 0 else f"{low:.1%} to {high:.1%}"


def _tax_line(tax: Tax, core_loss: float | None) -> str:
    over = {"ib": " over InfiniBand", "roce": " over RoCE"}.get(tax.fabric, "")
    text = f"{tax.workload}{over}: {_percent(tax.low, tax.high)}"
    if core_loss is not None and core_loss != tax.core_loss:
        text += f", {_percent(*tax.with_core_loss(core_loss))} with your reserved cores"
    return f"{text} ({tax.origin}, {tax.source}{'; ' + tax.note if tax.note else ''})"


def _lines(option: Option, place: int, core_loss: float | None) -> list[str]:
    lines = [f"{place}. {option.adapter.title}: {option.why}"]
    lines += [f"     tax    {_tax_line(tax, core_loss)}" for tax in option.taxes]
    if not option.taxes:
        lines.append("     tax    unknown: none against bare metal is measured here or published")
    lines += [f"     micro  {figure.text} ({figure.source})" for figure in option.figures]
    lines += [f"     check  {check}" for check in option.checks]
    lines += [f"     note   {caution}" for caution in option.cautions]
    lines.append(f"     would change this: {option.overturn}")
    return lines


def _as_data(advice: Advice, core_loss: float | None) -> dict[str, Any]:
    return {
        "core_loss": core_loss,
        "options": [
            {
                "adapter": option.adapter.name,
                "platform": option.adapter.platform,
                "why": option.why,
                "taxes": [
                    vars(tax)
                    | {"total": None if core_loss is None else tax.with_core_loss(core_loss)}
                    for tax in option.taxes
                ],
                "figures": [figure.text for figure in option.figures],
                "checks": option.checks,
                "cautions": option.cautions,
                "overturn": option.overturn,
            }
            for option in advice.options
        ],
        "refused": [
            {"adapter": adapter.name, "reasons": [vars(reason) for reason in reasons]}
            for adapter, reasons in advice.refused
        ],
    }


def on_advise(args: argparse.Namespace, view: View) -> int:
    """Print the ranking and the refusals; exit code 4 if no adapter fits."""
    from nearmetal.advise.rank import advise
    from nearmetal.advise.tax import load_measured

    needs = _needs(args)
    measured = () if args.measured is None else load_measured(args.measured)
    advice = advise(needs, measured)
    lines = [
        line
        for place, option in enumerate(advice.options, 1)
        for line in _lines(option, place, needs.core_loss)
    ]
    if not lines:
        lines = ["no adapter meets all of these needs"]
    lines += ["", "not these:"] if advice.refused else []
    for adapter, reasons in advice.refused:
        lines += [
            f"  {adapter.title}: {reason.why} ({reason.source}); unless: {reason.unless}"
            for reason in reasons
        ]
    view.result(_as_data(advice, needs.core_loss), lines)
    return ExitCode.DONE if advice.options else ExitCode.CHECKS_FAILED
