"""A token that begins in the prompt and ends in the answer belongs to the answer, of which else a part would carry no loss."""

from pathlib import Path
from typing import Any

import pytest
from chat_models import chat, make_tokenizer, write_model, write_rows
from subtest_table import table

from training.config.run_config import RunConfig
from training.data.example import Example
from training.template_check.check import check
from training.tokens.encoding import Encoder
from training.tokens.rendering import Renderer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A tokenizer that joins " yes", "\\n\\n" and "hihi"."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("y", "e"), ("ye", "s"), ("Ġ", "yes"), ("h", "i"), ("hi", "hi"), ("Ċ", "Ċ"), (".", "ĊĊ")]
    pieces = ["<|end|>", *alphabet, *(first + second for first, second in merges)]
    backend = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def loss(tokenizer: Any, example: Example) -> list[str]:
    """The texts of the tokens with loss, span by span."""
    rendered, encoder = Renderer(tokenizer).render(example), Encoder(tokenizer)
    encoded = encoder.collect([rendered], encoder.encode([rendered]))
    return [tokenizer.decode(encoded.tokens[first:end].tolist()) for _, first, end in encoded.spans.tolist()]


@table(
    ("prompt", "answer", "trained"),
    [
        ("Is 2 even? Answer: ", "yes", " yes<|end|>"),
        ("Say hi", "hi", "hihi<|end|>"),
        ("Is 2 even?", " yes", " yes<|end|>"),
        ("Is 2 even?", "no", "no<|end|>"),
    ],
)
def test_the_first_token_of_an_answer_carries_loss(tokenizer: Any, prompt: str, answer: str, trained: str) -> None:
    assert loss(tokenizer, Example(prompt=prompt, answer=answer)) == [trained]


def test_a_question_is_the_tokens_before_a_token_across_the_start_of_the_answer(tokenizer: Any) -> None:
    rendered = Renderer(tokenizer).render(Example(prompt="Is 2 even? Answer: ", answer="yes"))
    assert tokenizer.decode(Encoder(tokenizer).prompt(rendered)) == "Is 2 even? Answer:"


def test_the_last_token_of_an_answer_carries_loss_where_it_also_holds_the_text_behind_it(tokenizer: Any) -> None:
    messages = chat("Hi", "Go.", "And?", "Stop.")["messages"]
    assert loss(tokenizer, Example(messages=messages)) == ["Go.\n\n", "Stop.<|end|>"]


def test_rows_in_which_a_token_joins_prompt_and_answer_are_counted(tokenizer: Any, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", len(tokenizer))
    rows = [{"prompt": f"Is {n} even? Answer: ", "completion": "yes"} for n in range(20)]
    config = RunConfig.model_validate({"model": str(model), "data": "rows", "method": "full"})
    report = check(config, write_rows(tmp_path / "rows.jsonl", rows), None, tokenizer)
    (finding,) = [one for one in report.findings if one.fault != "pad_is_end_token"]
    assert (str(finding.fault), finding.rows) == ("prompt_differs", 20) and "white space" in finding.fix


@table("family", ["chatml", "qwen3", "llama3"])
def test_a_conversation_that_begins_with_an_answer_gives_its_heading_no_loss(family: str) -> None:
    tokenizer = make_tokenizer(family)
    example = Example(messages=[{"role": "assistant", "content": "I love music"}])
    (text,) = loss(tokenizer, example)
    assert text in (f"I love music{tokenizer.eos_token}", f" I love music{tokenizer.eos_token}")
