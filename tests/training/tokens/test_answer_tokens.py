"""Questions of held-out rows have the same tokens as in training."""

from pathlib import Path
from typing import Any

import pytest
from tiny import make_model

from benchmarks.matrix.inputs import byte_tokenizer
from training.config.run_config import RunConfig
from training.config.task import Task
from training.data.example import Example
from training.tokens.encoding import Encoder
from training.tokens.parts import PartRenderer
from training.trainer.answering import questions

CHAT = Example(
    messages=[
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Bye"},
    ]
)
PLAIN = Example(prompt="1+1=", answer="2")


def with_bos(tokenizer: Any) -> Any:
    """A tokenizer that adds a BOS token to text without a template, like most of Llama."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|pad|> $A", special_tokens=[("<|pad|>", 0)]
    )
    return tokenizer


@pytest.mark.parametrize("template", [True, False])
@pytest.mark.parametrize("example", [CHAT, PLAIN], ids=["chat", "prompt"])
@pytest.mark.parametrize("task", ["sft", "dpo", "seq2seq"])
def test_a_question_equals_the_training_prompt(tmp_path: Path, example: Example, template: bool, task: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = with_bos(AutoTokenizer.from_pretrained(make_model(tmp_path, template=template)))
    config = RunConfig.model_validate({"model": "m", "data": "d", "task": task})
    (question,) = questions(iter([(0, example)]), config, tokenizer, 1)
    encoder = Encoder(tokenizer)
    rendered = [PartRenderer(tokenizer, config.task.traits.texts[0]).render(example)]
    encoded = encoder.collect(rendered, encoder.encode(rendered))
    trained = encoded.tokens.tolist()
    if task == "seq2seq":
        assert question.tokens == trained  # the whole source, with its end
    else:
        _, first, _ = encoded.spans[-1]
        assert question.tokens == trained[:first]
    begins_by_itself = template and example is CHAT
    assert (question.tokens[0] == 0) is not begins_by_itself


@pytest.mark.parametrize("bos", [True, False])
def test_a_classifier_is_trained_on_the_tokens_that_its_tokenizer_gives_a_text(tmp_path: Path, bos: bool) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(make_model(tmp_path))
    tokenizer = with_bos(tokenizer) if bos else tokenizer
    encoder, (part,) = Encoder(tokenizer), Task.CLASSIFICATION.traits.texts
    rendered = [PartRenderer(tokenizer, part).render(Example(prompt="a text", answer="good"))]
    encoded = encoder.collect(rendered, encoder.encode(rendered))
    assert encoded.tokens.tolist() == tokenizer("a text")["input_ids"]
    assert encoded.first_trained.tolist() != [-1]


def test_a_token_across_the_start_of_the_answer_is_not_in_the_question() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    pieces = {"<|pad|>": 0, "<|end|>": 1, "a": 2, "b": 3, " ": 4, " b": 5}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab=pieces, merges=[(" ", "b")])), eos_token="<|end|>"
    )
    config = RunConfig.model_validate({"model": "m", "data": "d"})
    (question,) = questions(iter([(0, Example(prompt="a ", answer="b"))]), config, tokenizer, 1)
    assert question.tokens == [2]


def test_rows_without_a_prompt_are_skipped() -> None:
    config = RunConfig.model_validate({"model": "m", "data": "d"})
    assert questions(iter([(0, Example(answer="once upon"))]), config, byte_tokenizer(), 2) == []
