"""The pieces of a data set's page: the view in the address, tokens, lengths, batches, mapping, lists. No server."""

from dataclasses import dataclass

import numpy as np
import pytest

from app.pages.dataset_batches import batches_html, waste_html
from app.pages.dataset_columns import Seen, columns_html, for_kind, kind_of, lacking, partial, paths, seen_html
from app.pages.dataset_curve import curve
from app.pages.dataset_lengths import cost, histogram_html, longest_html, quality_html, scripts_html, share
from app.pages.dataset_parts import cell_html, facts_html, issues_html, rows_html
from app.pages.dataset_tokens import Stops, tokens_html, visible
from app.pages.dataset_view import View
from app.pages.datasets_parts import intakes_html, list_html, removal_html
from app.pages.intake import Intake
from worker.models import Dataset, Status
from worker.usage import User

SCRIPT = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Piece:
    id: int
    text: str
    trained: bool = False
    cut: bool = False
    special: bool = False


def dataset(**values):
    usual = {"id": "0" * 16, "sha256": "0" * 64, "name": "rows.jsonl", "format": "jsonl", "shape": "prompt/completion"}
    counts = {"rows": 20, "bytes": 1000, "created_at": 0.0, "columns": ["prompt", "completion"], "reason": "it is so"}
    return Dataset(**usual | counts | values)


def batch(**values):
    return {"epoch": 0, "step": 7, "rank": 1, "micro": 2, "rows": [3, 12], "longest": 90, "tokens": 192} | values


def test_a_view_survives_its_address_and_leaves_out_what_is_usual():
    from urllib.parse import parse_qsl

    view = View(id="ab", tab="batches", model="static/starter", max_length=300, row=7, epochs=0.5, columns="text=a")
    assert View.of(dict(parse_qsl(view.query))) == view
    assert View(id="ab").query == "id=ab"


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
def test_an_address_that_makes_no_sense_keeps_the_default(name, value):
    assert View.of({"id": "ab", name: value}) == View(id="ab")


def test_numbers_may_be_typed_as_they_are_shown():
    assert View().changed({"max_length": "2,048", "row": " 12 "}) == View(max_length=2048, row=12)


def test_a_rows_tokens_are_marked_counted_and_escaped():
    tokens = [
        Piece(1, "<|user|>", special=True),
        Piece(2, SCRIPT),
        Piece(3, " b\n", trained=True),
        Piece(4, "c", trained=True, cut=True),
    ]
    html = str(tokens_html(tokens, View(row=2, max_length=3), Stops(9)))
    assert SCRIPT not in html and "&lt;script&gt;" in html
    assert '<i class="t special" title="token 1 · id 1">' in html
    assert '<i class="t trained" title="token 3 · id 3">·b⏎\n</i>' in html
    assert '<i class="t trained cut"' in html
    assert "<dt>Carry loss</dt><dd>1</dd>" in html and "<dt>Cut off that would carry loss</dt><dd>1</dd>" in html


def test_a_row_whose_answer_is_cut_off_whole_says_that_it_teaches_nothing_and_what_would_help():
    tokens = [Piece(1, "a"), Piece(2, "b", cut=True), Piece(3, "c", trained=True, cut=True)]
    html = str(tokens_html(tokens, View(max_length=1), Stops(1)))
    assert "teaches nothing at 1 tokens" in html and "more than 3 tokens" in html


def test_a_row_without_an_answer_is_said_to_be_left_out():
    html = str(tokens_html([], View(row=2), Stops(9)))
    assert "This row is left out." in html and "Next" in html and "Carry loss" not in html


def test_of_a_very_long_row_the_beginning_the_cut_and_the_end_are_shown():
    tokens = [Piece(number, f"w{number} ", cut=number >= 6000) for number in range(9000)]
    html = str(tokens_html(tokens, View(max_length=6000), Stops(1)))
    for shown in ("w0·", "w5999·", "w6000·", "w8999·", "4,350 tokens not shown", "2,700 tokens not shown"):
        assert shown in html
    assert "w3000·" not in html


@pytest.mark.parametrize(
    ("written", "shown"), [("a b", "a·b"), ("\t", "→\t"), ("", "⋯"), ("\u200b", "[U+200B]"), ("é漢", "é漢")]
)
def test_what_shows_nothing_is_made_visible(written, shown):
    assert visible(written) == shown


