"""The faults of a rendered row. Each function yields the findings of one fault."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from training.chat.reasoning import split
from training.chat.rendering_settings import MARKS, ChatSettings, without_fields
from training.config.choices import LossOn
from training.model_info.chat_template import DATE, NO_DATE
from training.template_check.findings import ERROR, WARNING, Fault, Finding
from training.template_check.gap_findings import OWN_TEMPLATE
from training.template_check.rendered_rows import SampleRow, marked
from training.tokens.coverage import shortened
from training.tokens.frames import EMPTY_BLOCK

_SHOWN = 8  # tokens
_END_WITHIN = 64  # tokens after an answer in which its end token may follow
_OPEN_BLOCK = re.compile(r"<\w*(?i:think|thought|reason)\w*>\s*\Z")


@dataclass(frozen=True)
class Subject:
    """What the rows are checked against: the tokenizer, the settings of their rendering, and the tokens that end a generation."""

    tokenizer: PreTrainedTokenizerBase
    settings: ChatSettings
    end_ids: frozenset[int]
    special_ids: frozenset[int]
    max_length: int

    def texts(self, ids: list[int]) -> tuple[str, ...]:
        """The texts of some tokens, the first ones of many."""
        return tuple(self.tokenizer.decode([token]) for token in ids[:_SHOWN])


Check = Callable[[SampleRow, Subject], Iterator[Finding]]


def doubled_bos(row: SampleRow, subject: Subject) -> Iterator[Finding]:
    bos = subject.tokenizer.bos_token_id
    if bos is not None and row.ids[:2] == [bos, bos]:
        fix = (
            "Write it in the template or let the tokenizer add it, not both; the text of a row must not begin with it."
        )
        message = f"The row begins with two {subject.tokenizer.bos_token} (BOS) tokens."
        yield Finding(Fault.DOUBLED_BOS, ERROR, message, fix, row.number, tokens=subject.texts(row.ids))


def end_token(row: SampleRow, subject: Subject) -> Iterator[Finding]:
    """An answer whose end token has no loss, is not written, or is not the one at which generation stops."""
    for place, answer in enumerate(row.answers):
        if not answer.weight or not answer.tokens:
            continue
        end = answer.tokens[1]
        shown = subject.texts(row.ids[max(0, end - 3) : end + 3])
        last = row.ids[end - 1]
        if last in subject.end_ids:
            continue
        if row.templated and last in subject.special_ids:
            if answer is not row.answers[-1] and row.ids[(row.answers[-1].tokens or (0, 0))[1] - 1] in subject.end_ids:
                continue  # the template ends the last answer, which is the one that is generated, with another token
            yield _other_end(row, subject, last, shown)
            continue
        if not row.templated:
            continue
        following = _next_special(row, subject, end, final=place == len(row.answers) - 1)
        if following is not None:
            token = subject.texts([following])[0]
            message = f"The end token {token} after the answer has no loss: the model does not learn to stop."
            fix = f"Write it directly after the answer: {{{{ message['content'] }}}}{token}. {OWN_TEMPLATE}"
            yield Finding(Fault.END_MASKED, ERROR, message, fix, row.number, tokens=shown)
        else:
            message = "The template writes no end token after the answer: the model does not learn to stop."
            fix = f"Write {{{{ eos_token }}}} after the answer. {OWN_TEMPLATE}"
            yield Finding(Fault.END_NEVER_WRITTEN, ERROR, message, fix, row.number, tokens=shown)


def _next_special(row: SampleRow, subject: Subject, end: int, *, final: bool) -> int | None:
    """The end token that follows an answer before the next turn; None if there is none."""
    special = next((token for token in row.ids[end : end + _END_WITHIN] if token in subject.special_ids), None)
    return special if special is not None and (special in subject.end_ids or final) else None


def _other_end(row: SampleRow, subject: Subject, last: int, shown: tuple[str, ...]) -> Finding:
    written, stops = subject.texts([last])[0], " or ".join(subject.texts(sorted(subject.end_ids))) or "no token"
    message = (
        f"The template ends an answer with {written}, and generation stops at {stops}, which the template never writes "
        "after an answer."
    )
    fix = (
        f"Add {written} to eos_token_id in the model's generation_config.json, or end answers with {{{{ eos_token }}}}."
    )
    return Finding(Fault.END_NEVER_WRITTEN, WARNING, message, fix, row.number, tokens=shown)


def prompt(row: SampleRow, subject: Subject) -> Iterator[Finding]:
    """A prompt in training that is not the one at inference, or that differs by an empty thinking block."""
    if row.prompt is None or row.generation is None or not row.answers[-1].weight:
        return
    answer = row.answers[-1]
    if answer.tokens and _is_heading(row.ids[answer.tokens[0]], subject):
        shown = subject.texts(row.ids[answer.tokens[0] :])
        message = "The template writes no generation prompt: the heading of the answer carries loss."
        fix = f"Write the heading of an answer under {{% if add_generation_prompt %}}. {OWN_TEMPLATE}"
        yield Finding(Fault.PROMPT_DIFFERS, WARNING, message, fix, row.number, tokens=shown)
        return
    trained, asked = _ids(row.prompt, subject), _ids(row.generation, subject)
    if row.prompt != row.generation:
        rest = row.prompt.removeprefix(row.generation)
        if row.prompt.startswith(row.generation) and EMPTY_BLOCK.fullmatch(rest):
            yield _empty_block(row, subject, rest)
            return
    elif not answer.tokens or row.ids[: answer.tokens[0]] == asked or row.example.messages is None:
        return
    else:
        trained = row.ids[: answer.tokens[0]]
    place = next((index for index, pair in enumerate(zip(trained, asked, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(trained), len(asked)) if place is None else place
    start = max(0, place - 2)
    written = "".join(subject.texts(asked[start:])) or "nothing more"
    differs = f"at token {place + 1:,} inference has {written!r}"
    message = f"The tokens before the answer are not those of the generation prompt: {differs}."
    thought = " Reasoning belongs in reasoning_content." if _OPEN_BLOCK.search(row.generation) else ""
    fix = f"Write the same text before an answer and under add_generation_prompt.{thought} {OWN_TEMPLATE}"
    shown = subject.texts(row.ids[start : start + _SHOWN])
    yield Finding(Fault.PROMPT_DIFFERS, WARNING, message, fix, row.number, tokens=shown)


def _is_heading(token: int, subject: Subject) -> bool:
    """True if an answer begins with a special token that is neither an end token nor the start of reasoning."""
    begins = token in subject.special_ids and token not in subject.end_ids
    return begins and not re.search(r"(?i)think|thought|reason|tool", subject.texts([token])[0])


def _empty_block(row: SampleRow, subject: Subject, block: str) -> Finding:
    message = (
        "The template puts an empty thinking block before the answer, and the generation prompt has none: at inference the model "
        "thinks first, which it does not learn here."
    )
    fix = (
        "Set chat_template_kwargs to enable_thinking=false, in training and at inference, or add reasoning_content to the "
        "answers."
    )
    old = subject.settings.arguments
    changes = {"chat_template_kwargs": f"{old}, enable_thinking=false" if old else "enable_thinking=false"}
    if "enable_thinking" in (old or ""):
        changes = {}
    shown = subject.texts(_ids(block, subject))
    return Finding(
        Fault.EMPTY_THINKING,
        WARNING,
        message,
        fix,
        row.number,
        tokens=shown,
        setting="chat_template_kwargs",
        changes=changes,
    )


def answers(row: SampleRow, subject: Subject) -> Iterator[Finding]:  # noqa: ARG001 - all checks have the same parameters
    """An answer whose white space the template trims."""
    if not row.templated:
        return
    for answer in row.answers:
        content = split(answer.message)[1]["content"]
        if not content.strip() or not answer.weight:
            continue
        part = answer.text(row.text)
        if content.strip() not in part:  # it is missing, which is another fault
            continue
        stripped = content.rstrip("\n")
        only_end = (
            stripped in part and stripped == content.strip()
        )  # a line break before the end token is all that is missing
        if content not in part and not only_end:
            message = "The template trims white space of the answer: the model does not learn to write it."
            fix = "Remove the white space from the data, or trim from the template (| trim, .strip())."
            yield Finding(Fault.ANSWER_TRIMMED, WARNING, message, fix, row.number, tokens=(shortened(content),))
            return


def own_tokens(row: SampleRow, subject: Subject) -> Iterator[Finding]:
    """An answer whose own tokens carry no loss, or whose first word does not; and a first token that also holds the end of the
    prompt."""
    for start, end in _answer_texts(row):
        own = [place for place, (first, last) in enumerate(row.encoding.offsets) if max(first, start) < min(last, end)]
        if not own:
            continue
        shown = subject.texts(row.ids[max(0, own[0] - 2) : own[0] + 3])
        word = [place for place in own if row.encoding.offsets[place][0] < _word_end(row.text, start, end)]
        if not any(row.weights[place] for place in own):
            message = "None of the answer's own tokens carries loss: the model does not learn it."
            fix = f"Write the answer as text of its own between the generation prompt and the end token. {OWN_TEMPLATE}"
            yield Finding(Fault.ANSWER_MASKED, ERROR, message, fix, row.number, tokens=shown)
        elif not all(row.weights[place] for place in word):
            message = "The first word of the answer carries no loss."
            fix = f"Write the answer directly after the generation prompt. {OWN_TEMPLATE}"
            yield Finding(Fault.ANSWER_MASKED, WARNING, message, fix, row.number, tokens=shown)
        elif not row.templated and row.encoding.offsets[own[0]][0] < start:
            message = (
                "The first token of the answer also holds the end of the prompt, which at inference has other tokens."
            )
            fix = "Remove the white space at the end of the prompts, or move it to the beginning of the answers."
            yield Finding(Fault.PROMPT_DIFFERS, WARNING, message, fix, row.number, tokens=shown, setting="data")


def _answer_texts(row: SampleRow) -> Iterator[tuple[int, int]]:
    """The characters of each answer's text that is to carry loss."""
    example = row.example
    if example.messages is None:
        if example.answered and example.weight and example.prompt:
            yield len(example.prompt), len(row.text)
        return
    for answer in row.answers:
        content = split(answer.message)[1]["content"].strip()
        if answer.weight and answer.pieces and content:
            start = row.text.find(content, answer.pieces[0][0], answer.pieces[-1][1])
            if start >= 0:  # else it is missing, which is another fault
                yield start, start + len(content)


