"""A model's tokenizer, loaded without torch and without running any code of the model's."""

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.failure import UserError


def load(model: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder or hub id.

    Raises:
        UserError: there is none, or none that can say which characters a token stands for.
    """
    try:
        found = AutoTokenizer.from_pretrained(model, revision=revision or "main", trust_remote_code=False)
    except (OSError, ValueError) as error:
        message = f"has no tokenizer that can be loaded: {error}"
        raise UserError("model", model, message, "Give a folder or hub id of a transformers model.") from error
    if not found.is_fast:
        raise UserError("model", model, "has a tokenizer without tokenizer.json.", "Save it again as a fast tokenizer.")
    return found
