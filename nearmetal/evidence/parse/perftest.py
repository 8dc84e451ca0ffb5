# SPDX-License-Identifier: Apache-2.0
"""perftest: the text of ib_{send,write,read,atomic}_{bw,lat}, and the file of `--out_json`.

Client and server often write into one stream, so settings, headers and the last row stand twice.
"MB/sec" of older versions are 2^20 bytes, as the newer "MiB/sec" says; "Gb/sec" are 10^9 bits.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from nearmetal.evidence.model import Column, Log, Row, Table, Unit
from nearmetal.evidence.parse.text import (
    fail,
    number,
    row,
    shown,
    spaced_columns,
    split_lines,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = {
    "#bytes": Column("size", Unit.BYTES),
    "#iterations": Column("iterations", Unit.COUNT),
    "BW peak[MB/sec]": Column("bandwidth_peak", Unit.MEBIBYTES_PER_SECOND),
    "BW average[MB/sec]": Column("bandwidth", Unit.MEBIBYTES_PER_SECOND),
    "BW peak[MiB/sec]": Column("bandwidth_peak", Unit.MEBIBYTES_PER_SECOND),
    "BW average[MiB/sec]": Column("bandwidth", Unit.MEBIBYTES_PER_SECOND),
    "BW peak[Gb/sec]": Column("bandwidth_peak", Unit.GIGABITS_PER_SECOND),
    "BW average[Gb/sec]": Column("bandwidth", Unit.GIGABITS_PER_SECOND),
    "MsgRate[Mpps]": Column("rate", Unit.MEGAMESSAGES_PER_SECOND),
    "t_min[usec]": Column("latency_min", Unit.MICROSECONDS),
    "t_max[usec]": Column("latency_max", Unit.MICROSECONDS),
    "t_typical[usec]": Column("latency_typical", Unit.MICROSECONDS),
    "t_avg[usec]": Column("latency", Unit.MICROSECONDS),
    "t_stdev[usec]": Column("latency_stdev", Unit.MICROSECONDS),
    "99% percentile[usec]": Column("latency_p99", Unit.MICROSECONDS),
    "99.9% percentile[usec]": Column("latency_p999", Unit.MICROSECONDS),
    "99%[usec]": Column("latency_p99", Unit.MICROSECONDS),
    "99.9%[usec]": Column("latency_p999", Unit.MICROSECONDS),
    "CPU_Util[%]": Column("cpu", Unit.PERCENT),
}

JSON_LATENCY = {
    "t_min": "latency_min",
    "t_max": "latency_max",
    "t_typical": "latency_typical",
    "t_avg": "latency",
    "t_stdev": "latency_stdev",
    "t_99": "latency_p99",
    "t_99_9": "latency_p999",
}

JSON_OTHERS = ("MsgSize", "n_iterations", "BW_peak", "BW_average", "MsgRate", "CPU_util")

_TITLE = re.compile(r"\s+((?:RDMA_Write|RDMA_Read|Send|Atomic\S*|Write|Read)\b.*?) Test\s*$")
_SETTING = re.compile(r"\s*([A-Za-z][\w *.]*?)\s*:\s+(\S+(?: \S+)*)")
_TWO_SETTINGS = re.compile(r"\s{2,}(?=[A-Z])")
_ROW = re.compile(r"\s*\d+\s+\d")
_NAN = re.compile(r"-?nan")
_KEEP = ("Device", "Number of qps", "Transport type", "Connection type", "Mtu", "Link type")


def _settings(line: str, header: dict[str, str]) -> None:
    for part in _TWO_SETTINGS.split(line):
        match = _SETTING.fullmatch(part.strip())
        if match and match[1] in _KEEP:
            header.setdefault(match[1].lower(), match[2])


def _add(rows: dict[float, Row], found: Row, file: str) -> None:
    """Keep a row; client and server may print it twice, but not with different values."""
    size = found.values["size"]
    before = rows.setdefault(size, found)
    if before.values != found.values:
        raise fail(
            file,
            found.line,
            f"size {size:.0f} stands twice with different values",
            f"the other is in line {before.line}: two outputs are mixed",
        )


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.title = ""
        self.header: dict[str, str] = {}
        self.remarks: list[tuple[int, str]] = []
        self.columns: tuple[Column, ...] | None = None
        self.header_line = 0
        self.rows: dict[float, Row] = {}

    def name(self, nr: int, match: re.Match[str]) -> None:
        if self.title not in ("", match[1]):
            raise fail(self.file, nr, f"{match[1]} after {self.title}", "two outputs are mixed")
        self.title = match[1]

    def head(self, nr: int, line: re.Match[str]) -> None:
        found = spaced_columns(line.string, COLUMNS, self.file, nr)
        if self.columns not in (None, found):
            raise fail(self.file, nr, "another header", "two outputs are mixed")
        self.columns, self.header_line = found, self.header_line or nr

    def other(self, nr: int, line: re.Match[str]) -> None:
        if self.columns and _ROW.match(line.string):
            _add(self.rows, self._row(line.string.split(), self.columns, nr), self.file)
        elif self.title and not self.columns:
            _settings(line.string, self.header)
        elif line.string.strip("-* \t"):
            self.remarks.append((nr, line.string.strip()))

    def _row(self, words: list[str], columns: tuple[Column, ...], nr: int) -> Row:
        """Read a row. perftest's own arithmetic may find no deviation; that is no number, then."""
        for at, column in enumerate(columns[: len(words)]):
            if column.metric == "latency_stdev" and _NAN.fullmatch(words[at]):
                words, columns = words[:at] + words[at + 1 :], columns[:at] + columns[at + 1 :]
                break
        return row(words, columns, self.file, nr)


