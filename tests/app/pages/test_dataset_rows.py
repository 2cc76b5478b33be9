"""The tab Rows of a data set's page: pages, searches and values in full, as HTML. No server."""

from pathlib import Path

import pytest
from dataset_parts import body

from app.pages.dataset.state import ViewState
from worker.datasets.row_search import Search

SCRIPT = "<script>alert(1)</script>"


def row(number, **values):
    return {"row": number, "values": values, "cut": []}


def page_html(rows, columns, view, total, reachable):
    """The page of rows that contains the view's row."""
    first, last = rows[0]["row"], rows[-1]["row"]
    moves = [("rows-next", "Next →", view.link(row=last + 1)), ("rows-previous", "← Previous", None)]
    document = {"columns": columns, "rows": total}
    found = {"first": first, "last": last, "reachable": reachable, "moves": moves, "search": None}
    return body(view, document=document, rows=rows, **found)


def found_html(search, columns, view, total):
    found = {"rows": search.matches, "search": search, "state": search.state, "count": len(search.matches)}
    return body(view, document={"columns": columns, "rows": total}, first=1, moves=[], **found)


def test_rows_are_shown_as_text_conversation_or_json_and_escaped():
    rows = [row(1, a=SCRIPT, b=[{"from": "human", "value": "hi"}])]
    for view in (ViewState(id="x"), ViewState(id="x", whole=1)):
        html = page_html(rows, ["a", "b"], view, 1, 1)
        assert SCRIPT not in html and "<b>human</b> hi" in html
    html = page_html([row(1, a=None, b={"x": 1})], ["a", "b"], ViewState(id="x"), 1, 1)
    assert ">none</span>" in html and "&#34;x&#34;: 1" in html


def test_a_page_of_rows_counts_from_1_links_to_tokens_and_marks_the_row_that_was_asked_for():
    rows = [row(number, a=f"text {number}") for number in range(1226, 1251)]
    html = page_html(rows, ["a"], ViewState(id="x", row=1234), 5000, 5000)
    assert "Rows 1,226 to 1,250 of 5,000" in html
    assert '<tr id="row-1234" class="marked">' in html and html.count('class="marked"') == 1
    assert 'href="?id=x&amp;tab=tokens&amp;row=1234"' in html
    assert 'id="rows-next" href="?id=x&amp;row=1251"' in html and 'off">← Previous</span>' in html


def test_a_long_value_is_shown_in_full_on_request_and_an_unreadable_row_has_its_problem():
    rows = [row(1, a="word " * 200), row(2, a="short"), {**row(3), "problem": "is not valid JSON.", "fix": "Mend it."}]
    html = page_html(rows, ["a"], ViewState(id="x"), 3, 3)
    assert html.count("show all") == 1 and "whole=1" in html and "is not valid JSON.</b> Mend it." in html
    whole = page_html(rows, ["a"], ViewState(id="x", whole=1), 3, 3)
    assert "word " * 199 in whole and "show less" in whole


def test_a_file_that_pages_do_not_reach_the_end_of_says_so():
    html = page_html([row(1, a="b")], ["a"], ViewState(id="x"), 900_000, 200_000)
    assert "Pages show this file up to row 200,000; a search reads all of it." in html
    assert "Pages show" not in (page_html([row(1, a="b")], ["a"], ViewState(id="x"), 1, 1))


@pytest.mark.parametrize(
    ("state", "values", "expected"),
    [
        ("running", {"read": 500}, ["500 of 1,000 rows searched", "stop-search", "No row found so far."]),
        ("stopped", {"read": 500}, ["stopped at row 500 of 1,000", "Search again"]),
        ("failed", {"problem": "The file is damaged."}, ["The file is damaged.", "Search again"]),
        ("done", {}, ["No row contains “&lt;script&gt;"]),
        ("done", {"more": True, "read": 700, "matches": [row(3, a="b")]}, ["More than 1 row", "ended at row 700"]),
    ],
)
def test_a_search_shows_its_progress_and_how_it_ended(state, values, expected):
    search = Search(Path("x.jsonl"), SCRIPT, state=state, **values)
    html = found_html(search, ["a"], ViewState(id="x", search=SCRIPT), 1000)
    assert SCRIPT not in html
    assert [words for words in expected if words not in html] == []
