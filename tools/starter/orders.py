"""Generates orders as text. The starter model is pretrained on them and fine-tuned to convert them to JSON."""

import json
from dataclasses import dataclass
from random import Random

from tools.starter.words import CITIES, COLORS, DAYS, FIRST_NAMES, NUMBERS, SURNAMES, THINGS

_GREETINGS = ("Hi", "Hello", "Good morning", "Dear shop", "Hey")
_INTRODUCTIONS = ("this is {name}.", "my name is {name}.", "{name} here.", "I am {name}.", "it is {name} again.")
_SIGNATURES = ("Thanks, {name}", "Best wishes, {name}", "Regards, {name}", "Yours, {name}", "Signed: {name}")
_REQUESTS = (
    "I would like {things}",
    "Please send {things}",
    "Could you send {things}",
    "I want to order {things}",
    "We need {things}",
    "I am looking for {things}",
    "Please put me down for {things}",
)
_DELIVERIES = (
    " to {city} by {day}.",
    " by {day}, to {city}.",
    ". Deliver to {city} on {day}.",
    ". I live in {city} and {day} would be best.",
    ". They have to be in {city} by {day}.",
    ". On {day} I am at home in {city}.",
    " for {day}. The shop in {city} is fine.",
)
_ASIDES = ("It is for a party.", "No hurry.", "Please wrap it well.", "My old one broke.", "I can pay at the door.")


@dataclass(frozen=True)
class Order:
    """The facts of an order."""

    name: str
    item: str
    count: int
    city: str
    day: str

    def as_json(self) -> str:
        """The order as one line of JSON."""
        fields = {"name": self.name, "item": self.item, "count": self.count, "city": self.city, "day": self.day}
        return json.dumps(fields, separators=(",", ":"))


def any_order(rng: Random) -> Order:
    name = f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}"
    item = f"{rng.choice(COLORS)} {rng.choice(THINGS)}"
    return Order(name, item, rng.randint(2, 9), rng.choice(CITIES), rng.choice(DAYS))


def letter(rng: Random, order: Order) -> str:
    """The order as two to five sentences, with the name in the first or the last."""
    number = rng.choice([NUMBERS[order.count], str(order.count)])
    request = rng.choice(_REQUESTS).format(things=f"{number} {order.item}")
    request += rng.choice(_DELIVERIES).format(city=order.city, day=order.day)
    aside = [rng.choice(_ASIDES)] if rng.random() < 0.3 else []
    greeting = rng.choice(_GREETINGS)
    if rng.random() < 0.5:
        introduction = rng.choice(_INTRODUCTIONS).format(name=order.name)
        return " ".join([f"{greeting}, {introduction}", request, *aside])
    return " ".join([f"{greeting}!", request, *aside, rng.choice(_SIGNATURES).format(name=order.name)])
