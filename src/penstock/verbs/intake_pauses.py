"""Pausing and resuming the intake of an owner, or of all owners."""

from functools import partial

import msgspec

from penstock.ledger.engine import admission
from penstock.verbs import arguments
from penstock.verbs.scope import Scope


class IntakeState(msgspec.Struct, frozen=True):
    """Whether new documents are accepted."""

    paused: bool
    everyone: bool = False
    """The intake of all owners is paused."""
    reason: str = ""
    since: float | None = None
    by: str | None = None


async def pause_intake(scope: Scope, *, reason: str = "", everyone: bool = False) -> IntakeState:
    """Accept no new documents of this owner (`everyone`: of any owner) until `resume_intake`. Documents that were
    accepted are processed. Every process notices within half a second."""
    order = admission.PauseIntake(scope.owner, bool(everyone), arguments.text("reason", reason), scope.actor)
    await scope.ledger.write(admission.PAUSE_INTAKE, order)
    scope.resources.admissions.forget()
    return await intake(scope)


async def resume_intake(scope: Scope, *, everyone: bool = False) -> IntakeState:
    """Accept new documents of this owner (`everyone`: of all owners) again. One who is paused itself, or with all
    others, stays paused by the other pause."""
    order = admission.PauseIntake(scope.owner, bool(everyone), "", scope.actor)
    await scope.ledger.write(admission.RESUME_INTAKE, order)
    scope.resources.admissions.forget()
    return await intake(scope)


async def intake(scope: Scope) -> IntakeState:
    """Return whether new documents of this owner are accepted."""
    return state_of(await scope.ledger.read(partial(admission.pause, scope.owner)))


def state_of(pause: admission.Pause | None) -> IntakeState:
    if pause is None:
        return IntakeState(False)
    return IntakeState(True, pause.everyone, pause.reason, pause.since, pause.by)
