"""The power of GPUs, from the vendors' data sheets: the most that a board takes, of the form with the most power. No torch."""

from training.forecast.gpus import Card

BOARD_WATTS = {
    "v100-16gb": 300, "v100-32gb": 300, "t4": 70, "a10": 150, "l4": 72, "l40s": 350, "rtx3090": 350, "rtx4090": 450,
    "a100-40gb": 400, "a100-80gb": 400, "h100": 700, "h200": 700, "b200": 1000, "b300": 1400, "rtx5060": 145,
    "rtx5060ti": 180, "rtx5070": 250, "rtx5070ti": 300, "rtx5080": 360, "rtx5090": 575, "rtxpro4000": 140,
    "rtxpro4500": 200, "rtxpro5000": 300, "rtxpro6000": 600, "mi300x": 750, "mi325x": 1000, "mi355x": 1400,
}  # fmt: skip
SHARE = (0.5, 1.0)
"""The share of the board's power that training takes on average."""


def watts(card: Card) -> tuple[float, float] | None:
    """The least and the most power that a GPU takes in training; None for a GPU whose power is unknown."""
    board = BOARD_WATTS.get(card.name)
    return (board * SHARE[0], board * SHARE[1]) if board else None
