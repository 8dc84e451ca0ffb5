# SPDX-License-Identifier: Apache-2.0
"""From folders of logs to a study: walk, recognize, parse, label, keep; one file at a time.

Another person may have made the folders: no link in them is followed, only regular files are read,
and depth, number and sizes are bounded.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nearmetal.config.document import MAX_BYTES, Document, read_text
from nearmetal.core.errors import LogError, NearmetalError
from nearmetal.core.files import read_regular
from nearmetal.core.progress import Progress
from nearmetal.core.text import printable
from nearmetal.evidence import Launch, Log, parse_log, read_manifest
from nearmetal.evidence.manifest import FILE as BENCH_MANIFEST
from nearmetal.evidence.manifest import STUDY_SUITE
from nearmetal.evidence.parse import PARSERS
from nearmetal.evidence.recognize import MAX_LOG_BYTES, decode, recognize, refuse_crash
from nearmetal.study.labels import FILE as LABELS_FILE
from nearmetal.study.labels import WHAT, Label, Labeller, Labels, natural, parse_labels
from nearmetal.study.losses import LOST, ArmLosses, Sizes, early, was_cut
from nearmetal.study.model import LAUNCH, SourceFile
from nearmetal.study.physics import wire_disagrees
from nearmetal.study.store import Study, Writer, is_store, object_path

COINCIDENCE = 3
"""With at most this many numbers, two launches may print the same bytes by chance."""

MAX_SHOWN = 20

MAX_DEPTH = 64
"""Folders within folders."""

MAX_FILES = 1_000_000

MAX_WORD = 1000
"""Characters of a name, a setting or a remark of a log in the tables."""

MAX_SETTINGS = 1000
"""Settings of a log in the tables."""

MAX_SIZE = 1 << 53
"""Bytes of a message."""
_ONE_FOLDER = "import one folder that holds both, so that their paths differ"
_OTHER = Label(ignore="another stream of a launch")


class File(NamedTuple):
    """A file to import; labels match `path`, which is relative to `folder`.

    `inside`: where it lies in `folder`, if that is not `path`. For files of a run directory, the manifest gives `label`, `format` and `failed`.
    """

    path: str
    folder: Path
    inside: str = ""
    label: Label | None = None
    format: str = ""
    failed: str = ""
    facts: Mapping[str, str] = {}
    """Facts that the launcher recorded."""


@dataclass
class ImportSummary:
    """The result of an import. `refused` has the reasons by path, `launches` the losses by arm."""

    files: int = 0
    facts: int = 0
    read: int = 0
    ignored: int = 0
    duplicates: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    launches: dict[str, ArmLosses] = field(default_factory=dict)


def _bench_files(folder: Path, relative: str) -> list[File] | None:
    """Return the raw files of a run directory; None: the directory is none."""
    try:
        manifest = read_manifest(folder, relative)
    except LogError:
        return None
    files = []
    for launch in manifest.launches:
        others = [name for name, _ in launch.files if name != launch.file]
        how = _how_it_failed(launch)
        files += [
            File(
                relative + launch.file,
                folder,
                "",
                _bench_label(launch, designed=manifest.suite == STUDY_SUITE),
                launch.log_format,
                f"the launch failed, {how}" if how else "",
                _facts(launch),
            ),
            *(File(relative + other, folder, "", _OTHER) for other in others),
        ]
    return files


def _facts(launch: Launch) -> Mapping[str, str]:
    wire = {} if launch.wire_bytes is None else {"wire_bytes": str(launch.wire_bytes)}
    return launch.facts | wire if launch.facts else {}


def _how_it_failed(launch: Launch) -> str:
    """Return why a launch gives no numbers; empty: the launch gives numbers."""
    if launch.good:
        sent = launch.proof.bytes.get("net", 0)
        # A guest cannot read the counters of RDMA, and ranks of one node use its loopback.
        counted = launch.facts.get("ranks_per_node") == "1" and "firmware" not in launch.facts
        if not counted or launch.wire_bytes is None:
            return ""
        return wire_disagrees(sent, launch.wire_bytes) or ""
    if launch.hung_at is not None:
        return f"hung at {launch.hung_at} bytes"
    return "no end in time" if launch.timed_out else f"exit code {launch.exit_code}"


def _bench_label(launch: Launch, *, designed: bool) -> Label:
    """Return the label of a launch. In a designed study, nodes belong to the arm, not to the scale."""
    nodes = len(launch.nodes.split(",")) if launch.nodes else 1
    return Label(
        arm=printable(" ".join(filter(None, (launch.mpi, launch.arm))) or "no MPI"),
        nodes=None if designed else nodes,
        ranks=launch.ranks,
        launch=launch.number,
        block=launch.block,
        repeated=True,
    )


def find_files(folders: Sequence[Path]) -> list[File]:
    """Return the files below folders, run-2 before run-10; hidden files are left out.

    Raises NearmetalError if there is none, too many, or a folder that cannot be read.
    """
    found: list[File] = []
    for folder in folders:
        if not folder.is_dir():
            raise NearmetalError(f"{folder} is not a directory", "give folders of logs")
        if is_store(folder):
            raise NearmetalError(f"{folder} is already a study", "give folders of raw logs")
        for file in _walk(folder, "", 0):
            if len(found) >= MAX_FILES:
                raise NearmetalError(
                    f"{folder} has more than {MAX_FILES} files", "import parts of it"
                )
            found.append(file)
    if not found:
        raise NearmetalError(f"{folders[0]} has no files", "give folders of logs")
    return found


def _walk(folder: Path, relative: str, depth: int) -> Iterator[File]:
    if depth > MAX_DEPTH:
        raise NearmetalError(
            f"{folder}: more than {MAX_DEPTH} folders within each other: {printable(relative)}",
            "give the folders of the logs themselves",
        )
    try:
        with os.scandir(folder / relative) as found:
            entries = sorted(
                (e for e in found if not e.name.startswith(".")), key=lambda e: natural(e.name)
            )
    except OSError as error:
        raise NearmetalError(
            f"cannot read the folder {folder}/{printable(relative)}: {error.strerror}",
            "make it readable, or give the folders of the logs themselves",
        ) from error
    if any(entry.name == BENCH_MANIFEST for entry in entries):
        bench = _bench_files(folder, relative)
        if bench is not None:
            yield from bench
            return
    for entry in entries:
        path = relative + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, path + "/", depth + 1)
        elif path != LABELS_FILE:
            yield File(path, folder)


class Importer:
    """Reads files one by one into a writer."""

    def __init__(self, writer: Writer, labeller: Labeller | None, run: str) -> None:
        """`labeller` None: every file has its label."""
        self.writer = writer
        self.labeller = labeller
        self.run = run
        self.summary = ImportSummary()
        self.missing: dict[str, tuple[str, ...]] = {}
        self.arms: dict[str, str] = {}
        self._paths: set[str] = set()
        self._seen: dict[str, str] = {}
        self._launches: dict[int, str] = {}
        self._curves: dict[int, dict[str, Sizes]] = defaultdict(dict)
        self._ended: dict[str, str] = {}
        """The arms of the files that end early, by path."""
        self._arms: dict[str, str] = {}
        self._good: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()

    def take(self, file: File) -> None:
        """Import one file; an unreadable file is recorded with the reason."""
        self.summary.files += 1
        shown = printable(file.path)
        label = file.label or (self.labeller.label(file.path) if self.labeller else None)
        if label is None or label.missing:
            self.missing[shown] = label.missing if label else ("arm", "nodes", "launch")
        elif label.ignore:
            self.summary.ignored += 1
            self.writer.add(SourceFile("", shown, "ignored", label.ignore), None)
        else:
            if file.label is None:
                self.arms.setdefault(label.arm, shown)
            self._read(file, shown, label)

    def _read(self, file: File, shown: str, label: Label) -> None:
        place = (self.run, label.arm, label.launch, label.block, label.nodes, label.ranks)
        source = SourceFile("", shown, "facts", "", file.format, "", *place)
        log = None
        try:
            if shown in self._paths:
                raise _UnreadError("refused", f"{shown}:1: another file has this path", _ONE_FOLDER)
            self._paths.add(shown)
            content = _content(file, shown)
            source = source._replace(source=self.writer.keep(content))
            if file.failed:
                raise _UnreadError("failed", f"{shown}:1: {file.failed}")
            text = decode(content, shown)
            name = file.format or recognize(text, shown)
            refuse_crash(text, shown)
            log = parse_log(text, shown, name)
            source = source._replace(
                format=name,
                parser=f"{name}/{PARSERS[name].version}",
                header=_short(
                    {LAUNCH + key: v for key, v in file.facts.items()} | dict(log.header)
                ),
                remarks=tuple((n, text[:MAX_WORD]) for n, text in log.remarks[:MAX_SHOWN]),
            )
            _check_size(source, log)
            self._check_duplicate(source, label, log)
            source = self._check_scale(source, log)
            self._check_launch(source, log)
        except LogError as error:
            self.summary.refused[shown] = error.message
            status = error.status if isinstance(error, _UnreadError) else "refused"
            source, log = source._replace(status=status, reason=error.message), None
            self._lost[label.arm] += status in LOST
        else:
            self.summary.read += 1
            self._good[label.arm] += 1
            self._keep_sizes(source, log)
        self.writer.add(source, log)

    def _keep_sizes(self, source: SourceFile, log: Log) -> None:
        """Keep the ends of the curves of a log: another launch may go on."""
        if was_cut(source):
            self._ended[source.path] = source.arm
        for table in log.tables:
            sizes = [int(row.values["size"]) for row in table.rows if "size" in row.values]
            if sizes:
                setup = table.setup._replace(iterations="")
                ranks = table.processes or source.ranks
                nodes = table.nodes or source.nodes
                curve = hash((source.arm, table.test, setup, table.columns, ranks, nodes))
                self._curves[curve][source.path] = Sizes(min(sizes), max(sizes))
        self._arms[source.path] = source.arm

    def count_launches(self) -> dict[str, ArmLosses]:
        """Return the launches of each arm, and how many were lost."""
        ended = {path: self._arms[path] for path in early(self._curves.values())} | self._ended
        cut = Counter(ended.values())
        return {
            arm: ArmLosses(self._good[arm] + self._lost[arm], self._lost[arm], cut[arm])
            for arm in dict.fromkeys([*self._good, *self._lost])
        }

    def _check_duplicate(self, source: SourceFile, label: Label, log: Log) -> None:
        """Raise LogError for bytes of another file: a copy is not another launch."""
        first = self._seen.setdefault(source.source, source.path)
        numbers = sum(len(row.values) for table in log.tables for row in table.rows)
        if first != source.path and numbers > COINCIDENCE and not label.repeated:
            self.summary.duplicates += 1
            raise _UnreadError(
                "duplicate",
                f"{source.path}:1: the same bytes as {first}",
                "remove it, or set repeated: true",
            )

    @staticmethod
    def _check_scale(source: SourceFile, log: Log) -> SourceFile:
        """Return the source with a remark if the map of the log shows other nodes than the label.

        The map decides. Raises LogError if the log has other ranks than the label.
        """
        ranks = {table.processes for table in log.tables if table.processes}
        if source.ranks and ranks and ranks != {source.ranks}:
            found = ", ".join(map(str, sorted(ranks)))
            raise LogError(
                f"{source.path}:1: {found} ranks in the log, {source.ranks} in the labels",
                "correct the labels",
            )
        other = next((t for t in log.tables if t.nodes and t.nodes != source.nodes), None)
        if other is None or source.nodes is None:
            return source
        words = f"the map of the log shows {other.nodes} nodes, the label says {source.nodes}"
        return source._replace(remarks=(*source.remarks, (other.line, words)))

    def _check_launch(self, source: SourceFile, log: Log) -> None:
        """Raise LogError if another file is the same launch of the same test."""
        for table in log.tables:
            launch = (source.launch or 0) + table.launch
            what = (
                source.arm,
                launch,
                source.nodes,
                table.processes or source.ranks,
                table.test,
                table.setup,
                table.columns[-1].metric,
            )
            other = self._launches.setdefault(hash(what), source.path)
            if other != source.path:
                raise LogError(
                    f"{source.path}:{table.line}: {table.test} of launch {launch} of "
                    f"{source.arm} is already in {other}: one of the labels is wrong",
                    "correct the labels",
                )


class _UnreadError(LogError):
    """The file gives no numbers, for a reason that is not its format."""

    def __init__(self, status: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status


def _short(header: Mapping[str, str]) -> dict[str, str]:
    """Return settings of a log or a launch, of which an adversary may write any number."""
    first = itertools.islice(header.items(), MAX_SETTINGS)
    return {_word(key): _word(value) for key, value in first}


def _word(text: str) -> str:
    return printable(text[:MAX_WORD])[:MAX_WORD]


def _check_size(source: SourceFile, log: Log) -> None:
    """Raise LogError for names and sizes that do not fit into the tables."""
    for table in log.tables:
        if len(table.test) + len(table.variant) > MAX_WORD:
            raise LogError(
                f"{source.path}:{table.line}: the name of a test has more than {MAX_WORD} characters"
            )
        for line, values in table.rows:
            if not values.get("size", 0) <= MAX_SIZE:
                raise LogError(f"{source.path}:{line}: no message has {values['size']:.3g} bytes")


def _content(file: File, shown: str) -> bytes:
    """Return the bytes of a regular file below its folder; raises LogError."""
    try:
        return read_regular(file.inside or file.path, MAX_LOG_BYTES, below=file.folder)
    except OSError as error:
        raise LogError(f"{shown}:1: cannot read the file: {error.strerror}") from error


def _ask(missing: Mapping[str, tuple[str, ...]], folder: Path) -> NearmetalError:
    """Return the error that lists the missing labels."""
    lines = [f"{path}: {', '.join(names)} not known" for path, names in missing.items()]
    more = [f"and {len(lines) - MAX_SHOWN} more files"] if len(lines) > MAX_SHOWN else []
    return NearmetalError(
        "\n".join([*lines[:MAX_SHOWN], *more]),
        f"write labels: `nearmetal study import {folder} --draft {LABELS_FILE}` writes a draft to "
        "fill in, and --labels takes it",
    )


def _own_labels(folder: Path) -> str:
    """Return the text of the labels in a folder, which another person may have made."""
    path = folder / LABELS_FILE
    try:
        return read_regular(LABELS_FILE, MAX_BYTES, below=folder).decode("utf-8")
    except OSError as error:
        why, hint = error.strerror, "give your own labels with --labels"
        raise NearmetalError(f"cannot read {path}: {why}", hint) from error
    except UnicodeDecodeError as error:
        raise NearmetalError(f"{path} is not UTF-8", "save it as UTF-8") from error


def import_study(
    folders: Sequence[Path], labels: Path | None, target: Path, progress: Progress
) -> ImportSummary:
    """Import folders of logs; raises NearmetalError if labels are missing.

    Without `labels`, those of the first folder apply, if it has any.
    """
    text = None
    known: Labels | None = None
    document: Document | None = None
    if labels is not None:
        text, name = read_text(labels, WHAT), str(labels)
    elif os.path.lexists(folders[0] / LABELS_FILE):
        text, name = _own_labels(folders[0]), str(folders[0] / LABELS_FILE)
    if text is not None:
        known, document = parse_labels(text, name)
    labeller = Labeller(known) if known else None
    files = find_files(folders)
    progress.begin(len(files))
    with Writer(target) as writer:
        importer = Importer(writer, labeller, known.run if known else printable(folders[0].name))
        for file in files:
            progress.step(file.path)
            importer.take(file)
        if importer.missing:
            raise _ask(importer.missing, folders[0])
        if known and labeller and document:
            labeller.check_use(document, importer.arms)
        importer.summary.facts = writer.facts
        importer.summary.launches = importer.count_launches()
        writer.commit(text or "")
    return importer.summary


def derive_again(target: Path) -> ImportSummary:
    """Make the tables of a study again from its own objects and labels."""
    study = Study(target)
    sources = study.sources()
    labels = study.labels()
    with Writer(target) as writer:
        importer = Importer(writer, None, sources[0].run if sources else "")
        for source in sources:
            if source.status in ("facts", "refused") and source.source:
                study.raw(source.source)
                scale = (source.nodes, source.ranks, source.launch, source.block)
                label = Label(source.arm, *scale, repeated=True)
                importer.run = source.run
                facts = {
                    key.removeprefix(LAUNCH): value
                    for key, value in source.header.items()
                    if key.startswith(LAUNCH)
                }
                inside = object_path(source.source)
                importer.take(File(source.path, target, inside, label, facts=facts))
            else:
                writer.add(source, None)
        importer.summary.facts = writer.facts
        importer.summary.launches = importer.count_launches()
        writer.commit(labels)
    return importer.summary
