"""The work of the stages after the training (training/run_folder/stages.py), in the attempt that has trained or in a later one.

Only rank 0 does it; the others have left.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import DTYPES, load_tokenizer
from training.ranks.distributed import local_machine
from training.ranks.stopping import StopSignal
from training.reports.report import Report
from training.results.answers import Compared, compare
from training.results.merging import merge
from training.results.parity.reference import Reference, by_all_ranks, fits_here
from training.results.parity.verify import verified
from training.run_folder.events import Finished, ResultSaved
from training.run_folder.model_card import environment_token, upload, write_card
from training.run_folder.paths import ANSWERS_FILE, MERGED_FOLDER, result_dir
from training.run_folder.record import Lineage, write_record
from training.run_folder.stages import MOST_KILLS, UNDONE, Saved, Stage
from training.trainer.answering import asked_by
from training.trainer.prepare import Data, prepare_data

Values = dict[str, Any]


@dataclass
class Finishing:
    """Does the stages of a run whose result is saved."""

    config: RunConfig
    run_dir: Path
    report: Report
    stop: StopSignal
    device: torch.device
    precision: Precision
    saved: Saved
    loaded_tokenizer: PreTrainedTokenizerBase | None = None
    loaded_data: Data | None = None

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """That of the training, or loaded again."""
        return self.loaded_tokenizer or load_tokenizer(self.config)

    @cached_property
    def data(self) -> Data:
        """Those of the training, or prepared again."""
        return self.loaded_data or prepare_data(self.config, self.run_dir, self.tokenizer, self.report)

    def run(self) -> None:
        """Does what is left, and reports the end of the run. The failure of a stage is recorded, and the next one is done.

        Raises:
            StopRequested: a stop was requested. What was done is recorded.
            OSError: the disk is full.
        """
        self.stop.training_ends()
        self.report.for_run(ResultSaved(step=self.saved.summary["steps"]))
        tried: set[str] = set()
        while stage := next((one for one in self._left() if one.phase not in tried), None):
            self.stop.check()
            tried.add(stage.phase)
            self._do(stage)
            self.saved.write(self.run_dir)
        undone = self.saved.undone(self.config, self.run_dir)
        summary = self.saved.summary | ({UNDONE: undone} if undone else {})
        self.saved.kills.clear()  # a later attempt tries every stage that is left
        self.saved.write(self.run_dir)
        self.report.for_run(Finished(outcome=self.saved.outcome, step=summary["steps"], summary=summary))

    def _left(self) -> list[Stage]:
        return self.saved.left(self.config, self.run_dir)

    def _do(self, stage: Stage) -> None:
        work = WORK[stage.phase]
        if (kills := self.saved.kills.get(stage.phase, 0)) >= MOST_KILLS:
            self._failed(stage, f"{kills} attempts were killed in it.")
            return
        self.report.enter(stage.phase)
        try:
            self.saved.summary |= work(self)
        except Exception as error:
            self._failed(stage, _why(error))
        else:
            self.saved.finish(stage)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _failed(self, stage: Stage, why: str) -> None:
        self.saved.failed[stage.phase] = why
        again = f"To try again, run `lathe resume {Lineage.read(self.run_dir).run or 'RUN'}`."
        self.report.warn(f"{stage.failure} {why} {again}")

    @property
    def _result(self) -> Path:
        return result_dir(self.run_dir, adapts=self.config.method.adapts)

    def _answer(self) -> Values:
        """Answers `answer_rows` held-out rows, and returns the scores."""
        shown = 0

        def progress(done: int, total: int) -> None:
            nonlocal shown
            self.stop.check()
            if done > shown:  # none are while vLLM loads
                shown = done
                self.report.progress(done, total)

        answered = ((number, example) for number, example in self.data.held_out_examples() if example.answered)
        selected = asked_by("answer_rows", answered, self.config, self.tokenizer, self.report.warn)
        if not selected:
            return {}
        data = Lineage.read(self.run_dir).held_out
        item = Compared(selected, self.config, self._result, self.tokenizer, DTYPES[self.precision], data)
        scores, rows = compare(item, self.device, progress, self.report.warn)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (self.run_dir / ANSWERS_FILE).write_text("".join(lines), encoding="utf-8")
        return {"answers": scores}

    def _merge(self) -> Values:
        merge(self.config, self.run_dir, self.tokenizer, self.saved.summary["classes"])
        return {}

    def _verify(self) -> Values:
        """Compares what is saved with what the trained model answered."""
        reference = Reference.read(self.run_dir)
        if reference is None:
            return {}
        if by_all_ranks(self.config) and not fits_here(self.saved.summary["total_parameters"]):
            fix = f"Run `lathe verify {Lineage.read(self.run_dir).run or 'RUN'}` where it fits."
            raise UserError("verify_rows", None, "The model is too large for the memory of one process.", fix)
        return {"parity": verified(self.config, self.run_dir, reference)}

    def _describe(self) -> Values:
        """Writes the model cards and records."""
        lineage, machine = Lineage.read(self.run_dir), local_machine()
        merged = self.run_dir / MERGED_FOLDER
        for folder in (self._result, *([merged] if merged.is_dir() else [])):
            write_card(folder, self.config, self.saved.summary, lineage, machine)
            write_record(folder, self.config, self.saved.summary, lineage, machine)
        return {}

    def _push(self) -> Values:
        repo, private = self.config.push_to_hub, self.config.push_private
        url = upload(self._result, repo or "", private=private, secret=environment_token())
        self.report.note(f"Pushed to {url}.")
        return {}


WORK: dict[str, Callable[[Finishing], Values]] = {
    "answering": Finishing._answer,
    "merging": Finishing._merge,
    "verifying": Finishing._verify,
    "describing": Finishing._describe,
    "pushing": Finishing._push,
}
"""The work of each of `STAGES` by its phase, which returns what it adds to the run's summary."""


def _why(error: Exception) -> str:
    if isinstance(error, UserError):
        return f"{error.problem.sentence} {error.fix}".strip()
    return f"{type(error).__name__}: {error}"
