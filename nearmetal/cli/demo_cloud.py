# SPDX-License-Identifier: Apache-2.0
"""`nearmetal demo --cloud`: the demo between two servers on OpenStack."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nearmetal.cli.arguments import choose_mpis, run_directory
from nearmetal.cli.demo import MEASURE_STEPS, demo_launches, measured, show_run
from nearmetal.core.errors import ExitCode, UsageError
from nearmetal.core.extras import ExtraError
from nearmetal.core.process import LocalRunner

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from nearmetal.cli.view import View
    from nearmetal.cluster.apply import Cluster
    from nearmetal.cluster.backends.openstack.images import ImageFile
    from nearmetal.cluster.backends.openstack.offer import DemoChoice
    from nearmetal.cluster.backends.openstack.spec import OpenstackSpec
    from nearmetal.cluster.backends.openstack.visit import Visit
    from nearmetal.core.progress import Progress
    from nearmetal.evidence import NodePair

    Found = tuple[tuple[NodePair, ...], str]
    Work = Callable[[Cluster, OpenstackSpec, Progress], Found]

_STEPS = 7
"""The most steps of a demo beside those of its work."""


def on_cloud(args: argparse.Namespace, view: View) -> int:
    """Make two servers, measure between them, remove them, write the report."""
    from nearmetal.cluster.store import Store, state_directory
    from nearmetal.core.lock import locked

    try:
        from nearmetal.cluster.backends.openstack.visit import NAME, Visit
    except ImportError as error:
        raise ExtraError("openstack", "demo --cloud", error) from error

    if args.keep and args.remove:
        raise UsageError("--keep and --remove contradict each other", "give one of them")
    store = Store(state_directory())
    visit = Visit(args.cloud, store, LocalRunner())
    try:
        store.prepare()
        with locked(store.lock(f"{NAME}-verb"), f"cluster {NAME} (a demo)"):
            return _remove(visit, args, view) if args.remove else _demo(visit, args, view)
    finally:
        store.tidy()


def _remove(visit: Visit, args: argparse.Namespace, view: View) -> int:
    if visit.record() is not None:
        view.ask(f"remove the demo from cloud {visit.cloud}", yes=args.yes)
    with view.steps("demo --remove") as steps:
        gone = visit.remove(steps.step, view.warn)
    view.result({"removed": gone}, [f"removed {name}" for name in gone] or ["nothing to remove"])
    return ExitCode.DONE


class _Chosen(NamedTuple):
    """What a demo makes. `disk`: an image that is uploaded; `leased`: whether there are leases."""

    choice: DemoChoice
    disk: Path | None
    leased: bool


def _demo(visit: Visit, args: argparse.Namespace, view: View) -> int:
    from nearmetal.cluster.backends.openstack.visit import NAME

    mpi = choose_mpis(args.mpi)[0]
    directory = run_directory(args.output, NAME)
    # The cores of the servers are not known here, so there are no limits to measure.
    launches = [one for one in demo_launches(mpi, args.blocks) if one.arm is not None]

    def work(cluster: Cluster, spec: OpenstackSpec, steps: Progress) -> Found:
        return measured(
            cluster, spec, mpi, launches, blocks=args.blocks, directory=directory, steps=steps
        )

    found = on_servers(visit, args, view, work, MEASURE_STEPS + len(launches))
    return show_run(directory, mpi, *found, view)


def on_servers(
    visit: Visit, args: argparse.Namespace, view: View, work: Work, steps_of_work: int
) -> Found:
    """Make two servers, work on them, and remove them; returns what the work found."""
    from nearmetal.cluster.backends.openstack.offer import Wishes, choose, read_offer
    from nearmetal.cluster.backends.openstack.visit import NAME

    visit.refuse_foreign()
    wishes = Wishes(args.image, args.flavor, args.network, args.outside, args.apart)
    offer = read_offer(visit.session, wishes)
    leased = visit.leases.offered()
    # What no image changes is refused before one is built.
    choose(visit.cloud, NAME, offer, wishes, args.image or "image")
    with _disk(visit, args, view) as disk:
        image = _image(args.image if disk is None else str(disk))
        chosen = _Chosen(choose(visit.cloud, NAME, offer, wishes, image), disk, leased)
        _agree(visit, chosen, args, view)
        with view.steps("demo") as steps, ExitStack() as stack:
            steps.begin(_STEPS + steps_of_work)
            if args.keep:
                stack.callback(view.note, f"the servers stay; remove them: {visit.command}")
            else:
                stack.enter_context(visit.cleared(steps.step, view.warn))
            return work(*_made(visit, chosen, steps), steps)


def _image(name: str) -> ImageFile | str:
    """Return the file of an image that is uploaded, else its name."""
    from nearmetal.cluster.backends.openstack.images import ImageFile
    from nearmetal.cluster.backends.openstack.spec import is_file

    return ImageFile(name, LocalRunner()) if is_file(name) else name


@contextmanager
def _disk(visit: Visit, args: argparse.Namespace, view: View) -> Iterator[Path | None]:
    """Yield the disk of the built image, None for another image. Without a record, it is removed."""
    disk = None if args.image else _built_disk(view)
    try:
        yield disk
    finally:
        if disk is not None and visit.record() is None:
            disk.unlink(missing_ok=True)


def _made(visit: Visit, chosen: _Chosen, steps: Progress) -> tuple[Cluster, OpenstackSpec]:
    """Make the lease and the servers."""
    from nearmetal.cluster.apply import up
    from nearmetal.core.progress import Part

    visit.begin(chosen.choice, chosen.disk)
    spec = chosen.choice.spec
    if chosen.leased:
        steps.step("lease")
        spec = visit.leased(chosen.choice)
    visit.settle(spec)
    steps.step("up: two servers")
    cluster = visit.cluster(spec)
    up(cluster, spec, progress=Part(steps))
    return cluster, spec


def _built_disk(view: View) -> Path:
    """Build the image if it is missing; returns its disk."""
    from nearmetal.image import (
        DISK,
        Cache,
        build_image,
        cache_directory,
        machine_mirror,
        parts_here,
        write_disk,
    )

    cache, runner = Cache(cache_directory()), LocalRunner()
    with view.steps("image build") as steps:
        image = build_image(
            cache,
            parts_here([DISK]),
            runner,
            progress=steps,
            mirror=lambda: machine_mirror(runner),
        )
    path = cache.root / f"cloud-demo-{image.key}.raw"
    if not path.exists():
        write_disk(path, image)
    return path


def _agree(visit: Visit, chosen: _Chosen, args: argparse.Namespace, view: View) -> None:
    """Show the plan, check it in the cloud, and ask; then remove what another demo has left."""
    from nearmetal.cluster.apply import checked_plan
    from nearmetal.cluster.backends.openstack.visit import LEASE_MINUTES

    choice = chosen.choice
    continued, old = visit.continues(choice), visit.record() is not None
    view.note(f"cloud {visit.cloud}, {visit.session.home}")
    for line in choice.lines:
        view.note(line)
    if chosen.leased:
        view.note(f"a lease of Blazar for {LEASE_MINUTES // 60} hours")
    else:
        view.note("no lease: the cloud has no reservation service")
    until = " until you remove them" if not chosen.leased else ", at most until the lease ends"
    view.note(f"the servers stay{until}" if args.keep else "all is removed at the end")
    if continued:
        view.note("an interrupted demo is continued")
    elif not old:
        # The rest of another demo is in the way of names and quotas, and is removed first.
        checked_plan(visit.cluster(choice.spec), choice.spec)
    first = "remove what an earlier demo has left, and " if old and not continued else ""
    view.ask(f"{first}make 2 servers on cloud {visit.cloud}", yes=args.yes)
    if old and not continued:
        with view.steps("demo --remove") as steps:
            visit.remove(steps.step, view.warn, keep=chosen.disk)
