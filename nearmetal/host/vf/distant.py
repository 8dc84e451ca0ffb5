# SPDX-License-Identifier: Apache-2.0
"""VFs of another machine: nearmetal there answers, so each machine has one ledger and one lock.

One question is one process, `nearmetal host vf --serve`: JSON on its standard input and output. If
the connection ends, that process completes what it began, or its ledger shows what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from nearmetal.config.explain import first_problem
from nearmetal.core.errors import HostError, NearmetalError
from nearmetal.core.process import Completed
from nearmetal.core.text import printable, printable_lines
from nearmetal.host.vf.allocation import GrantedVf, VfHost, VfOffer, Wish
from nearmetal.host.vf.ledger import WAIT_S, Owner
from nearmetal.host.vf.model import is_address
from nearmetal.host.vf.request import VfRequest

COMMAND = ("nearmetal", "host", "vf", "--serve")
LIMIT_S = WAIT_S + 120.0
"""Limit of one question: it may wait for the lock, and then for the link of an adapter."""

MAX_BYTES = 1 << 20
_NOT_FOUND = 127


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class VfQuestion(_Part):
    """What a machine is asked. `release` gives back the VFs of the owners of the wishes."""

    version: Literal[1] = 1
    action: Literal["offer", "allocate", "release"]
    wishes: Annotated[list[Wish], Field(max_length=4096)]


def _granted(granted: GrantedVf) -> GrantedVf:
    if not is_address(granted.address) or granted.group < 0:
        raise ValueError("no device for a virtual machine")
    return granted


class VfAnswer(_Part):
    """Its answer: the offers in the order of the wishes, the granted VF, or the error."""

    version: Literal[1] = 1
    offers: Annotated[list[VfOffer], Field(max_length=4096)] = []
    granted: Annotated[GrantedVf, AfterValidator(_granted)] | None = None
    error: Annotated[str, Field(max_length=1 << 16)] = ""
    hint: Annotated[str, Field(max_length=1 << 16)] = ""


def answer(text: bytes, host: VfHost) -> str:
    """Return the answer of this machine to a question; never raises NearmetalError."""
    try:
        question = VfQuestion.model_validate_json(text)
    except ValidationError as error:
        return _error(f"this release does not know the question: {first_problem(error)}")
    try:
        found = _act(question, host)
    except NearmetalError as error:
        return _error(error.message, error.hint)
    return found.model_dump_json()


def _error(message: str, hint: str = "") -> str:
    return VfAnswer(error=message, hint=hint).model_dump_json()


def _act(question: VfQuestion, host: VfHost) -> VfAnswer:
    if question.action == "offer":
        return VfAnswer(offers=list(host.offers(question.wishes)))
    granted = None
    for wish in question.wishes:
        if question.action == "release":
            host.release(wish.owner)
        else:
            granted = host.allocate(wish.request, wish.owner, wish.numa)
    return VfAnswer(granted=granted)


_Found = TypeVar("_Found", VfOffer, GrantedVf)


def _readable(found: _Found) -> _Found:
    """Return what another machine says without characters that change a terminal."""
    plain: dict[str, Any] = {
        name: printable_lines(value)
        for name, value in vars(found).items()
        if isinstance(value, str)
    }
    plain |= {n: tuple(map(printable_lines, getattr(found, n))) for n in ("reasons", "notes")}
    return replace(found, **plain)


class DistantVfHost:
    """The VFs of another machine. `ask`: runs a command there with these bytes as its input."""

    def __init__(self, name: str, ask: Callable[[Sequence[str], bytes], Completed]) -> None:
        self._name = name
        self._ask = ask

    def offers(self, wishes: Sequence[Wish]) -> tuple[VfOffer, ...]:
        """See VfHost."""
        offers = self._answer("offer", wishes).offers
        if len(offers) != len(wishes):
            raise self._strange("it has another number of offers")
        return tuple(_readable(offer) for offer in offers)

    def allocate(
        self, request: VfRequest, owner: Owner, numa: frozenset[int] = frozenset()
    ) -> GrantedVf:
        """See VfHost."""
        granted = self._answer("allocate", [Wish(owner, request, numa)]).granted
        if granted is None:
            raise self._strange("it names no VF")
        return _readable(granted)

    def release(self, owner: Owner) -> None:
        """See VfHost."""
        self._answer("release", [Wish(owner, VfRequest())])

    def _strange(self, what: str) -> HostError:
        return HostError(
            f"host {self._name}: the answer of `{' '.join(COMMAND)}` is not understood: {what}",
            "install the same release of nearmetal there",
        )

    def _answer(
        self, action: Literal["offer", "allocate", "release"], wishes: Sequence[Wish]
    ) -> VfAnswer:
        question = VfQuestion(action=action, wishes=list(wishes))
        done = self._ask(COMMAND, question.model_dump_json().encode())
        if done.code == _NOT_FOUND:
            raise HostError(
                f"host {self._name}: its VFs are given out by nearmetal there, which is not in the "
                "path of its login",
                "install the same release of nearmetal there",
            )
        if done.timed_out:
            raise HostError(
                f"host {self._name}: no answer of `{' '.join(COMMAND)}` in {done.seconds:.0f} s",
                "see `nearmetal host vf` there: another command may hold the ledger of its VFs",
            )
        if done.code != 0:
            why = done.error_tail.splitlines()[-1:] or [f"exit code {done.code}"]
            raise HostError(
                f"host {self._name}: `{' '.join(COMMAND)}` fails: {printable(why[0])[:300]}",
                "the same release of nearmetal must be installed there",
            )
        if len(done.stdout) > MAX_BYTES:
            raise self._strange("it is too long")
        try:
            found = VfAnswer.model_validate_json(done.stdout)
        except ValidationError as error:
            raise self._strange(printable(first_problem(error))[:300]) from error
        if found.error:
            raise HostError(
                f"host {self._name}: {printable_lines(found.error)}", printable_lines(found.hint)
            )
        return found
