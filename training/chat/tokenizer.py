"""A model's tokenizer, loaded without torch and without the model's own code, and the tokens of a prompt, as in training."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.errors import UserError


def load(model: str, revision: str | None = None, template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder or hub id; `template` replaces its chat template. Raises UserError if there is no
    tokenizer, or it is not a fast one, which maps tokens to characters."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision or "main", trust_remote_code=False)
    except (OSError, ValueError) as error:
        message = f"has no loadable tokenizer: {error}"
        raise UserError("model", model, message, "Use a folder or hub id of a transformers model.") from error
    if not tokenizer.is_fast:
        raise UserError("model", model, "has a tokenizer without tokenizer.json.", "Save it again as a fast tokenizer.")
    if template:
        tokenizer.chat_template = template
    return tokenizer


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
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


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, templated: bool) -> list[int]:
    """The tokens of a prompt; the tokenizer adds its special tokens only to text that no template has written."""
    return [int(token) for token in tokenizer(text, add_special_tokens=not templated)["input_ids"]]
