# SPDX-License-Identifier: Apache-2.0
"""The pod of Kubernetes among the examples, and what the pages say of every engine."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from nearmetal.core.resources import REPOSITORY, share
from nearmetal.image import GUEST_PROVIDER
from nearmetal.job.mpi import Installation, Mpi, Provider, Request
from nearmetal.job.site.container import ENGINES
from nearmetal.job.site.exported import selecting

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def pod() -> dict[str, Any]:
    text = share("examples", "containers", "kubernetes.yaml").read_text("utf-8")
    (document,) = yaml.safe_load_all(text)
    assert (document["apiVersion"], document["kind"]) == ("v1", "Pod")
    return dict(document)


def test_all_containers_of_the_pod_share_memory_as_the_place_to_meet() -> None:
    spec = pod()["spec"]
    (volume,) = spec["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert re.fullmatch(r"[1-9]\d*(Ki|Mi|Gi)", volume["emptyDir"]["sizeLimit"])
    assert len(spec["containers"]) == 2
    for container in spec["containers"]:
        (mount,) = container["volumeMounts"]
        assert mount.keys() == {"name", "mountPath"}  # not read-only
        assert mount["name"] == volume["name"]
        (rundir,) = [one["value"] for one in container["env"] if one["name"] == "NEARMETAL_RUNDIR"]
        # The provider makes it for its user alone; the mode of the volume is the cluster's.
        assert PurePosixPath(rundir).parent == PurePosixPath(mount["mountPath"])


def test_the_pod_gives_open_mpi_the_variables_that_nearmetal_prints() -> None:
    request = Request(Provider.NEARMETAL, Path(GUEST_PROVIDER))
    wanted = selecting(Installation(Mpi.OPENMPI5, Path("/usr")), request, {})
    for container in pod()["spec"]["containers"]:
        env = {one["name"]: one["value"] for one in container["env"]}
        assert len(env) == len(container["env"])
        assert {name: env[name] for name in env if name != "NEARMETAL_RUNDIR"} == wanted


def test_the_names_in_the_pod_are_valid_and_different() -> None:
    document = pod()
    names = [container["name"] for container in document["spec"]["containers"]]
    assert len(set(names)) == len(names)
    for name in (document["metadata"]["name"], *names, document["spec"]["volumes"][0]["name"]):
        assert DNS_LABEL.fullmatch(name), name


def test_the_pages_say_of_every_engine_if_it_was_run() -> None:
    page = (REPOSITORY / "docs/containers.md").read_text("utf-8")
    status = (REPOSITORY / "docs/status.md").read_text("utf-8")
    (row,) = [line for line in status.splitlines() if line.startswith("| container engines |")]
    table = [line for line in page.splitlines() if line.startswith("| ")]
    for engine in (*ENGINES, "kubernetes", "singularity"):
        (*_, state) = [line for line in table if engine in line.partition("|")[2].lower()]
        assert re.search(r"tested|not run", state), engine
        assert engine in row.lower(), engine
