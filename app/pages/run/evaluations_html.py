"""The part "Evaluations" of the page Run as HTML. Pure."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.documents.results.answers import differences
from app.documents.results.evaluations import Row
from app.pages.common.html import ago, bar, each, status_dot, table
from app.words import evaluations as words
from app.words.numbers import plural
from training.units import NONE

_HEADS = (
    "Evaluation",
    "Weights",
    "Data",
    "Scores, with 95% intervals",
    "Against another evaluation",
    "In the training rows",
)
_CLASSES = {"better": "good", "worse": "bad"}


def listing(found: Sequence[dict[str, Any]], run_id: str) -> Markup:
    """The table of a run's evaluations, newest first; the empty state without them."""
    if not found:
        own = Markup("<code>lathe evaluate {} --data FILE --metric FILE.py:FUNCTION</code>").format(run_id)
        text = Markup('<p class="note">No evaluations yet. Choose a data set above. With a metric of your own: {}</p>')
        return text.format(own)
    template = '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class="overlap">{}</td></tr>'
    return table("evaluations", _HEADS, each(template, [_evaluation(one) for one in found]))


def answers(listed: Sequence[Row], *, against: bool) -> Markup:
    """The rows of an evaluation; with `against`, the other answer with the differing words marked, and the difference."""
    if not listed:
        return Markup('<p class="note">This evaluation has no answers on this machine.</p>')
    scores = list(dict.fromkeys(name for row in listed for name in row.scores))
    other = ("Difference",) if against else ()
    texts = ("Prompt", "Expected", *(("Other answer",) if against else ()), "Answer")
    body = Markup("").join(_row(row, scores, against=against) for row in listed)
    heads = ("Row", *map(words.label, scores), *other, *texts)
    return table(f"answers rows-of-evaluation {'against' if against else ''}", heads, body)


def place(text: str, evaluation_id: str) -> Markup:
    """Which rows are shown, and the download of all."""
    link = Markup(' · <a href="/api/evaluations/{}/answers.jsonl" download>Download all answers</a>').format(
        evaluation_id
    )
    return Markup('<p class="note">{}{}</p>').format(text, link if evaluation_id else "")


def _evaluation(found: dict[str, Any]) -> tuple[Any, ...]:
    name = Markup('<span class="mono">{}</span><span class="verdict">{}</span>').format(
        found["id"], ago(found["created_at"])
    )
    return name, words.source(found), words.data(found), _scores(found), _against(found), _overlap(found["overlap"])


def _scores(found: dict[str, Any]) -> Markup:
    summary = found["summary"]
    if found["error"]:
        return Markup('<span class="bad">{}</span>').format(words.problem(found["error"]))
    if not summary:
        share = found["done"] / found["total"] if found["total"] else None
        running = (
            bar(share, label="progress of the evaluation", classes="running") if found["status"] == "running" else ""
        )
        return status_dot(found["status"], words.progress(found)) + running
    if "lm_eval" in summary:
        return each("<div>{} {}: {}</div>", words.lm_eval(summary))
    engine = Markup('<div class="note">{}</div>').format(words.engine(summary)) if "engine" in summary else ""
    if not summary["metrics"]:
        answered = plural(summary["rows"], "prompt")
        return Markup('<span class="faint">{} answered</span>{}').format(answered, engine)
    template = "<div><b>{}</b> {}</div>"
    return (
        each(
            template,
            [(words.label(name), words.score(value, summary["rows"])) for name, value in summary["metrics"].items()],
        )
        + engine
    )


def _against(found: dict[str, Any]) -> Markup:
    shown = words.verdicts(found)
    if not shown:
        return Markup('<span class="faint">{}</span>').format(NONE)
    head = Markup('<div class="faint">{} ({})</div>').format(
        found["against"]["evaluation"], words.source(found["against"])
    )
    lines = [(_CLASSES.get(text.partition(" ")[0], ""), words.label(name), text) for name, text in shown]
    return head + each('<div class="{}">{}: {}</div>', lines)


def _overlap(found: dict[str, Any] | None) -> Markup:
    if not found or "problem" in found:
        return Markup('<span class="faint" title="{}">{}</span>').format(words.overlap(found), NONE)
    counted = f"{found['equal']:,} equal, {found['same_prompt']:,} same prompt, "
    counted += f"{found['shared_words']:,} with {found['words']} words"
    some = found["equal"] or found["same_prompt"] or found["shared_words"]
    return Markup('<span class="{}" title="{}">{}</span>').format(
        "warned" if some else "faint", words.overlap(found), f"{counted} of {found['rows']:,}" if some else "none"
    )


def _row(row: Row, scores: Sequence[str], *, against: bool) -> Markup:
    numbers = each(
        '<td class="number">{}</td>',
        [(NONE if (value := row.scores.get(name)) is None else f"{value:.4g}",) for name in scores],
    )
    if against:
        numbers += Markup('<td class="number {}">{}</td>').format(
            "" if not row.difference else "good" if row.difference > 0 else "bad",
            NONE if row.difference is None else f"{row.difference:+.4g}" if row.difference else "0",
        )
    texts: list[Any] = [row.prompt, row.expected]
    if against:
        old, new = differences(row.other or "", row.answer)
        texts += [_marked(old, "del"), _marked(new, "ins")]
    else:
        texts.append(row.answer)
    if row.reply:
        texts[-1] = Markup('{}<span class="verdict">Judge: {}</span>').format(texts[-1], row.reply)
    cells = each('<td><div class="text">{}</div></td>', [(text,) for text in texts])
    return Markup('<tr><td class="number">{}</td>{}{}</tr>').format(f"{row.row:,}", numbers, cells)


def _marked(parts: Sequence[tuple[bool, str]], tag: str) -> Markup:
    marked = {"del": Markup("<del>{}</del>"), "ins": Markup("<ins>{}</ins>")}[tag]
    return Markup("").join(marked.format(text) if differs else Markup("{}").format(text) for differs, text in parts)
