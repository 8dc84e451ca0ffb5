# SPDX-License-Identifier: Apache-2.0
"""The SR-IOV adapters of a machine that hosts virtual machines, and the owners of their VFs.

`this_machine().allocate(request, owner)` returns a VF bound to vfio-pci, `release(owner)` restores
it. `survey` predicts the choice, or gives the reasons for none.
"""

from nearmetal.host.vf.allocation import GrantedVf, VfHost, VfOffer, Wish, this_machine
from nearmetal.host.vf.ledger import Book, Ledger, Owner, VfClaim
from nearmetal.host.vf.model import Machine, PfFacts, VfFacts

__all__ = [
    "Book",
    "GrantedVf",
    "Ledger",
    "Machine",
    "Owner",
    "PfFacts",
    "VfClaim",
    "VfFacts",
    "VfHost",
    "VfOffer",
    "Wish",
    "this_machine",
]
