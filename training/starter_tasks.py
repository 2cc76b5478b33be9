"""Short tasks for the starter model, each a question and its one right answer: copying, spelling, sorting, counting, facts."""

from collections.abc import Callable
from random import Random

from training.starter_words import (
    ADJECTIVES,
    CAPITALS,
    CITIES,
    COLORS,
    DAYS,
    FIRST_NAMES,
    FOREIGN,
    ITEMS,
    MATERIALS,
    MONTHS,
    NUMBERS,
    OPPOSITES,
    ORDINALS,
    SOUNDS,
    SYMBOLS,
    article,
    counted,
    full_name,
    made_up_word,
    plural,
)

Task = tuple[str, str]
_KNOWN = [*ITEMS, *COLORS, *ADJECTIVES, *FIRST_NAMES, *CITIES]
_AROUND = (
    ("double quotes", '""'), ("single quotes", "''"), ("round brackets", "()"), ("square brackets", "[]"), ("braces", "{}"),
    ("stars", "**"),
)  # fmt: skip
_BETWEEN = (("commas", ","), ("colons", ":"), ("dashes", "-"), ("slashes", "/"), ("dots", "."), ("plus signs", "+"))


def _word(rng: Random) -> str:
    return rng.choice(_KNOWN) if rng.random() < 0.5 else made_up_word(rng, rng.randint(1, 3))


def _words(rng: Random, fewest: int, most: int) -> list[str]:
    return [_word(rng) for _ in range(rng.randint(fewest, most))]


def _symbols(rng: Random) -> str:
    return "".join(rng.choice(SYMBOLS) for _ in range(rng.randint(1, 4)))


def _plain(rng: Random) -> str:
    """A word, a number or a name, with no sign in it."""
    return rng.choice([_word, _word, _digits, full_name])(rng)


def _anything(rng: Random) -> str:
    """One piece of text of any kind: a word, a number, signs, or letters of other languages."""
    return rng.choice([_word, _word, full_name, _symbols, _digits, _foreign, _mixed])(rng)


def _digits(rng: Random) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 6)))


def _foreign(rng: Random) -> str:
    if rng.random() < 0.3:
        first, last = rng.choice([(0xA1, 0x24F), (0x370, 0x7FF), (0x3041, 0x9FFF), (0x1F300, 0x1F64F)])
        return chr(rng.randint(first, last))
    return "".join(rng.choice(FOREIGN) for _ in range(rng.randint(1, 4)))


def _mixed(rng: Random) -> str:
    """Words and signs with no space between them, as in code and addresses."""
    parts = [rng.choice([_word, _digits, _symbols])(rng) for _ in range(rng.randint(2, 6))]
    return "".join(parts)


def copy(rng: Random) -> Task:
    text = " ".join(_anything(rng) for _ in range(rng.randint(1, 10)))
    ask = rng.choice(
        ["Repeat: {}", "Copy this text: {}", "Say this back: {}", "{}\nRepeat the line above.", "Write exactly this: {}"]
    )
    return ask.format(text), text


def copy_part(rng: Random) -> Task:
    """Only what stands after, before or between marks is wanted."""
    words = [_plain(rng) for _ in range(rng.randint(2, 8))]
    index = rng.randrange(1, len(words))
    left, right = " ".join(words[:index]), " ".join(words[index:])
    mark = rng.choice([":", ";", "|", "=", "/", "->"])
    side = rng.choice(["after", "before"])
    return f"What stands {side} the mark {mark} in this line? {left} {mark} {right}", right if side == "after" else left


def wrap(rng: Random) -> Task:
    """The same words between marks."""
    name, marks = rng.choice(_AROUND)
    text = " ".join(_words(rng, 1, 3))
    return rng.choice([f"Put {text} in {name}.", f"Write this in {name}: {text}"]), f"{marks[0]}{text}{marks[1]}"


def join(rng: Random) -> Task:
    words = _words(rng, 2, 6)
    name, mark = rng.choice(_BETWEEN)
    return f"Join with {name}: {' '.join(words)}", mark.join(words)


def split(rng: Random) -> Task:
    words = _words(rng, 2, 6)
    mark = rng.choice([", ", ";", "/", "-"])
    return f"One line for each: {mark.join(words)}", "\n".join(words)


def reverse(rng: Random) -> Task:
    words = _words(rng, 2, 6)
    ask = rng.choice(["Reverse the words: ", "Write these words backwards: "])
    return ask + " ".join(words), " ".join(reversed(words))


def spell(rng: Random) -> Task:
    word = _word(rng)
    return rng.choice([f"Spell {word}.", f"How do you spell {word}?", f"Write the letters of {word}."]), " ".join(word)


def unspell(rng: Random) -> Task:
    word = _word(rng)
    return f"Which word is this? {' '.join(word)}", word


