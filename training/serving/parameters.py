"""Which parameters of a request have a meaning here: each is supported, without effect, or refused by its name."""

from collections.abc import Collection, Mapping
from typing import Any

from training.errors import written
from training.serving.errors import RequestError

WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Parameters that change no answer of a server that keeps none and answers one request at a time."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "best_of": (1,),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_choice": ("auto",),
    "use_beam_search": (False,),
}
"""Values that ask for what is done anyway, beside null."""

_INSTEAD = {
    "functions": "Send tools.",
    "function_call": "Send tools, and read the call from the text of the answer.",
    "max_completion_tokens": "Send max_tokens.",
    "messages": "Send them to /v1/chat/completions.",
    "n": "Send the request several times, each with its own seed.",
    "prompt": "Send messages, or send the prompt to /v1/completions.",
    "reasoning_effort": "Send the variable of the model's chat template in chat_template_kwargs.",
    "stop_token_ids": "Send their text in stop.",
    "tool_choice": "Leave it out: the model decides, and its call is in the text of the answer.",
}


def supported(values: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The parameters among `fields`; the others must change nothing.

    Raises:
        RequestError: a parameter would change the answer, or is unknown.
    """
    for name, value in values.items():
        if name not in fields and not _changes_nothing(name, value, values):
            raise _refusal(name, value)
    return {name: value for name, value in values.items() if name in fields}


def _changes_nothing(name: str, value: Any, values: Mapping[str, Any]) -> bool:
    if name in WITHOUT_EFFECT:
        return True
    if name == "tool_choice" and value == "none":
        return not values.get("tools")
    return name in _NEUTRAL and (value is None or value in _NEUTRAL[name])


def _refusal(name: str, value: Any) -> RequestError:
    neutral = _NEUTRAL.get(name, ())
    instead = f"Leave it out, or send {written(neutral[0])}." if neutral else "Leave it out."
    message = "is not supported." if neutral else "is not a parameter of this request."
    return RequestError(400, name, value, message, _INSTEAD.get(name, instead))