def parse_text(text: str, file: str) -> Log:
    """Read what the program printed."""
    reader = _Reader(file)
    lines = split_lines(text)
    rules = ((_TITLE, reader.name), (re.compile(r"\s*#bytes"), reader.head))
    walk(lines, (*rules, (re.compile(""), reader.other)))
    if not reader.title:
        raise fail(file, 1, "not the output of perftest", "no line names its test")
    if reader.columns is None or not reader.rows:
        raise fail(
            file, len(lines), f"{reader.title} printed no row", "the run crashed or was cut off"
        )
    table = Table(
        _test(reader.title),
        reader.header_line,
        reader.columns,
        tuple(reader.rows.values()),
        processes=2,
    )
    return Log(file, "perftest", reader.header, (table,), tuple(reader.remarks))


def _test(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def _member(results: Mapping[str, Any], name: str, file: str, text: str) -> tuple[float, int]:
    """Return a number of the JSON file, and the line it stands in."""
    line = next((n for n, t in enumerate(split_lines(text), 1) if f'"{name}"' in t), 1)
    value = results[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fail(file, line, f"{name} is {shown(str(value))}", "a number was expected")
    return number(repr(value), file, line), line


def _bandwidth_unit(values: Mapping[str, float], file: str, line: int) -> Unit:
    """Return the unit that the file does not name: rate times size tells it."""
    for unit, scale in (
        (Unit.MEBIBYTES_PER_SECOND, 1e6 / (1 << 20)),
        (Unit.GIGABITS_PER_SECOND, 8e-3),
    ):
        due = values["rate"] * values["size"] * scale
        if due and abs(values["bandwidth"] - due) <= 0.02 * due:
            return unit
    raise fail(
        file,
        line,
        "the unit of the bandwidth is not named",
        "and rate times size fits neither MiB/s nor Gbit/s",
    )


def _json_members(text: str, file: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two parts of the file, with known members only."""
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise fail(file, line, "not JSON", "perftest's file is cut off or damaged") from error
    info = data.get("test_info") if isinstance(data, dict) else None
    results = data.get("results") if isinstance(data, dict) else None
    if not isinstance(info, dict) or not isinstance(results, dict):
        raise fail(file, 1, "not a file of perftest", "it needs test_info and results")
    for name in results:
        if name not in JSON_OTHERS and name not in JSON_LATENCY:
            raise fail(
                file,
                1,
                f"unknown member {shown(str(name))} of results",
                f"known: {', '.join((*JSON_OTHERS, *JSON_LATENCY))}",
            )
    if "MsgSize" not in results:
        raise fail(file, 1, "no MsgSize in results", "figures could not be told apart")
    return info, results


def parse_json(text: str, file: str) -> Log:
    """Read a file of `--out_json`."""
    info, results = _json_members(text, file)
    size, line = _member(results, "MsgSize", file, text)
    columns, values = [Column("size", Unit.BYTES)], {"size": size}
    for name in (name for name in JSON_LATENCY if name in results):
        values[JSON_LATENCY[name]], line = _member(results, name, file, text)
        columns.append(Column(JSON_LATENCY[name], Unit.MICROSECONDS))
    if "BW_average" in results and "MsgRate" in results:
        values["bandwidth"], line = _member(results, "BW_average", file, text)
        values["rate"], _ = _member(results, "MsgRate", file, text)
        unit = _bandwidth_unit(values, file, line)
        columns += [Column("bandwidth", unit), Column("rate", Unit.MEGAMESSAGES_PER_SECOND)]
        if "BW_peak" in results:
            values["bandwidth_peak"], _ = _member(results, "BW_peak", file, text)
            columns.append(Column("bandwidth_peak", unit))
    if len(columns) == 1:
        raise fail(file, 1, "no figures in results", "the file is cut off")
    header = {str(k).lower().replace("_", " "): str(v) for k, v in info.items()}
    title = str(info.get("test", "")).removesuffix("_Test").replace("_", " ")
    table = Table(_test(title), line, tuple(columns), (Row(line, values),), processes=2)
    return Log(file, "perftest", header, (table,), ())


def parse(text: str, file: str) -> Log:
    """Read one output, of either kind; raises LogError when it is damaged or something else."""
    if text.removeprefix("\ufeff").lstrip().startswith("{"):
        return parse_json(text, file)
    return parse_text(text, file)
