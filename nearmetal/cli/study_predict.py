# SPDX-License-Identifier: Apache-2.0
"""The verb study predict: the expected tax of an application from its MPI profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearmetal.cli.arguments import ARM_HELP, add_study
from nearmetal.core.errors import ExitCode, NearmetalError, UsageError

if TYPE_CHECKING:
    import argparse

    from nearmetal.cli.verbs import VerbParser
    from nearmetal.cli.view import View
    from nearmetal.evidence.profiles import Profile
    from nearmetal.study.predict import GroupTax, Prediction, TaxLimits

_PERCENT = 100.0


def predict_options(parser: VerbParser) -> None:
    """Add the arguments of `study predict`."""
    parser.option(
        "profile PROFILE",
        "MPI profile of a run in the arm BASE: report of mpiP, XML file or banner of IPM, output of `scorep-score -r`, or directory of the files NAME.RANK.prof of Open MPI's monitoring",
        type=Path,
    )
    add_study(parser)
    parser.option("base BASE", f"name of the arm of the profile; {ARM_HELP}")
    parser.option("arm ARM", "name of the arm whose tax is predicted")
    parser.option(
        "--seconds SECONDS",
        "run time in BASE; needed if the profile has none, as that of Open MPI's monitoring",
        type=float,
    )
    parser.option("--ranks N", "number of ranks; needed if the profile has none")
    parser.option(
        "--most-unmapped PERCENT",
        "share of the time in MPI that may have no benchmark in STUDY; with more, nothing is predicted (default: 10)",
        type=float,
    )


def on_predict(args: argparse.Namespace, view: View) -> int:
    """Print the expected tax; exit code 4 if it is not predictable."""
    from nearmetal.study.arms import compare_arms, pick_arms
    from nearmetal.study.curves import curves_of
    from nearmetal.study.predict import MOST_UNMAPPED, predict
    from nearmetal.study.store import Study

    for name, value in (("--seconds", args.seconds), ("--ranks", args.ranks)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} {value}", "use a number above 0")
    most = MOST_UNMAPPED if args.most_unmapped is None else args.most_unmapped
    if not 0 <= most <= _PERCENT:
        raise UsageError(f"--most-unmapped {most}", "use a percentage from 0 to 100")
    profile = load_profile(args.profile)
    study = Study(args.study)
    found = compare_arms(study, *pick_arms(study, (args.base, args.arm))).comparisons
    made = predict(
        profile, curves_of(found), seconds=args.seconds, ranks=args.ranks, most_unmapped=most
    )
    _show(made, args.arm, args.base, view)
    return ExitCode.DONE if made.tax else ExitCode.CHECKS_FAILED


def load_profile(path: Path) -> Profile:
    """Read the file or the directory of a profile; raises NearmetalError."""
    from nearmetal.core.files import read_named, read_regular
    from nearmetal.evidence.profiles import MAX_BYTES, MAX_FILES, read_profile
    from nearmetal.evidence.recognize import decode

    texts: list[tuple[str, str]] = []
    try:
        if not path.is_dir():
            return read_profile([(str(path), decode(read_named(path, MAX_BYTES), str(path)))])
        names = sorted(file.name for file in path.glob("*.prof"))
        if len(names) > MAX_FILES:
            raise NearmetalError(f"{path} has more than {MAX_FILES} files", "give one run")
        left = MAX_BYTES
        for name in names:
            raw = read_regular(name, left, below=path)
            left -= len(raw)
            texts.append((str(path / name), decode(raw, str(path / name))))
    except OSError as error:
        raise NearmetalError(
            f"cannot read {path}: {error.strerror}", "give the file or directory of a profile"
        ) from error
    if not texts:
        raise NearmetalError(
            f"{path} has no file *.prof", "give the files of Open MPI's monitoring"
        )
    return read_profile(texts)


def _limits(found: TaxLimits, scale: float = 1) -> dict[str, float]:
    ways = {"value": found.expected, "low": found.low, "high": found.high}
    return {name: value * scale for name, value in ways.items()}


def _data(group: GroupTax, seconds: float) -> dict[str, Any]:
    ratio = group.cost.ratio if group.cost else None
    return {
        "group": group.name,
        "calls": list(group.calls),
        "count": group.count,
        "seconds": group.seconds,
        "benchmark": group.test or None,
        "messages_seconds": group.messages_seconds if group.test else None,
        "ratio": ratio and ratio._asdict(),
        "change_percent": _limits(group.change, 100 / seconds) if group.test else None,
        "not_predicted": group.why or None,
    }


def _row(group: GroupTax, seconds: float) -> list[str]:
    share = "" if group.seconds is None else f"{100 * group.seconds / seconds:.2f} %"
    row = [group.name, f"{group.count:.0f}", share]
    if not group.cost:
        note = group.why or "taken as equal"
        return [*row, group.test, "", "", "", "", note]
    found, change = group.cost.ratio, group.change
    low, high = found.low or found.value, found.high or found.value
    return [
        *row,
        group.test,
        f"{100 * group.messages_seconds / seconds:.2f} %",
        f"{found.value:.3f}",
        f"{low:.3f}-{high:.3f}",
        f"{100 * change.expected / seconds:+.2f} %",
        f"{100 * change.low / seconds:+.2f} to {100 * change.high / seconds:+.2f}",
    ]


def _show(made: Prediction, arm: str, base: str, view: View) -> None:
    view.table(
        (
            "calls",
            "count",
            "time in MPI",
            "benchmark",
            "messages",
            "ratio",
            "95 %",
            "change",
            "limits",
        ),
        [_row(group, made.seconds) for group in made.groups],
    )
    for remark in made.remarks:
        view.note(remark)
    if made.tax is None:
        lines = [f"NOT PREDICTABLE: {made.why}"]
    else:
        tax = made.tax
        limits = f"from {tax.low:+.1f} % to {tax.high:+.1f} %"
        lines = [
            f"expected tax of {arm} against {base}: {tax.expected:+.1f} % of the run time, {limits}",
            f"{made.unmapped_percent:.1f} % of the communication has no benchmark and is taken as equal",
        ]
    view.result(
        {
            "profile": made.profile.file,
            "format": made.profile.format,
            "ranks": made.profile.ranks,
            "run_seconds_of_all_ranks": made.seconds,
            "tax_percent": made.tax and _limits(made.tax),
            "not_predictable": made.why or None,
            "unmapped_percent": made.unmapped_percent,
            "groups": [_data(group, made.seconds) for group in made.groups],
            "remarks": list(made.remarks),
        },
        lines,
    )
