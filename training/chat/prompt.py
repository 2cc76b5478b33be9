"""A conversation as the tokens of a prompt, as in training. No torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_text(
    tokenizer: "PreTrainedTokenizerBase",
    messages: list[dict[str, Any]],
    arguments: Mapping[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> str:
    """The text up to the answer. `arguments` are those of the chat template.

    Raises:
        Exception: whatever the template raises, since it is a program.
    """
    return str(
        tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True, **arguments)
    )


def prompt_ids(tokenizer: "PreTrainedTokenizerBase", text: str, *, templated: bool) -> list[int]:
    """The tokens of a prompt; the tokenizer adds its special tokens only to text that no template has written."""
    return [int(token) for token in tokenizer(text, add_special_tokens=not templated)["input_ids"]]
