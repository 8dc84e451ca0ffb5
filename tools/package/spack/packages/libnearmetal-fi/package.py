# SPDX-License-Identifier: Apache-2.0

import os

from spack.package import *

try:
    from spack_repo.builtin.build_systems.generic import Package
except ImportError:  # Spack before 1.0
    pass


class LibnearmetalFi(Package):
    """Libfabric provider for MPI in containers and virtual machines, with its tools."""

    url = f"file://{os.path.dirname(__file__)}/../../nearmetal-@VERSION@.tar.gz"

    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    variant("ucx", default=False, description="The transport for UCX 1.22")

    depends_on("c", type="build")
    depends_on("meson@1.1:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libfabric@1.14:")
    depends_on("ucx@1.22", when="+ucx")

    requires("target=x86_64:", msg="its C code is for x86-64 only")
    conflicts("platform=darwin")
    conflicts("platform=windows")

    def install(self, spec, prefix):
        meson = which("meson", required=True)
        ninja = which("ninja", required=True)
        options = ["--buildtype=debugoptimized", "--strip", f"--prefix={prefix}", "--libdir=lib"]
        if spec.satisfies("+ucx"):
            options.append(f"-Ducx={spec['ucx'].prefix}")
        meson("setup", *options, "-Dprovider=enabled", "-Dspank=disabled", "build")
        ninja("-C", "build", "packaged")
        meson("install", "-C", "build", "--no-rebuild", "--tags", "nearmetal")

    def setup_run_environment(self, env):
        env.prepend_path("FI_PROVIDER_PATH", self.prefix.lib.nearmetal)
        if self.spec.satisfies("+ucx"):
            env.prepend_path("UCX_PLUGIN_PATH", self.prefix.lib.nearmetal.ucx)
