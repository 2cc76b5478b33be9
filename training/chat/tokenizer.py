"""Loads a model's tokenizer, without torch and without running the model's own code."""

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.errors import UserError


def load(model: str, revision: str | None = None, template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder or hub id; `template` replaces its chat template.

    Raises:
        UserError: there is no tokenizer, or it is not a fast one, which maps tokens to characters.
    """
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
