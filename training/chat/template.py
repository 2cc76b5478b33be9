"""The source of a chat template: named ones, reading a file, its syntax, and the line of an error. No torch.

`python -m training.chat.template` checks the syntax of the text on standard input: Jinja may take seconds for a long one.
"""

import re
from pathlib import Path
from types import TracebackType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.errors import DataError, answer_json
from training.files import read_regular

LARGEST_BYTES = 256 * 1024
LARGEST_TEXT = 20_000_000
"""The longest text, in characters, that a template may make of a row."""
LONGEST_REASON = 500
"""Characters of what a template says when it refuses a row."""
SHORT_TEXT = 2_048
"""The longest template, in characters, whose syntax is checked at once: at most 50 ms, whatever it is."""
NOT_VALID = "The chat template is not valid Jinja: {}"
FIX = "Correct that line, or clear chat_template to use the model's."
_SOURCE = re.compile(r"\{[{%#]|\n")
_FRAMES = ("<template>", "<unknown>")  # how Jinja names a template without a file


class TemplateLimit(DataError):  # noqa: N818
    """The template takes too much time or memory, or writes too much: other rows will fare the same."""


class _Generation(Extension):
    """transformers' block `generation`, which marks the answers; here only its syntax counts."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's declaration

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Unevaluated(CodeGenerator):
    """Compiles without computing constant expressions, which Jinja does while it compiles: `{{ 'a' * 10**10 }}` takes 10 GB."""

    def _output_child_to_const(self, *_: Any) -> str:
        raise nodes.Impossible

    def visit_EvalContextModifier(self, node: nodes.EvalContextModifier, frame: Any) -> None:  # noqa: N802 - Jinja's name
        for keyword in node.options:
            self.visit(keyword.value, frame)


def is_source(given: str) -> bool:
    """True if the setting `chat_template` is a template's text, False if it is the path of a file."""
    return bool(_SOURCE.search(given))


def from_file(path: Path) -> str:
    """The template in a file. Raises OSError or ValueError as
    `text_in`, and ValueError if it is not a template."""
    text = text_in(path)
    if not is_source(text):
        raise ValueError("is not a Jinja template: it has no {{ }} and no {% %}")
    return text


def text_in(path: Path) -> str:
    """The text of a file. Raises OSError if the file cannot be read, and ValueError if it is too large, or not text in UTF-8."""
    if path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"is larger than {LARGEST_BYTES // 1024} KiB")
    try:
        return read_regular(path, LARGEST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not text in UTF-8") from None


def syntax_problem(source: str) -> str | None:
    """What is wrong with a template's syntax, with the line; None if Jinja accepts it. Computes nothing of it."""
    if len(source) > LARGEST_BYTES:
        return f"has {len(source):,} characters; at most {LARGEST_BYTES:,} are possible."
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False
    )
    environment.code_generator_class = _Unevaluated
    try:
        environment.compile(environment.parse(source), raw=True)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message or error}"
    except TemplateError as error:  # an unknown filter or test
        return str(error)
    except RecursionError:
        return "is nested too deeply."
    return None


def line_of(error: BaseException) -> int | None:
    """The line of the template at which it raised an error; None if it is not known."""
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while isinstance(trace, TracebackType):
        if trace.tb_frame.f_code.co_filename in _FRAMES:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def rendering_error(error: Exception) -> DataError:
    """The error for a row that the template cannot render: what the template says, its line and the fix."""
    line = line_of(error)
    where = f" (line {line} of the template)" if line else ""
    if isinstance(error, MemoryError):
        message = f"is rendered by the model's chat template to more text than fits in memory{where}."
        return TemplateLimit(message, "Fix chat_template in the model's folder.")
    if isinstance(error, TimeoutError):
        message = f"cannot be rendered by the model's chat template{where}: {error}."
        return TemplateLimit(message, "Check the template for an endless loop.")
    said = str(error)[:LONGEST_REASON].rstrip(".") or type(error).__name__
    fix = "Change the roles or their order."
    if line and not re.search(r"\brole", said, re.IGNORECASE):
        fix = f"Change line {line} of the template, or the row."
    return DataError(f"cannot be rendered by the model's chat template: {said}{where}.", fix)


def too_long(text: str) -> DataError | None:
    """The error for a row that the template renders to far too much text."""
    if len(text) <= LARGEST_TEXT:
        return None
    message = f"is rendered by the chat template to {len(text):,} characters; at most {LARGEST_TEXT:,} are possible."
    return TemplateLimit(message, "Check the template for a loop that repeats text.")


NAMED = {
    name: (Path(__file__).parent / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    for name in ("chatml", "llama3", "zephyr", "gemma", "mistral")
}
"""By name: chatml (Qwen), llama3 (Llama 3), zephyr, gemma (Gemma 1 to 3), mistral. Gemma's and Mistral's write a system message
into the first message of the user."""


if __name__ == "__main__":
    answer_json(lambda source: {"syntax": syntax_problem(source)})
