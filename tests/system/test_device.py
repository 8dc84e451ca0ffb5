# SPDX-License-Identifier: Apache-2.0
"""Large messages between memory of devices, of two processes, on the stand-in for a GPU's driver."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.system.local import ROOT
from tests.system.need import lacking, need_build, need_root

pytestmark = pytest.mark.system

need_root()
need_build()
BUILD = ROOT / "build" / "c"
SEALED = "unshare -n -i -u -p -f --mount-proc"
NEWER = ROOT / "build" / "libfabric" / "2.1" / "run"
MIB = 1 << 20
if not (BUILD / "tests" / "device" / "device_matrix").exists():
    lacking("device_matrix is not built")


def run(channel: str, way: str, largest: int, **variables: str) -> str:
    """Run all moves up to so many bytes; the statistics must name the way."""
    done = subprocess.run(
        [ROOT / "tests/device/run.sh", BUILD, channel, "-m", str(largest)],
        env=os.environ | variables | {"NM_WAY": way},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("channel", "way", "seal", "largest"),
    [
        pytest.param("shm", "by handle: ", "", 64 * MIB, id="by handle"),
        pytest.param("shm", "window to window; by handle not: ", SEALED, 64 * MIB, id="sealed"),
        pytest.param("gpudirect", "GPUDirect by ", "", 16 * MIB, id="GPUDirect"),
    ],
)
def test_large_messages_between_devices(channel: str, way: str, seal: str, largest: int) -> None:
    # The matrix expects handles unless it is told that there is no CMA, as between sealed nodes.
    no_cma = {"NEARMETAL_CMA": "off"} if seal else {}
    assert "device OK" in run(channel, way, largest, NM_SEAL=seal, **no_cma)


def test_buffers_are_registered_by_dma_buf_where_libfabric_can() -> None:
    assert NEWER.exists(), "make setup brings it"
    assert "device OK" in run("gpudirect", "GPUDirect by dma-buf", 3000001, NM_SEAL=str(NEWER))


def test_without_dma_buf_buffers_are_registered_by_address() -> None:
    assert NEWER.exists(), "make setup brings it"
    way = "GPUDirect by address, nmadapter"
    refused = {"NM_SEAL": str(NEWER), "NM_ADAPTER_DMABUF": "off"}
    assert "device OK" in run("gpudirect", way, 3000001, **refused)
