"""Masks of the public templates of model families: what carries loss is what the model generates, by a rendering of this test.

The rendering is incremental: before each answer the model gets what the template writes up to there, and generates until a token at
which its generation stops. Texts are unique, so each is found by looking for it.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_models import make_tokenizer
from subtest_table import table

from training.chat.rendering_settings import DEFAULT
from training.data.example import Example, Message
from training.errors import DataError
from training.tokens.coverage import Gap, missing
from training.tokens.encoding import Encoder
from training.tokens.rendered import Rendered
from training.tokens.rendering import Renderer

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}}]
BAR = "\uff5c"  # DeepSeek's vertical line
ENDS = {
    "cohere": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek": [f"<{BAR}end▁of▁sentence{BAR}>"],
    "diffusion_gemma": ["<turn|>", "<|tool_response>"],
    "gemma4": ["<turn|>", "<|tool_response>"],
    "gemma": ["<end_of_turn>"],
    "glm4moe": ["<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|call|>"],
    "llama": ["<|eot_id|>"],
    "muse_glimmer": ["<|eot|>"],
    "phi": ["<|end|>"],
}
"""The tokens at which a family's generation stops; of the others <|im_end|>."""


_BLOCK = re.compile(r"\s*<think>\s*(</think>)?\s*\Z")


def asked(number: int) -> Message:
    return {"role": "user", "content": f"QUESTION{number}?"}


def said(number: int, **more: Any) -> Message:
    return {"role": "assistant", "content": f"ANSWER{number}.", **more}


def call(number: int, content: str = "", cities: tuple[str, ...] = ("Rome",), **more: Any) -> Message:
    calls = [
        {
            "id": f"abcdefg{number}{place}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": city}},
        }
        for place, city in enumerate(cities)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def result(number: int, place: int = 0) -> Message:
    return {
        "role": "tool",
        "tool_call_id": f"abcdefg{number}{place}",
        "name": "get_weather",
        "content": f"RESULT{place}",
    }


SYSTEM = {"role": "system", "content": "SYSTEM"}
ROWS: dict[str, list[Message]] = {
    "plain": [SYSTEM, asked(1), said(1)],
    "turns": [asked(1), said(1), asked(2), said(2)],
    "reasoning": [asked(1), said(1, reasoning_content="THOUGHT1"), asked(2), said(2, reasoning_content="THOUGHT2")],
    "inline": [asked(1), {"role": "assistant", "content": "<think>\nTHOUGHT1\n</think>\n\nANSWER1."}],
    "call": [asked(1), call(1), result(1), said(2)],
    "everything": [
        SYSTEM, asked(1), call(1, "CALLTEXT", reasoning_content="THOUGHT1"), result(1), said(2, reasoning_content="THOUGHT2"),
    ],
    "parallel": [asked(1), call(1, cities=("Rome", "Oslo")), result(1, 0), result(1, 1), said(2)],
}  # fmt: skip


def templates() -> dict[str, str]:
    """The sources of trl's copies of public templates, by name."""
    trl = pytest.importorskip("trl", reason="needs trl's copies of public templates")
    files = sorted(Path(str(trl.__file__)).with_name("chat_templates").glob("*.jinja"))
    return {file.stem: file.read_text(encoding="utf-8") for file in files if not file.stem.endswith("_training")}


def tokenizer_of(name: str, source: str, folder: Path) -> tuple[Any, list[str]]:
    """A tokenizer with the special tokens of a template, and the tokens at which generation stops."""
    stops = next((ends for family, ends in ENDS.items() if name.startswith(family)), ["<|im_end|>"])
    special = sorted(
        {*re.findall(rf"<\|[\w▁]+\|?>|<[a-z_]+\|>|<{BAR}[\w▁]+{BAR}>|<(?:start|end)_of_turn>", source), *stops}
    )
    tokenizer = make_tokenizer(
        "chatml", chat_template=source, eos_token=stops[0], more=special, extra_special_tokens=special
    )
    ids = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    (folder / "config.json").write_text("{}")
    tokenizer.name_or_path = str(folder)
    return tokenizer, stops


