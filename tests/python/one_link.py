# SPDX-License-Identifier: Apache-2.0
"""A machine of libvirt's own test driver, for tests; without libvirt for Python they are skipped."""

from __future__ import annotations

from nearmetal.cluster.backends.libvirt.hypervisor import Hypervisor
from nearmetal.cluster.backends.libvirt.probe import Hypervisors

DOMAIN = """\
<domain type="test">
  <name>nearmetal.c.n1</name>
  <metadata>
    <n:resource xmlns:n="%s" cluster="c" identity="%s" name="n1" ready="%s"/>
  </metadata>
  <memory>8192</memory>
  <os><type>hvm</type></os>
</domain>
"""


class OneLink(Hypervisors):
    """Hypervisors that are all the same one."""

    only: Hypervisor

    def link(self, uri: str) -> Hypervisor:
        del uri
        return self.only
