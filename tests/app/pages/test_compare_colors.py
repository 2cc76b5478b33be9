"""The colors of compared runs: readable on both surfaces, and different for people without one kind of cones."""

import re
from itertools import combinations

import numpy as np
import pytest

from app.pages.common.run_plots import color_of, strokes
from app.web.assets import STATIC

# Linear RGB without L, M or S cones: Machado, Oliveira, Fernandes (2009), severity 1.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
# Oklab: Ottosson (2020).
LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip # noqa: E501
LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip # noqa: E501


def linear(color):
    values = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    return np.array(LAB) @ np.cbrt(np.array(LMS) @ np.clip(rgb, 0, 1))


def contrast(first, second):
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(color)) for color in (first, second))
    return (high + 0.05) / (low + 0.05)


def values(sheet, name):
    """The values of a variable in the light and the dark scheme."""
    found = re.search(rf"{name}: light-dark\((#[0-9a-f]{{6}}), (#[0-9a-f]{{6}})\);", (STATIC / sheet).read_text())
    assert found, name
    return found.groups()


@pytest.fixture(params=[0, 1], ids=["light", "dark"])
def scheme(request):
    """The surface and the ten colors of a scheme."""
    colors = [values("lathe.css", f"--run-{number}")[request.param] for number in range(1, 11)]
    return values("lathe.css", "--surface")[request.param], colors


def test_every_color_has_a_contrast_of_3_with_the_surface(scheme):
    surface, colors = scheme
    assert min(contrast(color, surface) for color in colors) >= 3


@pytest.mark.parametrize("vision", VISION)
def test_every_two_colors_differ(scheme, vision):
    seen = [oklab(np.array(VISION[vision]) @ linear(color)) for color in scheme[1]]
    assert min(np.linalg.norm(first - second) for first, second in combinations(seen, 2)) >= 0.07


def test_a_run_keeps_its_color_whatever_it_is_compared_with():
    ids = [f"dc4e{number:08d}" for number in range(50)]
    together = strokes(ids)
    assert len(set(together.values())) == 50, "color and dash pattern together name a run"
    assert strokes(reversed(ids)) == together
    alone = [strokes([run_id])[run_id] for run_id in ids]
    assert {dash for _, dash in alone} == {0} and len({color for color, _ in alone}) == 10
    three = [
        next(run_id for run_id, (color, _) in zip(ids, alone, strict=True) if color == number) for number in (3, 1, 7)
    ]
    assert [strokes(three)[run_id] for run_id in three] == [(3, 0), (1, 0), (7, 0)]


def test_of_runs_that_would_look_alike_only_the_later_one_takes_another_color():
    ids = [f"dc4e{number:08d}" for number in range(50)]
    first, second = [run_id for run_id in ids if color_of(run_id) == 3][:2]
    others = [next(run_id for run_id in ids if color_of(run_id) == number) for number in (4, 5)]
    together = strokes([first, second, *others])
    assert [together[run_id] for run_id in (first, *others)] == [(3, 0), (4, 0), (5, 0)]
    assert together[second] == (6, 0)
