"""The parts of a data set's page: the state in the address, tokens, lengths, batches, mapping, lists. No server."""

from dataclasses import dataclass
from html import unescape
from urllib.parse import parse_qsl

import numpy as np
import pytest
from dataset_parts import body, parts

from app.format.dataset_text import share
from app.format.rows import visible
from app.pages.common.mapping import KINDS, for_kind, kind_of, missing_roles, partial, paths
from app.pages.dataset.state import ViewState
from app.pages.dataset.tokens import counts, curve, pieces
from app.web.templating import PARTS

SCRIPT = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Piece:
    id: int
    text: str
    trained: bool = False
    cut: bool = False
    special: bool = False


def batch(**values):
    return {"epoch": 0, "step": 7, "rank": 1, "micro": 2, "rows": [3, 12], "longest": 90, "tokens": 192} | values


def tokens_shown(tokens, view, rows=9):
    shown = {"tokens": tokens, "counts": counts(tokens), "pieces": pieces(tokens), "rows": rows, "moves": []}
    return body(ViewState(tab="tokens", **view), **shown)


def lengths_shown(view, points, **report):
    tokens = {"median": 100, "p95": 1000, "max": 1000, "total": 1110}
    usual = {"tokens": tokens, "longest_rows": [], "scripts": [], "duplicate_rows": 0, "near_duplicate_rows": 0}
    usual |= {
        "held_out_rows": 5,
        "leaked_rows": 0,
        "leaked_rows_ungrouped": 3,
        "duplicate_examples": [],
        "near_duplicate_examples": [],
        "empty_rows": 0,
    }
    empty = report.pop("empty_examples", [])
    loss = points.at(view.max_length)
    return body(view, report=usual | report, empty_examples=empty, curve=points, loss=loss, losses=[loss])


def batches_shown(view, *batches, padding=0.0, packing=0.0):
    report = {"worst_batches": list(batches), "problem": "", "padding_waste": padding, "packing_waste": packing}
    return body(ViewState(tab="batches", **view), report=report)


def columns_shown(mapping, kind="prompt", preview=(), **values):
    usual = {
        "mapping": mapping,
        "line": ", ".join(f"{role}={path}" for role, path in mapping.items()),
        "kind": kind,
        "kinds": [],
        "roles": KINDS[kind][1],
        "missing": missing_roles(mapping, kind),
        "paths": ["a", "b"],
        "preview": list(preview),
    }
    return body(ViewState(tab="columns", id="ab"), **usual | values)


POINTS = curve(np.array([10, 100, 1000], np.int32), np.array([5, 50, 900], np.int32), [50, 64, 2000])


def test_a_view_survives_its_address_which_omits_defaults():
    view = ViewState(
        id="ab", tab="batches", model="static/starter", max_length=300, row=7, epochs=0.5, columns="text=a"
    )
    assert ViewState.of(parse_qsl(view.link().removeprefix("?"))) == view
    assert ViewState(id="ab").link() == "?id=ab"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", "7"),
        ("max_length", "many"),
        ("tab", "magic"),
        ("row", "-1"),
        ("epochs", "0"),
        ("epochs", "nan"),
        ("seed", "1.5"),
    ],
)
def test_an_invalid_address_keeps_the_default(name, value):
    pairs = [("id", "ab"), (name, value)]
    assert ViewState.of(pairs) == ViewState(id="ab")


def test_an_invalid_number_is_named_and_the_previous_one_stays():
    pairs = [("max_length", "64"), ("max_length", "<b>"), ("row", "12"), ("row", "-1"), ("epochs", "0.5"), ("seed", "")]
    view = ViewState.of(pairs)
    assert (view.max_length, view.row, view.epochs) == (64, 12, 0.5)
    length, row = map(str, view.problems(pairs))
    assert length == "Max length: '<b>': is not a whole number (8 to 1048576). The page shows 64."
    assert row == "Row: '-1': is not a whole number (1 or more). The page shows 12."
    tools = parts(view, problems=view.problems(pairs), rows=[], first=1, last=1, reachable=20, moves=[], search=None)[
        "tools"
    ]
    assert "Max length: &#39;&lt;b&gt;&#39;</b> is not a whole number" in tools


def test_numbers_can_be_typed_with_separators():
    assert ViewState.of([("max_length", "2,048"), ("row", " 12 ")]) == ViewState(max_length=2048, row=12)


def test_the_roles_of_a_form_are_the_mapping():
    pairs = [
        ("kind", "prompt"),
        ("columns", "text=a"),
        ("role.prompt", "q,a"),
        ("role.system", ""),
        ("role.magic", "x"),
    ]
    assert ViewState.of(pairs) == ViewState(kind="prompt", columns='prompt="q,a"')