def _word_end(text: str, start: int, end: int) -> int:
    """The end of the first word of an answer."""
    word = re.compile(r"\s*\S+").match(text, start, end)
    return word.end() if word else end


def marks(row: SampleRow, subject: Subject) -> Iterator[Finding]:
    """Turns that the data marks as without loss, and that carry loss."""
    settings = subject.settings
    if settings.loss_on is not LossOn.ALL or settings.weight_field:
        return
    trained = [answer.message for answer in row.answers if answer.weight]
    if name := marked([*trained], MARKS):
        graded = any(answer.message.get(name) not in (None, True, False, 0, 1) for answer in row.answers)
        changes = {"weight_field": name} if graded else {"loss_on": "field", "loss_field": name}
        message = f"A message says with its field {name} that it carries no loss, and loss_on is all."
        fix = f"Set weight_field to {name}." if graded else f"Set loss_on to field and loss_field to {name}."
        yield Finding(Fault.MARKS_IGNORED, WARNING, message, fix, row.number, setting="loss_on", changes=changes)


def _ids(text: str, subject: Subject) -> list[int]:
    return list(subject.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def current_date(row: SampleRow, subject: Subject) -> Iterator[Finding]:
    """A template that writes the date on which it renders."""
    if not row.templated or DATE not in str(subject.tokenizer.chat_template):
        return
    arguments = {**subject.settings.template_arguments, **NO_DATE}
    try:
        subject.tokenizer.apply_chat_template(
            without_fields(row.messages, subject.settings), tools=row.example.tools, tokenize=False, **arguments
        )
    except TypeError:  # it called what is no function now
        message = "The template writes the current date: rows have the date of training, and prompts that of their use."
        given = "Set chat_template_kwargs to date_string=DATE, in training and at inference"
        fix = f"{given}, or use a template without a date (chat_template)."
        if "date_string" not in str(subject.tokenizer.chat_template):
            fix = "Use a template without a date (chat_template)."
        yield Finding(Fault.CURRENT_DATE, WARNING, message, fix, row.number)


ROW_CHECKS: tuple[Check, ...] = (
    doubled_bos,
    end_token,
    prompt,
    answers,
    own_tokens,
    marks,
    current_date,
)
