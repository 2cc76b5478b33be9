"""Conversations for the starter model: tasks, questions about a text, small talk, instructions of a system message."""

from collections.abc import Callable
from random import Random

from training.starter_scenes import asked
from training.starter_tasks import capital, material, opposite, sound, task
from training.starter_words import COLORS, FIRST_NAMES, ITEMS, full_name, plural, sentence

Message = dict[str, str]
Turn = tuple[str, str]


def _turns(pairs: list[Turn], system: str = "") -> list[Message]:
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in pairs:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def tasks(rng: Random) -> list[Message]:
    """One to four tasks that have nothing to do with each other."""
    system = rng.choice(["", "", "", "You are a helpful assistant.", "Answer the question."])
    return _turns([task(rng) for _ in range(rng.choice([1, 1, 1, 2, 3, 4]))], system)


def reading(rng: Random) -> list[Message]:
    """A text, then questions about it; the text stands in the first message or in the system message."""
    text, pairs = asked(rng)
    if rng.random() < 0.15:
        return _turns(pairs, text)
    (question, answer), rest = pairs[0], pairs[1:]
    first = rng.choice([f"{text} {question}", f"{text}\n{question}", f"{question} {text}", f"{question}\n{text}"])
    return _turns([(first, answer), *rest])


def small_talk(rng: Random) -> list[Message]:
    """The person's name and likes, asked for later in the same conversation."""
    name = full_name(rng) if rng.random() < 0.5 else rng.choice(FIRST_NAMES)
    liked = f"{rng.choice(COLORS)} {plural(rng.choice(ITEMS))}"
    known = [("What is my name?", f"Your name is {name}."), ("What do I like?", f"You like {liked}.")]
    hello = rng.choice(["Hello, ", "Hi, ", "Good morning, ", ""])
    pairs = [
        (sentence(f"{hello}my name is {name}."), f"Nice to meet you, {name}."),
        (f"I like {liked}.", f"{sentence(liked)} are nice."),
        *([task(rng)] if rng.random() < 0.5 else []),
        *rng.sample(known, rng.randint(1, 2)),
        *([("Thank you.", "You are welcome.")] if rng.random() < 0.4 else []),
    ]
    return _turns(pairs)


def styled(rng: Random) -> list[Message]:
    """A system message says how answers are to look."""
    question, answer = rng.choice([capital, opposite, sound, material])(rng)
    system, form = rng.choice(
        [
            ("Answer in one word.", "{}"),
            ("Answer with a full sentence.", "The answer is {}."),
            ("Begin each answer with Sure.", "Sure: {}"),
            ("End each answer with thanks.", "{}, thanks"),
            ("Put each answer in double quotes.", '"{}"'),
            ("Say the answer twice.", "{0} {0}"),
        ]
    )
    return _turns([(question, form.format(answer))], system)


_GREETINGS = ("Hello.", "Hi!", "Hello!", "Good morning.", "Good evening.")
_ABOUT = (
    ("Who are you?", "I am a very small language model, made to try things out."),
    ("What can you do?", "I can copy, spell, sort, count and answer questions about short texts."),
    ("How are you?", "I am well, thank you."),
    ("Can you help me?", "Yes. What do you need?"),
    ("Thank you.", "You are welcome."),
)


def greeting(rng: Random) -> list[Message]:
    """A hello, what the model is, and then perhaps a task."""
    pairs = [(rng.choice(_GREETINGS), "Hello! How can I help you?")] if rng.random() < 0.7 else []
    pairs += rng.sample(_ABOUT, rng.randint(1, 3))
    return _turns([*pairs, task(rng)] if rng.random() < 0.5 else pairs)


def long_chat(rng: Random) -> list[Message]:
    """Many turns, so that all positions of the context are trained."""
    return _turns([task(rng) for _ in range(rng.randint(8, 14))])


KINDS: tuple[Callable[[Random], list[Message]], ...] = (
    *[tasks] * 9, *[reading] * 8, small_talk, small_talk, styled, styled, greeting, long_chat,
)  # fmt: skip


def chat(rng: Random) -> list[Message]:
    """One conversation as messages with `role` and `content`; its last message is the assistant's."""
    return rng.choice(KINDS)(rng)
