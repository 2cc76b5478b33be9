"""Prompts as tokens, rendered as in training: the chat template writes the special tokens, the tokenizer adds none."""

from collections.abc import Mapping
from typing import Any

from training.chat.tokenizer import prompt_ids
from training.serving.forms import Request, RequestError
from training.serving.loaded import Served
from training.serving.templates import TemplateProcess

_OWN_ARGUMENTS = {
    "messages",
    "conversation",
    "tools",
    "tokenize",
    "add_generation_prompt",
    "return_dict",
    "chat_template",
}


def of_messages(
    served: Served,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    arguments: Mapping[str, Any],
    templates: TemplateProcess,
) -> list[int]:
    """The tokens of a conversation up to the answer. Raises RequestError if the model has no chat template, or it cannot render
    the messages."""
    if served.tokenizer.chat_template is None:
        fix = "Send the prompt as plain text, to /v1/completions."
        raise RequestError(400, "messages", None, f"cannot be rendered: {served.name} has no chat template.", fix)
    if own := _OWN_ARGUMENTS & arguments.keys():
        fix = "Pass only variables of the template, such as enable_thinking."
        raise RequestError(400, "chat_template_kwargs", ", ".join(sorted(own)), "is set by the server.", fix)
    try:
        given = {**served.arguments, **arguments}
        text = templates.text(served.name, served.tokenizer, messages, given, tools)
        ignored = bool(tools) and text == templates.text(served.name, served.tokenizer, messages, given, None)
    except ValueError as error:
        message = f"cannot be rendered by the model's chat template: {error}."
        raise RequestError(400, "messages", None, message, "Change the roles or their order.") from error
    if ignored:
        message = f"are not rendered by the chat template of {served.name}."
        raise RequestError(400, "tools", None, message, "Leave them out, or describe them in a message.")
    return prompt_ids(served.tokenizer, text, templated=True)


def of_text(served: Served, prompt: str | list[int]) -> list[int]:
    """The tokens of a prompt without a template, with the special tokens that the tokenizer adds; or the tokens given. Raises
    RequestError if a token is not one of the model's."""
    if isinstance(prompt, str):
        return prompt_ids(served.tokenizer, prompt, templated=False)
    most = len(served.tokenizer)
    wrong = next((token for token in prompt if not 0 <= token < most), None)
    if wrong is not None:
        raise RequestError(
            400, "prompt", wrong, f"is not a token of {served.name}.", f"Give tokens from 0 to {most - 1:,}."
        )
    return list(prompt)


def check_length(served: Served, prompt: list[int], request: Request) -> int:
    """The number of tokens that the answer may have. Raises RequestError if the prompt is empty, or does not fit the model's
    context with the answer; or the answer would be longer."""
    if not prompt:
        raise RequestError(400, "prompt", None, "has no tokens.", "Give a prompt.")
    left = served.context - (0 if served.reads_prompt else len(prompt))
    if left < 1 or len(prompt) > served.context:
        message = f"has {len(prompt):,} tokens; the context of {served.name} is {served.context:,} with the answer."
        raise RequestError(400, "prompt", f"{len(prompt):,} tokens", message, "Shorten the prompt.")
    longest = request.longest or left
    if longest > left:
        message = f"does not fit: the prompt has {len(prompt):,} of {served.context:,} tokens."
        raise RequestError(400, "max_tokens", longest, message, f"Give at most {left:,}.")
    if request.min_tokens > longest:
        message = f"is more than the answer can have, {longest:,} tokens."
        raise RequestError(400, "min_tokens", request.min_tokens, message, f"Give at most {longest:,}.")
    return longest