def sort_numbers(rng: Random) -> Task:
    numbers = rng.sample(range(100), rng.randint(2, 6))
    down = rng.random() < 0.3
    ask = "Sort from high to low: " if down else rng.choice(["Sort: ", "Sort from low to high: "])
    return ask + " ".join(map(str, numbers)), " ".join(map(str, sorted(numbers, reverse=down)))


def sort_words(rng: Random) -> Task:
    words = rng.sample(ITEMS, rng.randint(2, 5))
    return f"Sort by the alphabet: {' '.join(words)}", " ".join(sorted(words))


def pick(rng: Random) -> Task:
    words = _words(rng, 2, 6)
    index = rng.randrange(len(words))
    place = "last" if index == len(words) - 1 and rng.random() < 0.5 else ORDINALS[index]
    ask = rng.choice([f"What is the {place} word? {' '.join(words)}", f"Give the {place} of these: {', '.join(words)}"])
    return ask, words[index]


def count(rng: Random) -> Task:
    words = _words(rng, 1, 9)
    return f"How many words are there? {' '.join(words)}", str(len(words))


def replace(rng: Random) -> Task:
    words = _words(rng, 3, 6)
    old, new = rng.choice(words), _word(rng)
    return f"Replace {old} with {new}: {' '.join(words)}", " ".join(new if word == old else word for word in words)


def lookup(rng: Random) -> Task:
    """Pairs of a key and a value, and one key asked for."""
    keys = rng.sample(_KNOWN, rng.randint(2, 5))
    values = [_plain(rng) for _ in keys]
    index = rng.randrange(len(keys))
    mark = rng.choice([" is ", " = ", ": ", " has "])
    pairs = "; ".join(f"{key}{mark}{value}" for key, value in zip(keys, values, strict=True))
    return f"{pairs}. What about {keys[index]}?", values[index]


def number_word(rng: Random) -> Task:
    number = rng.randint(0, 20)
    if rng.random() < 0.7:
        return rng.choice([f"Write {NUMBERS[number]} in digits.", f"Which number is {NUMBERS[number]}?"]), str(number)
    return f"Write {number} as a word.", NUMBERS[number]


def noun_form(rng: Random) -> Task:
    noun = rng.choice(ITEMS)
    phrase = rng.choice(["", "", f"{rng.choice([*COLORS, *ADJECTIVES])} "])
    if rng.random() < 0.6:
        return rng.choice([f"What is one of the {phrase}{plural(noun)}?", f"Singular of {phrase}{plural(noun)}?"]), phrase + noun
    return rng.choice([f"Plural of {phrase}{noun}?", f"More than one {phrase}{noun}?"]), phrase + plural(noun)


def add(rng: Random) -> Task:
    first, second = rng.randint(0, 20), rng.randint(0, 20)
    if rng.random() < 0.3:
        return f"What is {first + second} - {second}?", str(first)
    ask = rng.choice([f"What is {first} + {second}?", f"Add {counted(rng, first)} and {counted(rng, second)}."])
    return ask, str(first + second)


def compare(rng: Random) -> Task:
    first, second = rng.sample(range(100), 2)
    word, right = rng.choice([("larger", max), ("smaller", min)])
    return f"Which is {word}, {first} or {second}?", str(right(first, second))


def day(rng: Random) -> Task:
    index, names = rng.choice([(rng.randrange(7), DAYS), (rng.randrange(12), MONTHS)])
    form = rng.randrange(3)
    if form == 0:
        return rng.choice([f"Short form of {names[index]}?", f"Shorten {names[index]}."]), names[index][:3]
    step, word = rng.choice([(1, "after"), (-1, "before")])
    return f"What comes {word} {names[index]}?", names[(index + step) % len(names)]


def capital(rng: Random) -> Task:
    country, city = rng.choice(sorted(CAPITALS.items()))
    return rng.choice([(f"What is the capital of {country}?", city), (f"Which country has the capital {city}?", country)])


def opposite(rng: Random) -> Task:
    word, other = rng.choice(sorted(OPPOSITES.items()))
    return rng.choice([f"What is the opposite of {word}?", f"Opposite of {word}?"]), other


def sound(rng: Random) -> Task:
    animal, noise = rng.choice(sorted(SOUNDS.items()))
    return rng.choice([(f"What does the {animal} say?", noise), (f"Which animal says {noise}?", f"the {animal}")])


def material(rng: Random) -> Task:
    thing, stuff = rng.choice(sorted(MATERIALS.items()))
    return f"What is {article(thing)} made of?", stuff


COPYING: tuple[Callable[[Random], Task], ...] = (
    copy, copy, copy_part, wrap, join, split, reverse, spell, unspell, pick, replace, lookup,
)  # fmt: skip
KNOWING: tuple[Callable[[Random], Task], ...] = (
    number_word, noun_form, add, compare, day, capital, opposite, sound, material, sort_numbers, sort_words, count,
)  # fmt: skip


def task(rng: Random) -> Task:
    """A question and its answer."""
    return rng.choice(rng.choice([COPYING, KNOWING]))(rng)
