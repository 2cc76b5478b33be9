"""What users prefer. Every function takes a session, which the caller commits, as in worker/store/runs.py."""

from sqlmodel import Session, select

from training.errors import UserError
from worker.store.tables import Preferences

LONGEST_MODEL = 500


class BadPreference(UserError):  # noqa: N818
    """The preference cannot be stored."""


def of(*, session: Session, owner: str) -> Preferences:
    """The preferences of a user; the defaults if they changed nothing."""
    return session.get(Preferences, owner) or Preferences(owner=owner)


def change(*, session: Session, owner: str, **values: str) -> Preferences:
    """Stores some of `model`, `price_gpu_hour` and `price_kwh`, prices as typed; worker/forecasts/prices.py reads them.

    Raises:
        BadPreference: the model is too long.
    """
    kept = of(session=session, owner=owner)
    for name, text in values.items():
        setattr(kept, name, text.strip())
    if len(kept.model) > LONGEST_MODEL:
        message = f"has {len(kept.model):,} characters."
        raise BadPreference("model", f"{kept.model[:40]}...", message, f"Use at most {LONGEST_MODEL}.")
    session.add(kept)
    return kept


def add_tour_step(*, session: Session, owner: str, step: str) -> None:
    """Stores that the user has done a step of the tour."""
    found = of(session=session, owner=owner)
    if step not in found.tour:
        found.tour = [*found.tour, step]
        session.add(found)


def tour_steps(*, session: Session) -> set[str]:
    """The steps of the tour that any user has done."""
    return {step for steps in session.exec(select(Preferences.tour)) for step in steps}


def remove_of(*, session: Session, owner: str) -> None:
    """Removes the preferences of an account."""
    found = session.get(Preferences, owner)
    if found is not None:
        session.delete(found)
