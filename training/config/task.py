"""The tasks: what each trains on, needs and supports is one row of `TASKS`. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class StoredText(StrEnum):
    """Which text of a row a store of tokens holds, and which of it carries loss.

    WHOLE: prompt and answers; all answers carry loss. CHOSEN, REJECTED: the prompt with that answer; only it carries loss.
    SOURCE, TARGET: the prompt only, the last answer only.
    """

    WHOLE = ""
    CHOSEN = "chosen"
    REJECTED = "rejected"
    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True)
class ModelKind:
    """How libraries name the kind of model that a task trains: the class of transformers that loads it, PEFT's `task_type`, and
    the hub's `pipeline_tag`."""

    auto_class: str
    peft: str
    pipeline: str


_DECODER = ModelKind("AutoModelForCausalLM", "CAUSAL_LM", "text-generation")
_ENCODER_DECODER = ModelKind("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM", "text2text-generation")
_SCORING = ModelKind("AutoModelForSequenceClassification", "SEQ_CLS", "text-classification")


class Task(StrEnum):
    SFT = "sft"
    PRETRAINING = "pretraining"
    SEQ2SEQ = "seq2seq"
    DPO = "dpo"
    KTO = "kto"
    ORPO = "orpo"
    REWARD = "reward"
    CLASSIFICATION = "classification"
    GRPO = "grpo"
    DISTILL = "distill"

    @property
    def traits(self) -> "TaskTraits":
        """Its row of `TASKS`."""
        return TASKS[self]


@dataclass(frozen=True, kw_only=True)
class TaskTraits:
    """What settings, rules, forecasts, pages and the trainer need to know of a task. What is not stated does not hold."""

    words: str
    """What it trains, in the help of the setting `task`."""
    rows: str = "prompts with answers"
    """What its rows are, in errors."""
    texts: tuple[StoredText, ...]
    """The texts of a row that it trains on; each has a store of tokens."""
    kind: ModelKind = _DECODER
    outputs: int | None = None
    """The outputs of a scoring model's head without its classes (0 for a classifier); None for a model that generates text."""
    is_language_modeling: bool = False
    """Its rows are sequences of tokens that can be concatenated in a batch."""
    cuts_texts: bool = False
    """Texts are cut into pieces of the maximum length, in place of being truncated; all of their tokens carry loss."""
    selects_turns: bool = False
    """Settings and rows choose which turns of a row carry loss, and with which weight."""
    streams: bool = False
    """It can read rows while it trains."""
    renders_rows: bool = False
    """The chat template renders whole rows: prompt and answers."""
    pairs: bool = False
    """Each row has a chosen and a rejected answer."""
    labels_answers: bool = False
    """Each row has an answer with a label, true or false."""
    is_preference: bool = False
    """It compares answers; trl's trainers compute the loss, and turn dropout off."""
    has_reference: bool = False
    """Its loss always compares the model with a reference model (see RunConfig.has_reference)."""
    has_beta: bool = False
    """Its loss has a strength, the setting beta."""
    odds_ratio: bool = False
    """Its loss is that of all answers, and the ratio of the odds of both answers: it copies the logits."""
    least_micro_batch: int = 1
    """It compares rows within a micro batch of at least so many."""
    samples: bool = False
    """It trains on answers that the model itself samples to the prompts of its rows."""
    rewards_samples: bool = False
    """Rewards score these answers."""
    has_teacher: bool = False
    """It compares the model with a teacher, a model beside it."""
    fuses_head: bool = False
    """trl computes its log probabilities from the weight of the head, without what an adapter adds to it."""
    chunks_loss: bool = False
    """Lathe can compute its logits and loss in parts (the setting chunked_loss)."""

    @property
    def generates(self) -> bool:
        """True if its model generates text, and can answer held-out rows."""
        return self.outputs is None

    @property
    def has_classes(self) -> bool:
        """True if its model tells the class of a text."""
        return self.outputs == 0

    @property
    def scores(self) -> bool:
        """True if its model gives each answer one score."""
        return self.outputs == 1

    @property
    def has_encoder(self) -> bool:
        """True if it trains an encoder-decoder: its input and output are two sequences."""
        return self.kind is _ENCODER_DECODER


_BOTH_ANSWERS = (StoredText.CHOSEN, StoredText.REJECTED)
_PAIRED = "chosen and rejected answers"

TASKS = {
    Task.SFT: TaskTraits(
        words="answers to prompts and chats", texts=(StoredText.WHOLE,), renders_rows=True,
        is_language_modeling=True, selects_turns=True, streams=True, chunks_loss=True,
    ),
    Task.PRETRAINING: TaskTraits(
        words="whole texts", texts=(StoredText.WHOLE,), is_language_modeling=True, cuts_texts=True, chunks_loss=True,
    ),
    Task.SEQ2SEQ: TaskTraits(
        words="targets of an encoder-decoder such as T5", texts=(StoredText.SOURCE, StoredText.TARGET),
        kind=_ENCODER_DECODER, chunks_loss=True,
    ),
    Task.DPO: TaskTraits(
        words="chosen over rejected answers", rows=_PAIRED, texts=_BOTH_ANSWERS, renders_rows=True,
        pairs=True, is_preference=True, has_reference=True, has_beta=True, fuses_head=True,
    ),
    Task.KTO: TaskTraits(
        words="answers labeled good or bad", rows="answers with a label, true or false", texts=(StoredText.CHOSEN,),
        renders_rows=True, labels_answers=True, is_preference=True, has_reference=True, has_beta=True, fuses_head=True,
        least_micro_batch=2,
    ),
    Task.ORPO: TaskTraits(
        words="chosen over rejected answers", rows=_PAIRED, texts=_BOTH_ANSWERS, renders_rows=True,
        pairs=True, is_preference=True, has_beta=True, odds_ratio=True,
    ),
    Task.REWARD: TaskTraits(
        words="scores of answers", rows=_PAIRED, texts=_BOTH_ANSWERS, kind=_SCORING, outputs=1,
        pairs=True, is_preference=True,
    ),
    Task.CLASSIFICATION: TaskTraits(
        words="the class of a text", rows="texts with their class (text and label)", texts=(StoredText.SOURCE,),
        kind=_SCORING, outputs=0,
    ),
    Task.GRPO: TaskTraits(
        words="samples of the model itself that rewards score (docs/grpo.md)",
        rows="prompts, with the expected answers where rewards compare with them", texts=(StoredText.SOURCE,),
        samples=True, rewards_samples=True, fuses_head=True,
    ),
    Task.DISTILL: TaskTraits(
        words="the probabilities that a teacher gives to samples of the model itself (docs/distillation.md)",
        rows="prompts", texts=(StoredText.SOURCE,), samples=True, has_teacher=True,
    ),
}  # fmt: skip


def described() -> str:
    """What each task trains, those that train the same together."""
    names: dict[str, list[str]] = {}
    for task in Task:
        names.setdefault(task.traits.words, []).append(task.value)
    return " ".join(f"{', '.join(tasks)}: {words}." for words, tasks in names.items())


def traits_of(config: Mapping[str, Any]) -> TaskTraits:
    """The traits of the task of a stored run, whose configuration may lack it or have another than those of today: those of `sft`
    then."""
    task = config.get("task")
    return TASKS[Task(task) if isinstance(task, str) and task in set(Task) else Task.SFT]
