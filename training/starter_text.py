"""Plain text for the starter model: stories, lists, sequences and facts, made from a seed."""

from collections.abc import Callable
from random import Random

from training.starter_scenes import scene, told
from training.starter_words import (
    ADJECTIVES,
    CAPITALS,
    CITIES,
    COLORS,
    DAYS,
    FIRST_NAMES,
    ITEMS,
    MATERIALS,
    MONTHS,
    NUMBERS,
    OPPOSITES,
    SOUNDS,
    article,
    counted,
    full_name,
    plural,
    sentence,
)

_TIMES = ("morning", "evening", "winter", "summer", *DAYS)
_WEATHER = (
    "The sun was out.", "It rained all day.", "Snow lay on the roofs.", "The wind was strong.", "The air was warm and still.",
)  # fmt: skip
_SAYINGS = ("What a lovely day", "I am so tired", "Let us go home", "This is my favorite place", "I will help you", "Do not worry")
_ENDINGS = ("Then they went home.", "In the evening they sat by the fire.", "They laughed long.", "And so the day ended.")


def story(rng: Random) -> str:
    """Two people, a thing that changes hands, something said, an ending."""
    giver, taker = rng.sample(FIRST_NAMES, 2)
    thing = f"{rng.choice([*ADJECTIVES, *COLORS])} {rng.choice(ITEMS)}"
    parts = [
        f"One {rng.choice(_TIMES)} {giver} met {taker} in {rng.choice(CITIES)}.",
        rng.choice(_WEATHER),
        f"{giver} had {article(thing)} and gave it to {taker}.",
        f'"{rng.choice(_SAYINGS)}," said {rng.choice([giver, taker])}.',
        f"Now {taker} has the {thing} and {giver} does not.",
        f'"{_thanks(rng)}, {giver}," said {taker}.',
        rng.choice(_ENDINGS),
    ]
    return " ".join(part for index, part in enumerate(parts) if index in (0, 2) or rng.random() < 0.75)


def _thanks(rng: Random) -> str:
    return rng.choice(["Thank you", "Many thanks", "How kind of you"])


def news(rng: Random) -> str:
    """Several scenes, one after another: the long texts."""
    return " ".join(told(rng, scene(rng)) for _ in range(rng.randint(2, 9)))


def shopping_list(rng: Random) -> str:
    lines = [f"- {counted(rng, rng.randint(2, 20))} {plural(item)}" for item in rng.sample(ITEMS, rng.randint(2, 8))]
    return "\n".join([f"List for {rng.choice(FIRST_NAMES)}:", *lines])


def sequence(rng: Random) -> str:
    """Numbers, days, months or letters in their order."""
    whole = rng.choice([DAYS, MONTHS, NUMBERS, list("abcdefghijklmnopqrstuvwxyz"), [str(number) for number in range(100)]])
    start = rng.randrange(len(whole) - 2)
    chosen = whole[start : start + rng.randint(3, 12)]
    return rng.choice([", ", " ", "\n"]).join(reversed(chosen) if rng.random() < 0.25 else chosen)


def facts(rng: Random) -> str:
    return " ".join(fact(rng) for _ in range(rng.randint(1, 6)))


def fact(rng: Random) -> str:
    """One sentence that is true in the starter model's world."""
    country, capital = rng.choice(sorted(CAPITALS.items()))
    word, opposite = rng.choice(sorted(OPPOSITES.items()))
    animal, sound = rng.choice(sorted(SOUNDS.items()))
    thing, material = rng.choice(sorted(MATERIALS.items()))
    day = rng.randrange(7)
    number = rng.randint(0, 20)
    return rng.choice(
        [
            f"The capital of {country} is {capital}.",
            f"{capital} is the capital of {country}.",
            f"The opposite of {word} is {opposite}.",
            f"The {animal} says {sound}.",
            sentence(f"{article(thing)} is made of {material}."),
            f"After {DAYS[day]} comes {DAYS[(day + 1) % 7]}.",
            f"{sentence(NUMBERS[number])} is written {number}.",
            f"The short form of {DAYS[day]} is {DAYS[day][:3]}.",
        ]
    )


def diary(rng: Random) -> str:
    """A line a day, each a person and an errand."""
    start, days = rng.randrange(7), rng.randint(2, 6)
    errands = ("called", "visited", "wrote to", "waited for", "cooked for", "walked with", "played chess with")
    return "\n".join(f"{DAYS[(start + day) % 7]}: {rng.choice(errands)} {full_name(rng)}." for day in range(days))


_SALUTATIONS = ("Dear {name},", "Hello {name}!", "Hi {name},", "Good morning, {name}!")
_OPENINGS = ("This is {name}.", "{name} here.", "How are you?", "I want to tell you something.", "I am looking out of the window.")
_CLOSINGS = ("Best wishes,", "Thanks,", "Regards,", "Yours,", "Many thanks,")
_NEWS = ("I am well", "We have a new house", "My brother came to see us", "The garden is full of flowers", "I could not sleep")
_MORE_NEWS = ("all is fine", "the days are long", "we have a party soon", "I need no help")
_WISHES = ("Please write soon", "Could you call me", "I would like to see you", "Can you send a picture", "Will you wait for me")


def letter(rng: Random) -> str:
    """A letter to a friend: greeting, news, a wish with a day, and who wrote it."""
    writer, reader = rng.sample(FIRST_NAMES, 2)
    when = f"{rng.choice(['on', 'by', 'before'])} {rng.choice(DAYS)}"
    parts = [
        rng.choice(_SALUTATIONS).format(name=reader),
        rng.choice(_OPENINGS).format(name=writer),
        f"{rng.choice(_NEWS)} and {rng.choice(_MORE_NEWS)}.",
        f"{rng.choice(_WISHES)} {when}, in {rng.choice(CITIES)} or at home.",
        f"{rng.choice(_CLOSINGS)} {rng.choice([writer, full_name(rng)])}",
    ]
    return rng.choice([" ", "\n"]).join(parts)


KINDS: tuple[Callable[[Random], str], ...] = (
    story, story, news, shopping_list, sequence, facts, facts, diary, letter, letter, letter,
)  # fmt: skip


def plain_text(rng: Random) -> str:
    """One document of plain text, 5 to about 300 tokens long."""
    return rng.choice(KINDS)(rng)