def prompt(tokenizer: Any, messages: list[Message], tools: Any) -> str:
    """What the template writes before an answer; some join the arguments of calls as text, and take only null beside calls."""
    written = json.loads(json.dumps(messages))
    for message in written:
        for one in message.get("tool_calls", []):
            one["function"]["arguments"] = json.dumps(one["function"]["arguments"])
    null = [one | {"content": one["content"] or None} for one in written]
    for given in (messages, written, null):
        try:
            text = tokenizer.apply_chat_template(given, tools=tools, tokenize=False, add_generation_prompt=True)
        except TypeError:
            continue
        if all(
            one["function"]["arguments"]["city"] in text
            for message in messages
            for one in message.get("tool_calls", [])
        ):
            return str(text)
    raise AssertionError("not rendered")


def faults(rendered: Rendered, messages: list[Message], tools: Any, tokenizer: Any, stops: list[str]) -> list[str]:
    """What is wrong with the loss of a row that no gap explains."""
    found, text = [], rendered.text
    loss = ["".join(text[slice(*piece)] for piece in pieces or ()) for pieces in rendered.answers]
    (encoding,) = Encoder(tokenizer).encode([rendered])
    encoded = Encoder(tokenizer).collect([rendered], [encoding])
    by_token = "".join(
        tokenizer.decode(encoded.tokens[first:end].tolist()) + "\0" for _, first, end in encoded.spans.tolist()
    )
    if by_token != "".join(text[slice(*span)] + "\0" for span in rendered.spans):
        found.append(f"tokens {by_token!r}")
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    for index, own in zip(answers, loss, strict=True):
        message = messages[index]
        texts = [re.split(r"\s*</think>\s*", message["content"])[-1], message.get("reasoning_content", "")]
        texts += [one["function"]["arguments"]["city"] for one in message.get("tool_calls", [])]
        found += [f"{index} lacks {part}" for part in texts if part and part in text and part not in own]
        others = [str(other["content"]) for place, other in enumerate(messages) if place != index and other["content"]]
        found += [f"{index} has {part}" for part in others if part in own]
        ended = (*stops, "<|end|>") if index != answers[-1] else tuple(stops)  # gpt-oss ends earlier answers with it
        if own and not own.endswith(ended):
            found.append(f"{index} ends with {own[-20:]!r}")
    if rendered.answers[-1]:
        before = text[: rendered.answers[-1][0][0]]
        given = prompt(tokenizer, messages[: answers[-1]], tools)
        # A block of thoughts that the one or the other has is told by a warning of its own.
        if _BLOCK.sub("", before).rstrip() != _BLOCK.sub("", given).rstrip():
            found.append(f"generation prompt {given[-60:]!r}, and in training {before[-60:]!r}")
    return found


MOVED = {"diffusion_gemma", "gemma4_v5"}
"""Families that write the text beside calls behind their results, so that it follows a result and has no end."""


@table("row", ROWS)
def test_what_the_model_generates_carries_loss(row: str, tmp_path: Path) -> None:
    wrong = {}
    for name, source in templates().items():
        tokenizer, stops = tokenizer_of(name, source, tmp_path)
        messages = ROWS[row]
        example = Example(messages=messages, tools=TOOLS if any("tool_calls" in one for one in messages) else None)
        try:
            rendered = Renderer(tokenizer).render(example)
        except DataError:  # a template that refuses these roles
            continue
        gaps = {one.gap for one in missing(example, rendered, DEFAULT)}
        if gaps & {Gap.ANSWER, Gap.CALLS}:  # it takes lists of parts, or writes no calls
            continue
        assert (Gap.MOVED in gaps) == (row == "everything" and name in MOVED), name
        if Gap.MOVED in gaps:  # refused
            assert gaps == {Gap.MOVED}
            continue
        if Gap.NO_LOSS in gaps or (found := faults(rendered, messages, example.tools, tokenizer, stops)):
            wrong[name] = (found if Gap.NO_LOSS not in gaps else ["no loss"], rendered.text[-300:])
    assert not wrong, "\n".join(f"{name}: {value}" for name, value in wrong.items())
