# SPDX-License-Identifier: Apache-2.0

from spack.package import *

try:
    from spack_repo.builtin.build_systems.python import PythonPackage
except ImportError:  # Spack before 1.0
    pass


class PyPycdlib(PythonPackage):
    """Reads and writes images of optical discs."""

    homepage = "https://github.com/clalancette/pycdlib"
    pypi = "pycdlib/pycdlib-1.22.0.tar.gz"

    license("LGPL-2.1-only")

    version("1.22.0", sha256="00456c146e2834eac96ddf738b6b2cbe81564d9efe2022ae6a155fc6649870c6")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools", type="build")
