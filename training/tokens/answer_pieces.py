"""The pieces of answers with calls, between which a template writes results or headings. No torch."""

from collections.abc import Iterator

from training.data.example import Message, Row
from training.tokens.changed_messages import another, difference, each_changed
from training.tokens.rendered import Pieces, Span
from training.tokens.template_text import TemplateText
from training.tokens.turn_ends import TurnEnds


class AnswerPieces:
    """Divides answers of chats that one template writes."""

    def __init__(self, text: TemplateText, ends: TurnEnds) -> None:
        self._text, self._ends = text, ends

    def of(self, messages: list[Message], index: int, tools: list[Row] | None, text: str, span: Span) -> Pieces:
        """The pieces of an answer with calls: the template may write their results, or the heading of a turn, between its
        reasoning, its calls and its text. Each part is found by changing it alone."""
        if not messages[index].get("tool_calls"):
            return (span,)

        def region(place: int, other: Message) -> Span | None:
            changed = self._text([*messages[:place], other, *messages[place + 1 :]], tools)
            return difference(text, changed) if changed != text else None

        end = next(
            (place for place in range(index + 1, len(messages)) if messages[place]["role"] != "tool"), len(messages)
        )
        results = [found for place in range(index + 1, end) if (found := region(place, another(messages[place])))]
        parts = [(found, opens) for other, opens in each_changed(messages[index]) if (found := region(index, other))]
        first, last = span[0], max([span[1], *(part[1] for part, _ in parts)])
        between = sorted(one for one in results if first < one[1] and one[0] < last)
        heading = self._text.heading(messages[:index], tools)
        if not between and span[1] == last:
            return tuple(_without(heading, text, span))
        following = messages[end]["content"].strip() if end < len(messages) else ""
        limit = text.find(following, last) if following else len(text)
        divided = self._between(text, first, parts, [*between, (limit, limit)])
        return tuple(piece for one in divided for piece in _without(heading, text, one))

    def _between(self, text: str, begin: int, parts: list[tuple[Span, bool]], others: list[Span]) -> Iterator[Span]:
        """The pieces of an answer from `begin`, whose `parts` are divided by `others`; each part with True if a special token
        before it belongs to it."""
        marks = [(match.start(), match.end()) for match in self._ends.special.finditer(text, begin)]
        for number, (before, after) in enumerate(others):
            mine = [part for part in parts if begin <= part[0][0] and part[0][1] <= before]
            if mine:
                (start, _), opens = min(mine)
                gap = [mark for mark in marks if begin <= mark[0] and mark[1] <= start] if number else []
                first = gap[-1][0 if opens else 1] if gap else begin
                last = max(part[1] for part, _ in mine)
                end = self._ends.usual.search(
                    text, last, before
                )  # behind text, another special token may open the next turn
                calls = max(mine)[1]
                yield first, self._ends.after(text, last, before, calls=True) if calls else end.end() if end else last
            begin = after


def _without(heading: str, text: str, span: Span) -> Iterator[Span]:
    """The parts of a span between the headings of a turn."""
    begin, end = span
    while heading.strip() and (place := text.find(heading, begin, end)) >= 0:
        if place > begin:
            yield begin, place
        begin = place + len(heading)
    if begin < end:
        yield begin, end
