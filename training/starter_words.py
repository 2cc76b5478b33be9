"""The words of the starter model's text, and how they are joined into phrases."""

from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Ada Alma Amir Anton Bela Boris Carla Chen Clara Dana David Dora Elif Emil Erik Eva Farid Fiona Greta Hana Hugo "
    "Ida Igor Ines Ivan Jana Jonas Julia Kai Karim Kira Lara Leo Lina Luca Maja Mara Marco Mina Nadia Nils Nora "
    "Olga Omar Otto Paula Pavel Petra Rana Rosa Ruben Sara Selma Simon Tara Theo Tomas Vera Viktor Wanda Yara Yusuf "
    "Zoe"
)
CITIES = _words(
    "Athens Basel Berlin Bergen Bilbao Boston Bristol Cairo Cork Dakar Delhi Dublin Geneva Ghent Graz Hanoi Kyiv "
    "Lagos Leeds Lima Lisbon London Lund Lyon Madrid Malmo Milan Nairobi Oslo Paris Porto Prague Quito Riga Rome "
    "Seoul Sofia Tallinn Tokyo Turin Vienna Vilnius Warsaw York Zagreb"
)
ITEMS = _words(
    "apple ball bag basket bell blanket book boot bottle bowl box button cake candle cap card carpet chair clock "
    "coat coin cup desk doll door drum flower fork glove hammer hat jacket jar kettle key kite ladder lamp lemon "
    "mirror mug needle orange paper pen pencil pillow pin plate pot ring rope scarf shirt shoe sofa spoon stamp "
    "stone stool table tent ticket towel toy umbrella vase wheel"
)
COLORS = _words("red blue green yellow black white brown gray pink purple golden silver")
ADJECTIVES = _words("big small old new heavy light long short warm cold clean dirty soft hard round square")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
NUMBERS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
ORDINALS = _words("first second third fourth fifth sixth")
SOUNDS = {
    "cat": "meow", "dog": "woof", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink", "owl": "hoot", "bee": "buzz",
    "frog": "croak", "horse": "neigh", "lion": "roar", "mouse": "squeak", "hen": "cluck", "snake": "hiss", "wolf": "howl",
}  # fmt: skip
OPPOSITES = {
    "big": "small", "old": "new", "heavy": "light", "long": "short", "warm": "cold", "clean": "dirty", "soft": "hard", "up": "down",
    "left": "right", "open": "closed", "early": "late", "fast": "slow", "happy": "sad", "rich": "poor", "full": "empty",
    "wet": "dry", "day": "night", "high": "low", "loud": "quiet", "near": "far", "first": "last", "yes": "no", "begin": "end",
    "push": "pull",
}  # fmt: skip
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Norway": "Oslo", "Greece": "Athens",
    "Egypt": "Cairo", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi", "Austria": "Vienna", "Poland": "Warsaw",
    "Ireland": "Dublin", "Latvia": "Riga", "Estonia": "Tallinn", "Croatia": "Zagreb", "Vietnam": "Hanoi", "Germany": "Berlin",
    "Ecuador": "Quito", "Senegal": "Dakar", "Ukraine": "Kyiv", "England": "London", "Bulgaria": "Sofia", "Lithuania": "Vilnius",
}  # fmt: skip
MATERIALS = {
    "table": "wood", "window": "glass", "key": "metal", "scarf": "wool", "shoe": "leather", "bottle": "glass", "book": "paper",
    "towel": "cotton", "coin": "metal", "wall": "stone", "ladder": "wood", "candle": "wax", "tire": "rubber", "brick": "clay",
}  # fmt: skip
SYMBOLS = "{}[]()<>\"':;,.!?|/\\_-+*=#@$%&^~`"
FOREIGN = _words("é è ü ö ä ñ ç å ø ß š ž ő ł € £ ° ½ — … “ ” β λ π Ж я д 你 好 日 本 한 국 ع ب ש 😀 🚀 ✓ →")

_ONSETS = _words("b br c ch d dr f fl g gr h j k kr l m n p r s sk st t tr v w z")
_VOWELS = _words("a e i o u")
_CODAS = ["", "", "", "l", "m", "n", "r", "s", "ck", "nd", "rt", "ng"]
_SURNAME_ENDS = _words("sen man er ova ini ard ez ko ley well ton berg ska is off ac ado by")


def generator(seed: int | str) -> Random:
    """A source of choices that gives the same text for the same seed on every machine."""
    return Random(seed)  # noqa: S311 - text, not secrets


def made_up_word(rng: Random, syllables: int) -> str:
    """A word that is in no list: it can be copied, not known."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))


def surname(rng: Random) -> str:
    return (made_up_word(rng, 1) + rng.choice(_SURNAME_ENDS)).capitalize()


def full_name(rng: Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {surname(rng)}"


def plural(noun: str) -> str:
    """The plural of one of ITEMS."""
    if noun.endswith(("s", "x", "sh", "ch")):
        return noun + "es"
    return noun + "s"


def counted(rng: Random, number: int) -> str:
    """A number in digits or, up to twenty, in words."""
    return NUMBERS[number] if number < len(NUMBERS) and rng.random() < 0.5 else str(number)


def article(phrase: str) -> str:
    """`phrase` with "a" or "an" before it."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def sentence(text: str) -> str:
    """`text` with a capital at its start."""
    return text[:1].upper() + text[1:]
