"""The faults of rows whose texts are missing in their rendering, or whose answers carry no loss."""

from collections.abc import Callable, Collection, Iterator

from training.template_check.findings import ERROR, WARNING, Fault, Finding
from training.tokens.coverage import Gap, GapCount

OWN_TEMPLATE = "Give a template of your own (chat_template), or correct the model's."
Texts = tuple[Fault, str, str, str]


def gap_findings(counts: dict[Gap, GapCount], known: Collection[Fault] = ()) -> Iterator[Finding]:
    """A finding for each gap, with the first row and the number of rows.

    `known` are faults found in the tokens, which say more about a missing end token.
    """
    for gap, count in counts.items():
        if gap is Gap.NO_END and {Fault.END_MASKED, Fault.END_NEVER_WRITTEN} & {*known}:
            continue
        fault, severity, message, fix = _FINDINGS[gap](count.place)
        changes = {"loss_on": "last"} if gap is Gap.EARLIER_REASONING else {}
        setting = "loss_on" if changes else "chat_template"
        shown = (count.text,) if count.text else ()
        yield Finding(fault, severity, message, fix, count.first, count.rows, shown, setting, changes)


def _role(name: str) -> Callable[[str], Texts]:
    return lambda place: (
        Fault.WRONG_ROLE,
        ERROR,
        f"The template writes nothing for a message with the role {name!r} ({place}).",
        f"Use a template that handles {name!r}; it may test for another name.",
    )


_FINDINGS: dict[Gap, Callable[[str], Texts]] = {
    Gap.SYSTEM: lambda _: (
        Fault.SYSTEM_DROPPED,
        ERROR,
        "The template drops the system message.",
        "Move it into the first user message, or use a template that writes it.",
    ),
    Gap.USER: _role("user"),
    Gap.TOOL: _role("tool"),
    Gap.ANSWER: lambda place: (
        Fault.ANSWER_TRIMMED,
        ERROR,
        f"The template omits or changes the answer in {place}.",
        f"Write {{{{ message['content'] }}}} unchanged. {OWN_TEMPLATE}",
    ),
    Gap.CALLS: lambda place: (
        Fault.TOOLS_DROPPED,
        ERROR,
        f"The template does not write {place}: the model does not learn to call tools.",
        "Use a template that writes tool_calls (chat_template), or write the calls into the content of the messages.",
    ),
    Gap.TOOLS: lambda _: (
        Fault.TOOLS_DROPPED,
        ERROR,
        "The template does not write the tools of the row (column tools).",
        "Use a template that writes tools (chat_template), or write them into the system message and remove the column.",
    ),
    Gap.REASONING: lambda place: (
        Fault.REASONING_DROPPED,
        WARNING,
        f"The template does not write the reasoning of {place}: the model learns to answer without it.",
        "Use a template that writes reasoning_content, or write it into the content, between <think> and </think>.",
    ),
    Gap.EARLIER_REASONING: lambda place: (
        Fault.EMPTY_THINKING,
        WARNING,
        f"The answer in {place} carries loss without its reasoning, which is removed from earlier turns: the model learns to "
        "answer without it.",
        "Set loss_on to last, or reasoning_history to keep.",
    ),
    Gap.NO_LOSS: lambda place: (
        Fault.ANSWER_MASKED,
        ERROR,
        f"The answer in {place} carries no loss: it cannot be told apart from the text around it.",
        f"Write an answer between a generation prompt and an end token. {OWN_TEMPLATE}",
    ),
    Gap.NO_END: lambda _: (
        Fault.END_NEVER_WRITTEN,
        ERROR,
        "The template writes no end token after the answer: the model does not learn to stop.",
        f"Write {{{{ eos_token }}}} after the answer. {OWN_TEMPLATE}",
    ),
}
