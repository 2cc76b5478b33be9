"""An Ollama Modelfile for a GGUF file: the chat template in Go's template language, stop tokens and parameters. Pure."""

import json

from training.model_info.chat_template import Turns

_QUOTES = '"""'


def modelfile(file: str, *, context: int, turns: Turns | None, begin: str, end: str, chats: bool) -> str | None:
    """The Modelfile for `file`; None if Ollama cannot write the prompts that training used.

    `turns` are the parts of the chat template, `begin` and `end` the tokens that begin and end a text, `context` the
    tokens of prompt and answer together. Without `chats` a prompt is the text alone.
    """
    template = _template(turns, begin) if chats and turns else "{{ .Prompt }}"
    if chats and turns is None:
        return None
    lines = [f"FROM {file}", f"TEMPLATE {_QUOTES}{template}{_QUOTES}"]
    lines += [
        f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in _stops(turns if chats else None, end)
    ]
    return "\n".join([*lines, f"PARAMETER num_ctx {context}", "PARAMETER temperature 0"]) + "\n"


def _template(turns: Turns, begin: str) -> str:
    """Ollama puts the token that begins a text before the prompt itself."""
    start = _text(turns.start.removeprefix(begin))
    if turns.system:
        before, after = turns.system
        around = f"{_text(before.removeprefix(begin))}{{{{ .System }}}}{_text(after)}"
        start = f"{{{{ if .System }}}}{around}{{{{ else }}}}{start}{{{{ end }}}}"
    user, assistant = (
        f"{_text(before)}{{{{ .Content }}}}{_text(after)}" for before, after in (turns.user, turns.assistant)
    )
    roles = f'{{{{ if eq .Role "user" }}}}{user}{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}'
    return f"{start}{{{{ range .Messages }}}}{roles}{{{{ end }}}}{_text(turns.answer)}"


def _text(literal: str) -> str:
    """A text that Go's templates print as it is: quoted if it has a brace, which may begin an action, or a quote, which may end
    the template."""
    quoted = "{" in literal or '"' in literal
    return f"{{{{ {json.dumps(literal, ensure_ascii=False)} }}}}" if quoted else literal


def _stops(turns: Turns | None, end: str) -> list[str]:
    """The end token, and what the template writes after an answer."""
    after = turns.assistant[1].strip() if turns else ""
    return list(dict.fromkeys(stop for stop in (end, after) if stop and "\n" not in stop))
