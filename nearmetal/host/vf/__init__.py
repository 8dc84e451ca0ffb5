# SPDX-License-Identifier: Apache-2.0
"""The machine that hosts virtual machines: its SR-IOV adapters, and who was given which VF.

`this_machine().allocate(request, owner)` returns a VF bound to vfio-pci, `release(owner)` gives
it back as it was found; `survey` says beforehand which one it would be, or why none.
"""

from nearmetal.host.vf.allocation import GrantedVf, VfHost, Wish, process_start, this_machine
from nearmetal.host.vf.ledger import Book, Claim, Ledger, Owner
from nearmetal.host.vf.model import Machine, PfFacts, VfFacts

__all__ = [
    "Book",
    "Claim",
    "GrantedVf",
    "Ledger",
    "Machine",
    "Owner",
    "PfFacts",
    "VfFacts",
    "VfHost",
    "Wish",
    "process_start",
    "this_machine",
]
