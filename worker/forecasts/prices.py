"""What a GPU hour and a kWh cost, as a user enters it in Settings: one price for all GPUs, or one for each kind."""

import re
from dataclasses import dataclass, field

from training.errors import UserError
from training.forecast import solve
from training.forecast.gpus import CARDS, Card
from worker.store import accounts, database
from worker.store.tables import Preferences

_MOST = 100_000
_DECIMAL_COMMA = re.compile(r"\d*,\d+")


class PriceError(UserError):
    """A price that cannot be used."""


@dataclass(frozen=True)
class Prices:
    """Prices in any currency: of an hour of a GPU (`gpu_hour` for those without one of their own), and of a kWh. None: unknown."""

    gpu_hour: float | None = None
    by_card: dict[str, float] = field(default_factory=dict)
    kwh: float | None = None


def parse(gpu_hour: str, kwh: str) -> Prices:
    """The prices that a user typed: "2.50", or "h100=2.5, l4=0.6" with a price for each kind of GPU.

    Raises:
        PriceError: a price is no number, or a GPU is unknown.
    """
    whole, by_card = None, {}
    if comma := _DECIMAL_COMMA.search(gpu_hour):
        fix = "Write the price with a point, such as 2.50, and a space after a comma between two GPUs."
        raise PriceError("price_gpu_hour", comma[0], "has a comma within a number.", fix)
    for entry in filter(None, (part.strip() for part in re.split(r"[,;\n]+", gpu_hour))):
        name, separator, price = entry.rpartition("=")
        card = name.strip().lower()
        if separator and card not in CARDS:
            raise PriceError("price_gpu_hour", card, "is not a known GPU.", f"Use one of {', '.join(CARDS)}.")
        if separator:
            by_card[card] = _number("price_gpu_hour", price)
        else:
            whole = _number("price_gpu_hour", entry)
    return Prices(whole, by_card, _number("price_kwh", kwh) if kwh.strip() else None)


def _number(field_: str, text: str) -> float:
    try:
        number = float(text.strip())
    except ValueError:
        number = -1.0
    if not 0 <= number <= _MOST:
        fix = 'Write a number such as 2.50, or a price for each kind of GPU: "h100=2.50, l4=0.60".'
        raise PriceError(field_, text.strip(), f"is not a price between 0 and {_MOST:,}.", fix)
    return number


def of_user(owner: str) -> Prices:
    """The prices of a user; unknown without a database."""
    if not database.has_tables():
        return Prices()
    with database.read() as session:
        return of_preferences(accounts.preferences_of(session=session, owner=owner))


def of_preferences(stored: Preferences) -> Prices:
    """The prices in a user's preferences."""
    return parse(stored.price_gpu_hour, stored.price_kwh)


def cheapest_first(prices: Prices) -> list[Card]:
    """The known GPUs by the price of their work: of an hour, divided by their speed. Without prices of their own, the one with the
    least memory first; GPUs without a price come last."""
    priced = [card for card in solve.by_memory() if card.name in prices.by_card]
    others = [card for card in solve.by_memory() if card.name not in prices.by_card]
    return sorted(priced, key=lambda card: prices.by_card[card.name] / card.flops) + ([] if priced else others)
