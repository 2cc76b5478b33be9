"""Builds static/starter/: tokenizer, pretrained model, sample data.

    python -m tools.starter --out static/starter

It downloads nothing. Sample data and tokenizer are the same on every machine; the weights differ by rounding between
processors.
"""

import argparse
from pathlib import Path

from tools.starter.build import SEED, STEPS, write_data, write_model


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.starter", description="Builds the starter model and its data."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to, for example static/starter")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of text, weights and data (default %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="pretraining steps (default %(default)s)")
    parser.add_argument("--data-only", action="store_true", help="write the sample data only")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_data(options.out, options.seed)
    if not options.data_only:
        write_model(options.out, steps=options.steps, seed=options.seed)


if __name__ == "__main__":
    main()
