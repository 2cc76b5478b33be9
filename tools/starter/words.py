"""The vocabulary of the generated text. Each word becomes one token, so that a small model can copy it."""

from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Ada Alma Amir Anton Bela Boris Carla Chen Clara Dana David Dora Elif Emil Erik Eva Farid Fiona Greta Hana Hugo "
    "Ida Igor Ines Ivan Jana Jonas Julia Kai Karim Kira Lara Leo Lina Luca Maja Marco Mina Nadia Nils Nora Olga Omar "
    "Otto Paula Petra Rana Rosa Ruben Sara Selma Simon Tara Theo Vera Wanda Yara Zoe"
)
SURNAMES = _words(
    "Abbas Adler Ahn Berg Blom Castro Conti Costa Dietz Duarte Engel Falk Ferri Fischer Garcia Hahn Haas Horvat Jansen "
    "Kaya Keller Klein Kowal Lang Larsen Lopez Maier Meyer Moreau Moser Novak Okafor Olsen Park Peters Reyes Ricci Roth "
    "Sato Schulz Silva Stein Suzuki Tanaka Vogel Wagner Weber Wolf Yilmaz Zimmer"
)
CITIES = _words(
    "Athens Basel Berlin Bergen Bilbao Boston Bristol Cairo Cork Dakar Delhi Dublin Geneva Ghent Graz Hanoi Kyiv Lagos "
    "Leeds Lima Lisbon London Lund Lyon Madrid Malmo Milan Nairobi Oslo Paris Porto Prague Quito Riga Rome Seoul Sofia "
    "Tallinn Tokyo Turin Vienna Vilnius Warsaw York Zagreb"
)
THINGS = _words(
    "apples bags balls baskets bells blankets books boots bottles bowls boxes buttons cakes candles caps cards carpets "
    "chairs clocks coats coins cups desks dolls drums flowers forks gloves hammers hats jackets jars kettles keys kites "
    "ladders lamps lemons mirrors mugs needles pans papers pencils pens pillows plates pots rings ropes scarves shirts "
    "shoes sofas spoons stamps stools tables tents tickets towels toys umbrellas vases wheels"
)
COLORS = _words("red blue green yellow black white brown gray pink purple golden silver")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
NUMBERS = _words("zero one two three four five six seven eight nine")


def generator(seed: int | str) -> Random:
    """A random generator that makes the same choices on every machine for the same seed."""
    return Random(seed)  # noqa: S311 - text, not secrets
