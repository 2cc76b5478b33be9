"""What has to be in place before the first step: the tokens, split the same way on every rank, and the checkpoint to go on from."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase

from training import manifest
from training.config import RunConfig
from training.data import TokenizedFile, open_tokens, split, tokenize_file
from training.events import Note
from training.report import Report
from training.rows import read_examples
from training.shapes import Example


@dataclass(frozen=True)
class Data:
    """Rows to train on and to evaluate on, and where the held-out ones come from."""

    train: pa.Table
    held_out: pa.Table | None
    held_out_file: Path
    truncated_rows: int
    skipped_rows: int

    def held_out_examples(self) -> Iterator[tuple[int, Example]]:
        """The held-out rows as they stand in their file, with their place in it from 0."""
        rows = set(self.held_out["row"].to_pylist()) if self.held_out else set()
        return ((row, example) for row, example in enumerate(read_examples(self.held_out_file)) if row in rows)


def prepare_data(
    config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, state: PartialState, report: Report
) -> Data:
    """Tokenizes once (rank 0; a resumed run finds the tokens of its first attempt) and splits by the seed."""
    source = Path(config.data)
    tokens = _tokens(source, run_dir / "train.arrow", config, tokenizer, state, report)
    if config.validation_data:
        held_out_file = Path(config.validation_data)
        train, held_out = (
            tokens.table,
            _tokens(held_out_file, run_dir / "heldout.arrow", config, tokenizer, state, report).table,
        )
    else:
        held_out_file = source
        train, held_out = split(tokens.table, config.eval_split, config.seed)
    _remark(tokens, config, report)
    return Data(train, held_out, held_out_file, tokens.truncated_rows, tokens.skipped_rows)


def prepare_resume(run_dir: Path, state: PartialState) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, chosen by rank 0 for all; leftovers of an interrupted save are deleted."""
    found: list[tuple[Path | None, list[str]]] = [(None, [])]
    if state.is_main_process:
        found = [manifest.newest_checkpoint(run_dir)]
        for leftover in manifest.unsealed(run_dir):
            manifest.discard(leftover)
    if state.num_processes > 1:
        broadcast_object_list(found)
    return found[0]


def _tokens(
    source: Path,
    target: Path,
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    state: PartialState,
    report: Report,
) -> TokenizedFile:
    if state.is_main_process and not target.exists():
        tokenize_file(source, target, tokenizer, config, report.progress)
    state.wait_for_everyone()
    return open_tokens(target)


def _remark(tokens: TokenizedFile, config: RunConfig, report: Report) -> None:
    if tokens.skipped_rows:
        message = f"{tokens.skipped_rows:,} rows have no token of an answer within {config.max_length:,} tokens and are left out."
        report.once(Note(message=message, level="warning"))
    if tokens.truncated_rows:
        report.once(
            Note(
                message=f"{tokens.truncated_rows:,} rows are longer than {config.max_length:,} tokens and are cut off.",
                level="warning",
            )
        )
