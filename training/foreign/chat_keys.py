"""Keys of other programs about chat templates and which turns carry loss."""

import json
from typing import Any

from training.config.name_values import written
from training.foreign.entries import Answer, Values, is_off, is_on

_NAMED = (
    "Lathe uses the chat template of the tokenizer; set chat_template if it is another one. Faults in the rendered rows are found "
    "before Start."
)
_END = "{0} {1}: in Lathe the end token of each turn with loss carries loss."
_TOKENIZER = ("tokenizer_default", "")
_ASSISTANT = {"assistant", "gpt", "model", "chatgpt"}


def template_name(value: Any, _: Values) -> Answer:
    """axolotl's chat_template, LLaMA-Factory's template: the name of one of its templates."""
    if is_off(value) or str(value) in _TOKENIZER:
        return Answer({}, "is how Lathe renders chats.")
    if str(value) == "jinja":
        return Answer({}, "chat_template_jinja says this.")
    return Answer({}, _NAMED)


def template_kwargs(value: Any, _: Values) -> Answer:
    """Arguments of the chat template: a mapping, or one as JSON text."""
    if is_off(value):
        return Answer({}, "is empty.")
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return Answer(None, "is not a mapping; set chat_template_kwargs.")
    return Answer({"chat_template_kwargs": written({str(name): one for name, one in given.items()})})


def enable_thinking(value: Any, values: Values) -> Answer:
    """LLaMA-Factory's enable_thinking, an argument of the template."""
    if value is None:
        return Answer({}, "is empty.")
    more = template_kwargs(values.get("chat_template_kwargs"), values).settings or {}
    earlier = more.get("chat_template_kwargs")
    argument = f"enable_thinking={'true' if is_on(value) else 'false'}"
    return Answer({"chat_template_kwargs": f"{earlier}, {argument}" if earlier else argument})


def turns_of(described: Values) -> tuple[Values, list[str]]:
    """The settings for the turns with loss of one of axolotl's data sets, and what Lathe does not have of them."""
    settings: Values = {}
    missing: list[str] = []
    if field := described.get("message_field_training"):
        settings = {"loss_on": "field", "loss_field": str(field)}
    roles = described.get("roles_to_train")
    others = sorted({str(role) for role in roles} - _ASSISTANT) if isinstance(roles, list) else []
    if others:
        roles = ", ".join(others)
        missing.append(
            f"roles_to_train {roles}: in Lathe assistant turns, or with train_on_prompt all tokens, carry loss."
        )
    missing += [
        _END.format(key, described[key])
        for key in ("train_on_eos", "train_on_eot")
        if described.get(key) not in (None, "turn")
    ]
    if described.get("message_field_training_detail"):
        missing.append("message_field_training_detail: Lathe selects whole turns.")
    if is_on(described.get("drop_system_message")):
        missing.append("drop_system_message: remove the system messages from the data.")
    return settings, missing