def test_the_curve_says_at_every_stop_exactly_what_is_lost():
    generator = np.random.default_rng(7)
    lengths = generator.integers(0, 3000, 500).astype(np.int32)
    first = np.where(generator.random(500) < 0.1, -1, (lengths * 0.7).astype(np.int32)).astype(np.int32)
    first[lengths == 0] = -1
    found = curve(lengths, first, [512, 1000])
    filled = lengths > 0
    assert {512, 1000} <= set(found.stops)
    assert sum(found.counts) == found.rows == filled.sum()
    for limit in found.stops[:: len(found.stops) // 40]:
        loss = found.at(limit)
        assert loss.rows_cut == (lengths > limit).sum()
        assert loss.tokens_lost == np.maximum(lengths - limit, 0).sum()
        assert loss.untrained == (filled & ((first < 0) | (first >= limit))).sum()


@pytest.mark.parametrize("lengths", [[], [5], [7, 7, 7], [0, 0]])
def test_a_curve_of_few_rows_is_one_too(lengths):
    array = np.array(lengths, np.int32)
    found = curve(array, array - 1, [128])
    assert found.at(128).rows_cut == 0 and sum(found.counts) == sum(length > 0 for length in lengths)


def test_the_histogram_carries_its_figures_and_says_the_cost_in_a_sentence():
    lengths, first = np.array([10, 100, 1000], np.int32), np.array([5, 50, 900], np.int32)
    found = curve(lengths, first, [64])
    html = str(histogram_html(found, View(max_length=64), {"median": 100, "p95": 1000, "max": 1000, "total": 1110}))
    assert "2 of 3 rows (66.7%) are cut off, and 972 of 1,110 tokens (87.6%) are lost." in html
    assert "1 row teaches nothing." in html
    assert "no row is cut off" in cost(curve(lengths, first, [2000]).at(2000), found)


@pytest.mark.parametrize(
    ("part", "shown"), [(0, "0%"), (1, "under 0.1%"), (9_999, "over 99.9%"), (10_000, "100.0%"), (250, "2.5%")]
)
def test_a_share_is_never_rounded_to_none_or_all(part, shown):
    assert share(part, 10_000) == shown


def test_longest_rows_and_duplicates_lead_to_their_tokens():
    view = View(id="ab", tab="lengths", max_length=50)
    html = str(longest_html([{"row": 1200, "tokens": 70}], view))
    assert 'href="/dataset?id=ab&amp;tab=tokens' in html and ">1,200</a>" in html and "<td>20</td>" in html
    report = {
        "duplicate_rows": 1,
        "duplicate_examples": [[9, 4]],
        "near_duplicate_rows": 0,
        "empty_rows": 2,
        "empty_examples": [3],
    }
    html = str(quality_html(report, view))
    assert "row=9" in html and "row=4" in html and "row=3" in html and "≈" not in html


def test_a_script_that_the_tokenizer_breaks_up_is_named():
    latin = {"script": "Latin", "rows": 8, "tokens_per_character": 0.3, "unknown_tokens": 0}
    thai = {"script": "Thai", "rows": 2, "tokens_per_character": 2.5, "unknown_tokens": 0}
    assert "breaks Thai into pieces" in scripts_html([latin, thai])
    assert "breaks" not in scripts_html([latin])


def test_the_longest_batches_name_step_rank_and_rows():
    html = str(batches_html([batch()], View(id="ab", num_processes=4, gradient_accumulation_steps=2, epochs=2)))
    assert "<b>step 7</b> in epoch 1 on rank 1: 192 tokens at once" in html
    assert "<th>Rank</th>" in html and "<th>Micro batch</th>" in html and "row=12" in html
    alone = str(batches_html([batch()], View(id="ab", epochs=1)))
    assert "<th>Rank" not in alone and "in epoch" not in alone


def test_waste_is_told_against_packing_in_a_sentence():
    html = str(waste_html(0.44, 0.01, View(micro_batch_size=4, max_length=1024)))
    assert "44 of every 100 tokens computed are filler" in html and "about 1.8 times as many" in html
    assert "nothing is padded" in waste_html(0.0, 0.0, View(micro_batch_size=1))


def test_columns_are_found_inside_of_nested_rows():
    rows = [
        {"qa": {"question": "a", "answers": [{"text": "b"}]}, "talk": [{"role": "user", "content": "x"}]},
        {"more": 1},
    ]
    assert paths(rows) == ["qa", "qa.question", "qa.answers", "qa.answers.0", "qa.answers.0.text", "talk", "more"]


def test_a_mapping_may_be_half_done_and_is_of_one_kind():
    assert partial('prompt=a, nonsense, magic=x, completion="b,c"') == {"prompt": "a", "completion": "b,c"}
    assert kind_of({"prompt": "a", "label": "b"}, "unknown") == "label"
    assert kind_of({"prompt": "a"}, "unknown") == "prompt"
    assert kind_of({}, "alpaca") == "instruction"
    assert lacking({"chosen": "a"}, "preference") == ["rejected"]
    assert for_kind({"prompt": "q"}, "prompt", ["completion", "system"]) == {
        "prompt": "q",
        "completion": "completion",
        "system": "system",
    }


def test_the_mapping_page_shows_what_the_model_would_get_and_what_is_wrong():
    seen = [
        Seen(1, [("prompt", SCRIPT, False), ("answer", "yes", True)]),
        Seen(2, problem="answer is missing.", fix="Give one."),
    ]
    html = str(columns_html({"prompt": "a", "completion": "b"}, "prompt", ["a", "b"], seen, View(id="ab"), None))
    assert SCRIPT not in html and '<dd class="answer">yes</dd>' in html and "answer is missing." in html
    assert "columns: prompt=a, completion=b" in html and "Save mapping" in html
    assert "Still to choose: completion" in columns_html({"prompt": "a"}, "prompt", ["a"], [], View(), None)
    assert "appear here" in seen_html([])


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
    html = str(issues_html([issue]))
    assert "a.jsonl, 3 rows, the first is row 1,204, output:" in html and "is empty. <em>Fill it in.</em>" in html


def test_facts_give_the_format_its_reason_and_the_whole_fingerprint():
    html = str(facts_html(dataset(sha256="f" * 64, counts={"prompt/completion": 18, "text": 2})))
    assert f'data-copy="{"f" * 64}"' in html and "Prompt/completion, because it is so." in html
    assert "18 rows of prompt/completion, 2 rows of text" in html


def test_rows_are_shown_as_text_talk_or_json_and_escaped():
    html = str(rows_html(dataset(columns=["a", "b"], sample=[{"a": SCRIPT, "b": [{"from": "human", "value": "hi"}]}])))
    assert SCRIPT not in html and "<b>human</b> hi" in html
    assert "none" in cell_html(None) and "&#34;x&#34;: 1" in cell_html({"x": 1})


def test_the_list_says_what_uses_a_set_and_an_empty_one_leads_on():
    users = {"0" * 16: [User("r1", "mine", Status.FINISHED)]}
    html = str(list_html([dataset(name=SCRIPT, warnings=[{"message": "odd"}])], users, ""))
    assert SCRIPT not in html and "1 run" in html and "1 warning" in html
    assert "needs a mapping" in list_html([dataset(shape="unknown")], {}, "")
    assert "No data set matches" in list_html([dataset()], {}, "nothing like it")
    assert "Take the starter sample" in list_html([], {}, "")


def test_removal_names_what_uses_the_set():
    running, ended = User("r1", SCRIPT, Status.RUNNING), User("r2", "old", Status.FINISHED)
    assert "needed by" in removal_html(dataset(), [running, ended]) and SCRIPT not in removal_html(dataset(), [running])
    assert "They keep their settings and results" in removal_html(dataset(), [ended])


def test_an_intake_is_shown_while_it_is_checked_refused_or_ready():
    checking = Intake(1, SCRIPT, 2**20, 0.0)
    refused = Intake(
        2,
        "b.csv",
        1,
        0.0,
        "refused",
        problems=[{"level": "error", "file": "b.csv", "line": 3, "message": "is odd.", "fix": "Mend it."}],
    )
    ready = Intake(3, "c", 1, 0.0, "done", made=[("1", "train.jsonl"), ("2", "val.jsonl")], paired=True)
    html = str(intakes_html([checking, refused, ready]))
    assert SCRIPT not in html and "1.0 MiB" in html and "b.csv, row 3:" in html
    assert "/new?data=1&amp;validation_data=2" in html
