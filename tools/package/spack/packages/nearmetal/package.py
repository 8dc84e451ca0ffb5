# SPDX-License-Identifier: Apache-2.0

import os

from spack.package import *

try:
    from spack_repo.builtin.build_systems.python import PythonPackage
except ImportError:  # Spack before 1.0
    pass


class Nearmetal(PythonPackage):
    """Virtual HPC clusters whose MPI jobs run near bare-metal speed, with the provider that they use.

    `nearmetal env` prints the variables by which an MPI uses the provider.
    """

    url = f"file://{os.path.dirname(__file__)}/../../nearmetal-@VERSION@.tar.gz"

    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    variant("mpi", default=True, description="The MPI programs of demo, bench and tune")

    variant("ucx", default=False, description="The transport for UCX 1.22")

    depends_on("c", type="build")
    depends_on("meson@1.1:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libfabric@1.14:")
    depends_on("ucx@1.22", when="+ucx")
    depends_on("mpi", when="+mpi")
    requires("^openmpi fabrics=ofi", when="^[virtuals=mpi] openmpi", msg="it needs libfabric")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.26:", type="build")
    depends_on("py-editables", type="build")
    depends_on("py-markdown-it-py@3:", type="build")
    depends_on("iproute2", type="run")
    depends_on("py-clustershell", type=("build", "run"))
    depends_on("py-jinja2", type=("build", "run"))
    depends_on("py-pycdlib", type=("build", "run"))
    depends_on("py-pydantic@2:", type=("build", "run"))
    depends_on("py-pyroute2", type=("build", "run"))
    depends_on("py-pyyaml", type=("build", "run"))
    depends_on("py-rich", type=("build", "run"))
    depends_on("py-shtab@1.12:", type=("build", "run"))

    requires("target=x86_64:", msg="its C code is for x86-64 only")
    conflicts("platform=darwin")
    conflicts("platform=windows")

    def setup_build_environment(self, env):
        options = []
        # The programs for Open MPI and those for MPICH and its relatives have different names.
        if self.spec.satisfies("+mpi"):
            mpi = self.spec["mpi"]
            family = "openmpi" if mpi.name == "openmpi" else "mpich"
            options.append(f"-D{family}={mpi.prefix}")
        if self.spec.satisfies("+ucx"):
            options.append(f"-Ducx={self.spec['ucx'].prefix}")
        env.set("WHEEL_MESON", " ".join(options))
