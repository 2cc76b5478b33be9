"""Small scenes (who, what, how many, where, when) as third-person text, and questions about them."""

from dataclasses import dataclass
from random import Random

from training.starter_words import CITIES, COLORS, DAYS, FIRST_NAMES, ITEMS, counted, full_name, plural, sentence

_TELLINGS = (
    "{name} bought {things} in {city} on {day}.",
    "On {day}, {name} carried {things} to {city}.",
    "{name} sold {things} in {city} last {day}.",
    "Last {day} {name} was in {city} and lost {things}.",
    "In {city}, {name} found {things}. That was on {day}.",
    "There were {things} in the house of {name}. The house is in {city}. {name} came home on {day}.",
    "It was {day}. {name} took a train to {city} with {things}.",
    "{things} stood at the door. {name} had left them there on {day}, after the trip to {city}.",
    "{name} lives in {city}. Every {day} {name} looks at {things}.",
    "A parcel came from {city} on {day}. In it were {things} for {name}.",
    "{name} waited in {city} until {day}. Then {things} came at last.",
    "The shop in {city} gave {things} to {name} and closed on {day}.",
)
_QUESTIONS = {
    "name": ("Who is this about?", "Whose story is it?", "Give the name.", "Which person is named?"),
    "item": ("What things are they?", "Name the things.", "Which things does the text name?"),
    "count": ("How many are there?", "Give the number.", "How many things are there?"),
    "color": ("What color are they?", "Give the color.", "Which color do the things have?"),
    "city": ("Where was it?", "Name the city.", "Which city is it?"),
    "day": ("When was it?", "Name the day.", "Which day was it?"),
}
_QUESTIONS_OF_ONE = {
    "item": ("What things does {name} have?", "Which things go with {name}?"),
    "count": ("How many things does {name} have?", "How many are there for {name}?"),
    "color": ("What color are the things of {name}?", "Which color goes with {name}?"),
    "city": ("Which city goes with {name}?", "Where was {name}?"),
    "day": ("Which day goes with {name}?", "When was it for {name}?"),
}


@dataclass(frozen=True)
class Scene:
    name: str
    item: str
    count: int
    color: str
    city: str
    day: str

    def answer(self, field: str) -> str:
        """What a question about `field` is answered with: numbers in digits, things in the plural."""
        return plural(self.item) if field == "item" else str(getattr(self, field))


def scene(rng: Random) -> Scene:
    name = full_name(rng) if rng.random() < 0.6 else rng.choice(FIRST_NAMES)
    count = rng.randint(2, 20) if rng.random() < 0.8 else rng.randint(21, 99)
    return Scene(name, rng.choice(ITEMS), count, rng.choice(COLORS), rng.choice(CITIES), rng.choice(DAYS))


def told(rng: Random, what: Scene) -> str:
    """The scene in one to three sentences that name all of its facts."""
    things = f"{counted(rng, what.count)} {what.color} {plural(what.item)}"
    return sentence(rng.choice(_TELLINGS).format(name=what.name, things=things, city=what.city, day=what.day))


def asked(rng: Random) -> tuple[str, list[tuple[str, str]]]:
    """A text and one to four questions about it, each with its answer."""
    if rng.random() < 0.4:
        return _asked_of_two(rng)
    what = scene(rng)
    fields = rng.sample(sorted(_QUESTIONS), rng.randint(1, 4))
    return told(rng, what), [(rng.choice(_QUESTIONS[field]), what.answer(field)) for field in fields]


def _asked_of_two(rng: Random) -> tuple[str, list[tuple[str, str]]]:
    """Two scenes beside each other: the question names the person, so the reader has to keep them apart."""
    pair = [scene(rng), scene(rng)]
    pairs = []
    for field in rng.sample(sorted(_QUESTIONS_OF_ONE), rng.randint(1, 3)):
        one = rng.choice(pair)
        pairs.append((rng.choice(_QUESTIONS_OF_ONE[field]).format(name=one.name), one.answer(field)))
    return " ".join(told(rng, what) for what in pair), pairs