def test_a_rows_tokens_are_marked_counted_and_escaped():
    tokens = [
        Piece(1, "<|user|>", special=True),
        Piece(2, SCRIPT),
        Piece(3, " b\n", trained=True),
        Piece(4, "c", trained=True, cut=True),
    ]
    html = tokens_shown(tokens, {"row": 2, "max_length": 3})
    assert SCRIPT not in html and "&lt;script&gt;" in html
    assert '<i class="t special" title="token 1 · id 1">' in html
    assert '<i class="t trained" title="token 3 · id 3">·b⏎ </i>' in html
    assert '<i class="t trained cut"' in html
    assert "<dt>With loss</dt><dd>1</dd>" in html and "<dt>Truncated, with loss</dt><dd>1</dd>" in html


def test_a_row_with_a_truncated_answer_says_which_length_includes_it():
    tokens = [Piece(1, "a"), Piece(2, "b", cut=True), Piece(3, "c", trained=True, cut=True)]
    html = tokens_shown(tokens, {"max_length": 1})
    assert "no loss tokens at 1 token." in html and "at least 3 tokens" in html


def test_a_row_without_an_answer_is_skipped():
    html = tokens_shown([], {"row": 2})
    assert "Row 2 of 9" in html and "This row is skipped." in html and "With loss" not in html


def test_a_very_long_row_shows_its_start_truncation_point_and_end():
    tokens = [Piece(number, f"w{number} ", cut=number >= 6000) for number in range(9000)]
    html = tokens_shown(tokens, {"max_length": 6000})
    assert 'title="token 6000 · id 5999"' in html
    for shown in ("w0·", "w5999·", "w6000·", "w8999·", "4,350 tokens not shown", "2,700 tokens not shown"):
        assert shown in html
    assert "w3000·" not in html


@pytest.mark.parametrize(
    ("written", "shown"), [("a b", "a·b"), ("\t", "→\t"), ("", "⋯"), ("\u200b", "[U+200B]"), ("é漢", "é漢")]
)
def test_invisible_characters_become_visible(written, shown):
    assert visible(written) == shown


