"""The questions that samples answer, and the texts of samples."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from training.chat.rendering_settings import ChatSettings
from training.config.run_config import RunConfig
from training.data.example import Example, Row
from training.data.rows import DataRows, read_files
from training.tokens.rendering import Renderer
from training.trainer.prepare import Data


class Question(NamedTuple):
    """A row of the data: prompt, expected answer, all columns, its number in its file from 0, the name of this file if there are
    several, and the example made from it."""

    prompt: str
    expected: str
    columns: Row
    row: int
    file: str
    example: Example = Example()

    @property
    def alone(self) -> "Question":
        """Without what a record of a sample does not need."""
        return self._replace(columns={}, example=Example())


class Questions:
    """The training and held-out rows of a run, each as a dictionary by the number of a row over all files."""

    def __init__(self, config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        renderer = Renderer(tokenizer, ChatSettings.of(config))
        self.train = _questions(data.train, data.files, renderer)
        self.held_out = _questions(data.held_out, data.held_out_files, renderer) if data.held_out else {}

    def texts(self, answers: Sequence[list[int]]) -> list[str]:
        """The texts of samples (tokens), without special tokens and space around them."""
        return [text.strip() for text in self._tokenizer.batch_decode(answers, skip_special_tokens=True)]


def _questions(view: Any, files: DataRows, renderer: Renderer) -> dict[int, Question]:
    rows, questions = set(view.rows.tolist()), {}
    for number, file, place, row, example in read_files(files.files):
        if number in rows and example:
            name = file.name if len(files.files) > 1 else ""
            questions[number] = Question(*renderer.question(example), row, place, name, example)
    return questions
