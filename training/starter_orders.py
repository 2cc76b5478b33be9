"""The sample data: orders written as people write them, answered with one line of JSON.

It is the skill that the starter model lacks: nothing that it was pretrained on asks for JSON or has the shape of these orders.
"""

import json
from dataclasses import asdict, dataclass
from random import Random

from training.starter_words import (
    CITIES,
    COLORS,
    DAYS,
    FIRST_NAMES,
    ITEMS,
    article,
    counted,
    generator,
    plural,
    sentence,
    surname,
)

TRAIN_ROWS = 1600
HELDOUT_ROWS = 160
Row = dict[str, list[dict[str, str]]]

_GREETINGS = ("Hi", "Hello", "Good morning", "Dear shop", "Hey", "")
_INTRODUCTIONS = ("this is {name}.", "my name is {name}.", "{name} here.", "I am {name}.", "it is {name} again.")
_SIGNATURES = ("Thanks, {name}", "Best wishes, {name}", "Regards, {name}", "Yours, {name}", "Many thanks! {name}", "Signed: {name}")
_REQUESTS = (
    "I would like {things}", "Please send {things}", "Could you send {things}", "I want to order {things}", "We need {things}",
    "Can I have {things}", "I am looking for {things}", "Please put me down for {things}",
)  # fmt: skip
_DELIVERIES = (
    " to {city} by {day}.", " by {day}, to {city}.", ". Deliver to {city} on {day}.", ". I live in {city} and {day} would be best.",
    ". They have to be in {city} by {day}.", ". On {day} I am at home in {city}.", " for {day}. The shop in {city} is fine.",
    ", {day}, {city}.",
)  # fmt: skip
_ASIDES = (
    "It is for a party.", "No hurry.", "The last time all went well.", "Please wrap it well.", "My old one broke.",
    "I can pay at the door.",
)  # fmt: skip


@dataclass(frozen=True)
class Order:
    name: str
    item: str
    count: int
    city: str
    day: str

    def json_line(self) -> str:
        """The answer: compact JSON, the item in the singular, the day's first three letters."""
        return json.dumps(asdict(self) | {"day": self.day[:3]}, separators=(",", ":"))


def write_order(rng: Random) -> tuple[str, str]:
    """An order as free text, and as JSON."""
    item = f"{rng.choice(COLORS)} {rng.choice(ITEMS)}"
    name = f"{rng.choice(FIRST_NAMES)} {surname(rng)}"
    order = Order(name, item, rng.randint(1, 20), rng.choice(CITIES), rng.choice(DAYS))
    return _letter(rng, order), order.json_line()


def _letter(rng: Random, order: Order) -> str:
    """The order in one to five sentences; the name comes first or last."""
    request = rng.choice(_REQUESTS).format(things=_things(rng, order))
    request += rng.choice(_DELIVERIES).format(city=order.city, day=order.day)
    aside = [rng.choice(_ASIDES)] if rng.random() < 0.3 else []
    greeting = rng.choice(_GREETINGS)
    if rng.random() < 0.5:
        introduction = rng.choice(_INTRODUCTIONS).format(name=order.name)
        return " ".join([sentence(f"{greeting}, {introduction}" if greeting else introduction), request, *aside])
    signature = rng.choice(_SIGNATURES).format(name=order.name)
    return " ".join([*([f"{greeting}!"] if greeting else []), request, *aside, signature])


def _things(rng: Random, order: Order) -> str:
    if order.count == 1:
        return rng.choice([f"one {order.item}", article(order.item)])
    if order.count == 12 and rng.random() < 0.3:
        return f"a dozen {plural(order.item)}"
    return f"{counted(rng, order.count)} {plural(order.item)}"


def rows(seed: int) -> tuple[list[Row], list[Row]]:
    """Training rows and held-out rows; no order text is in both, nor twice in one."""
    rng = generator(f"orders {seed}")
    answers: dict[str, str] = {}
    while len(answers) < TRAIN_ROWS + HELDOUT_ROWS:
        text, answer = write_order(rng)
        answers[text] = answer
    made = [_row(text, answer) for text, answer in answers.items()]
    return made[:TRAIN_ROWS], made[TRAIN_ROWS:]


def _row(text: str, answer: str) -> Row:
    question = f"Write this order as JSON: {text}"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
