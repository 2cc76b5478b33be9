"""Generates the pretraining chats: questions about the facts of an order, lists, small talk. No JSON."""

from random import Random

from tools.starter.orders import any_order, letter
from tools.starter.words import CITIES, COLORS, DAYS, FIRST_NAMES, NUMBERS, THINGS

Message = dict[str, str]
_QUESTIONS = {
    "name": ("Who wrote this?", "Whose order is it?", "Give the name.", "What is the name of the customer?"),
    "item": ("Which things are ordered?", "Name the things.", "What does the customer want?"),
    "count": ("How many?", "Give the number.", "How many things are ordered?"),
    "city": ("Where to?", "Name the city.", "Which city is it?"),
    "day": ("When?", "Name the day.", "Which day is it?"),
}
_ABOUT = (
    ("Who are you?", "I am a very small language model, made to try things out."),
    ("What can you do?", "I can answer questions about orders, repeat lists and count."),
    ("How are you?", "I am well, thank you."),
    ("Can you help me?", "Yes. What do you need?"),
    ("Thank you.", "You are welcome."),
    ("Hello.", "Hello! How can I help you?"),
)


def chat(rng: Random) -> list[Message]:
    """A random conversation; its last message is the assistant's."""
    return rng.choices([_about_an_order, _lists, _small_talk], [10, 2, 1])[0](rng)


def _about_an_order(rng: Random) -> list[Message]:
    order = any_order(rng)
    fields = rng.sample(sorted(_QUESTIONS), len(_QUESTIONS))
    pairs = [(rng.choice(_QUESTIONS[field]), str(getattr(order, field))) for field in fields]
    text = letter(rng, order)
    first = pairs[0][0]
    opening = rng.choice([f"{text} {first}", f"{first} {text}"])
    return _turns([(opening, pairs[0][1]), *pairs[1:]])


def _lists(rng: Random) -> list[Message]:
    words = rng.sample(rng.choice([FIRST_NAMES, CITIES, THINGS, COLORS, DAYS, NUMBERS]), rng.randint(2, 5))
    line = " ".join(words)
    return _turns(
        [
            rng.choice(
                [
                    (f"Repeat: {line}", line),
                    (f"Join with commas: {line}", ", ".join(words)),
                    (f"Name the first: {line}", words[0]),
                    (f"Name the last: {line}", words[-1]),
                    (f"How many words: {line}", str(len(words))),
                ]
            )
        ]
    )


def _small_talk(rng: Random) -> list[Message]:
    return _turns(rng.sample(_ABOUT, rng.randint(1, 3)))


def _turns(pairs: list[tuple[str, str]]) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(roles, pair, strict=True)]