def test_the_curve_has_the_exact_losses_at_every_stop():
    generator = np.random.default_rng(7)
    lengths = generator.integers(0, 3000, 500).astype(np.int32)
    first = np.where(generator.random(500) < 0.1, -1, (lengths * 0.7).astype(np.int32)).astype(np.int32)
    first[lengths == 0] = -1
    computed = curve(lengths, first, [512, 1000])
    filled = lengths > 0
    assert {512, 1000} <= set(computed.stops)
    assert sum(computed.counts) == computed.rows == filled.sum()
    for limit in computed.stops[:: len(computed.stops) // 40]:
        loss = computed.at(limit)
        assert loss.rows_cut == (lengths > limit).sum()
        assert loss.tokens_lost == np.maximum(lengths - limit, 0).sum()
        assert loss.untrained == (filled & ((first < 0) | (first >= limit))).sum()


@pytest.mark.parametrize("lengths", [[], [5], [7, 7, 7], [0, 0]])
def test_a_curve_of_few_rows_works(lengths):
    array = np.array(lengths, np.int32)
    points = curve(array, array - 1, [128])
    assert points.at(128).rows_cut == 0 and sum(points.counts) == sum(length > 0 for length in lengths)


def test_the_histogram_contains_its_numbers_and_a_sentence_on_truncation():
    html = lengths_shown(ViewState(tab="lengths", max_length=64), POINTS)
    assert f'data-curve="{POINTS.json}" data-limit="64"' in unescape(html)
    assert "2 of 3 rows (66.7%) are truncated, losing 972 of 1,110 tokens (87.6%)." in html
    assert "1 row has no loss tokens." in html
    assert "no row is truncated" in lengths_shown(ViewState(tab="lengths", max_length=2000), POINTS)


@pytest.mark.parametrize(
    ("part", "shown"), [(0, "0%"), (1, "under 0.1%"), (9_999, "over 99.9%"), (10_000, "100.0%"), (250, "2.5%")]
)
def test_a_share_is_never_rounded_to_none_or_all(part, shown):
    assert share(part, 10_000) == shown


def test_longest_rows_and_duplicates_link_to_their_tokens():
    view = ViewState(id="ab", tab="lengths", max_length=50)
    html = lengths_shown(view, POINTS, longest_rows=[{"row": 1200, "tokens": 70}])
    assert 'href="?id=ab&amp;tab=tokens' in html and ">1,200</a>" in html and "<td>20</td>" in html
    report = {
        "duplicate_rows": 1,
        "duplicate_examples": [[9, 4]],
        "near_duplicate_rows": 0,
        "empty_rows": 2,
        "empty_examples": [[3]],
    }
    html = lengths_shown(view, POINTS, **report)
    assert "row=9" in html and "row=4" in html and "row=3" in html and "≈" not in html
    assert "near duplicates of training rows" in html and "of 5; 3 if near duplicates" in html
    assert "near duplicates of training rows" not in lengths_shown(view, POINTS, leaked_rows=None)


def test_a_poorly_covered_writing_system_is_named():
    latin = {"script": "Latin", "rows": 8, "tokens_per_character": 0.3, "unknown_tokens": 0}
    thai = {"script": "Thai", "rows": 2, "tokens_per_character": 2.5, "unknown_tokens": 0}
    view = ViewState(tab="lengths", max_length=50)
    html = lengths_shown(view, POINTS, scripts=[latin, thai])
    assert "covers Thai poorly" in html and "80.0%" in html
    assert "poorly" not in lengths_shown(view, POINTS, scripts=[latin])


def test_the_longest_batches_name_step_rank_and_rows():
    html = batches_shown({"id": "ab", "num_processes": 4, "gradient_accumulation_steps": 2, "epochs": 2}, batch())
    assert "<b>step 7</b> in epoch 1 on rank 1, with 192 tokens in the batch" in html
    assert ">Rank</th>" in html and ">Micro batch</th>" in html and "row=12" in html
    alone = batches_shown({"id": "ab", "epochs": 1}, batch())
    assert ">Rank" not in alone and "in epoch" not in alone
    assert "no rows for a batch" in batches_shown({"id": "ab"})


def test_padding_is_compared_with_packing_in_a_sentence():
    html = batches_shown({"micro_batch_size": 4, "max_length": 1024}, padding=0.44, packing=0.01)
    assert "44% of computed tokens are pad tokens" in html and "about 1.8 times as many" in html
    assert "needs no padding" in batches_shown({"micro_batch_size": 1})


def test_paths_include_nested_columns():
    rows = [
        {"qa": {"question": "a", "answers": [{"text": "b"}]}, "talk": [{"role": "user", "content": "x"}]},
        {"more": 1},
    ]
    assert paths(rows) == ["qa", "qa.question", "qa.answers", "qa.answers.0", "qa.answers.0.text", "talk", "more"]


def test_an_incomplete_mapping_has_a_kind_and_missing_roles():
    assert partial('prompt=a, nonsense, magic=x, completion="b,c"') == {"prompt": "a", "completion": "b,c"}
    assert kind_of({"prompt": "a", "label": "b"}, "unknown") == "label"
    assert (kind_of({"prompt": "a"}, "unknown"), kind_of({"prompt": "a"}, "mapped")) == ("prompt", "prompts")
    assert (kind_of({}, "prompt"), kind_of({"prompt": "a", "completion": "b"}, "mapped")) == ("prompts", "prompt")
    assert kind_of({}, "alpaca") == "instruction"
    assert missing_roles({"chosen": "a"}, "preference") == ["rejected"]
    assert for_kind({"prompt": "q"}, "prompt", ["completion", "system"]) == {
        "prompt": "q",
        "completion": "completion",
        "system": "system",
    }


def test_the_tab_columns_previews_mapped_rows_and_their_problems():
    rows = [
        {"number": 1, "parts": [["prompt", SCRIPT, False], ["answer", "yes", True]]},
        {"number": 2, "field": "answer", "problem": "is missing.", "fix": "Give one."},
    ]
    html = columns_shown({"prompt": "a", "completion": "b"}, preview=rows)
    assert SCRIPT not in html and '<dd class="answer">yes</dd>' in html and "answer is missing." in html
    assert "columns: prompt=a, completion=b" in html and "Save mapping" in html
    assert "Choose a column for: completion" in columns_shown({"prompt": "a"})
    assert "to see three mapped rows" in columns_shown({})


def test_a_mapping_is_saved_and_removed_by_who_may_change_the_data_set():
    saved = {"document": {"columns_map": "prompt=a, completion=b"}}
    mapping = {"prompt": "a", "completion": "b"}
    html = columns_shown(mapping, **saved)
    assert "disabled>Saved</button>" in html and "Remove mapping" in html
    html = columns_shown(mapping, may_change=False, **saved)
    assert "<button" not in html.replace("<noscript><button", "") and "Only the owner of the data set can save" in html


def test_roles_that_the_kind_does_not_show_stay_in_the_mapping():
    html = columns_shown({"instruction": "a", "output": "b", "history": "h"}, "instruction")
    assert '<input type="hidden" name="role.history" value="h">' in html


def test_problems_name_file_row_field_and_fix():
    issue = {
        "level": "warning",
        "file": "a.jsonl",
        "line": 1204,
        "field": "output",
        "message": "is empty.",
        "fix": "Fill it in.",
        "rows": 3,
    }
    html = " ".join(PARTS.issues([issue]).split())
    assert "a.jsonl, 3 rows, the first is row 1,204, output:" in html and "is empty. <em>Fill it in.</em>" in html


def test_facts_contain_the_format_its_reason_and_the_full_sha256():
    view = ViewState(tab="batches")
    document = {"sha256": "f" * 64, "counts": {"prompt/completion": 18, "text": 2}, "name": SCRIPT}
    html = parts(
        view, document=document, report={"worst_batches": [], "problem": "", "padding_waste": 0.0, "packing_waste": 0.0}
    )["head"]
    assert SCRIPT not in html
    assert f'data-copy="{"f" * 64}"' in html and "Prompt/completion, because it is so." in html
    assert "18 rows of prompt/completion, 2 rows of text" in html
