"""The part Take away of the page Run: forms of the result, snippets to copy, answers before and after."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import IN_BROWSER, says
from commands import lathe
from played_run import SUMMARY, PlayedRun
from web import client

from app.documents.results.answers import Change, answers_of, differences
from training.run_folder.derived import GgufType
from training.scoring.paired import Verdict
from worker.settings import get_settings
from worker.store.tables import Status


def record(row: int, expected: str, before: str, after: str) -> dict[str, Any]:
    scores = {"f1_before": float(before == expected), "f1_after": float(after == expected)}
    matches = {"match_before": before == expected, "match_after": after == expected}
    texts = {"prompt": f"What is {row}?", "expected": expected, "before": before, "after": after}
    return {"row": row, **texts, **matches, **scores}


ANSWERS = [record(row, "the letter a", "a letter <b>", "the letter a") for row in range(30)] + [
    record(30, "yes", "yes", "no"),
    record(31, "yes", "maybe so", "maybe not"),
    record(32, "yes", "yes", "yes"),
]


def finished(*, answers: bool = True, **settings: Any) -> PlayedRun:
    played = PlayedRun("letters & numbers", **settings).claim().end(summary=SUMMARY)
    run_dir = get_settings().runs_dir / played.id
    result = run_dir / ("model" if settings.get("method") == "full" else "adapter")
    result.mkdir(parents=True)
    (result / "README.md").write_text("# letters\n")
    (run_dir / "adapter.zip").write_bytes(bytes(300_000))
    if answers:
        (run_dir / "answers.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ANSWERS))
    return played


def outputs(run: PlayedRun) -> dict[str, dict[str, Any]]:
    document = client().get(f"/api/runs/{run.id}/outputs").json()
    return {one["name"]: one for one in document["outputs"]}


def changed(verdict: str, difference: float) -> dict[str, Any]:
    interval = {"difference": difference, "low": difference - 0.05, "high": difference + 0.05}
    return interval | {"rows": 50, "verdict": verdict, "rows_needed": 100, "common": 50}


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ({"eval_loss": 247.0, "eval_perplexity": 1.3e107}, "The loss on held-out rows is 247.0000"),
        ({"eval_loss": 2.0, "eval_perplexity": 7.4}, ""),
        ({"eval_loss": 247.0}, ""),  # of a task whose loss is none of tokens
        ({"answers": {"changes": {"f1": changed(Verdict.WORSE.value, -0.2)}}}, "worse than before training: Token F1"),
        (
            {
                "answers": {
                    "changes": {
                        "f1": changed(Verdict.WORSE.value, -0.2),
                        "exact_match": changed(Verdict.NONE.value, 0.0),
                    }
                }
            },
            "",
        ),
    ],
)
def test_a_model_that_training_has_ruined_is_called_so_where_it_is_downloaded(
    home: Path, summary: dict[str, Any], reason: str
) -> None:
    played = PlayedRun("ruined").claim()
    played.end(summary=SUMMARY | {"eval_loss": 1.0, "answers": {}} | summary)
    (get_settings().runs_dir / played.id / "adapter").mkdir(parents=True)
    said = client().get(f"/api/runs/{played.id}/outputs").json()["ruined"]
    assert reason in said and bool(reason) == bool(said)
    assert ("Training has ruined this model." in client().get(f"/run?id={played.id}").text) == bool(reason)


def test_every_form_has_a_download_or_the_command_that_makes_it(home: Path) -> None:
    run = finished()
    forms = outputs(run)
    assert list(forms) == [
        "Adapter",
        "Merged model",
        "GGUF",
        *(f"GGUF {kind.value}" for kind in list(GgufType)[1:]),
        "GGUF adapter",
        "Model card",
        "Configuration",
        "Log",
        "Answers",
        "Whole run",
    ]
    assert forms["Adapter"]["bytes"] == 300_000
    assert forms["Merged model"]["command"] == f"lathe export {run.id} --merged -o merged.zip"
    assert forms["GGUF"]["command"] == f"lathe export {run.id} --gguf -o {run.id}.gguf"
    assert forms["GGUF Q4_K_M"]["command"] == f"lathe export {run.id} --gguf --type Q4_K_M -o {run.id}.gguf"
    assert forms["GGUF adapter"]["command"] == f"lathe export {run.id} --gguf --adapter -o adapter.gguf"
    for name in ("Adapter", "Model card", "Configuration", "Log", "Answers", "Whole run"):
        assert client().get(forms[name]["address"]).status_code == 200, name


def test_a_gguf_file_that_was_exported_is_downloaded_by_its_type(home: Path) -> None:
    run = finished()
    run_dir = get_settings().runs_dir / run.id
    (run_dir / "model-Q4_K_M.gguf").write_bytes(b"four bits")
    (run_dir / "adapter.gguf").write_bytes(b"adapter")
    forms = outputs(run)
    assert forms["GGUF Q4_K_M"]["address"] == f"/api/runs/{run.id}/model.gguf?type=Q4_K_M"
    assert client().get(forms["GGUF Q4_K_M"]["address"]).content == b"four bits"
    assert client().get(forms["GGUF adapter"]["address"]).content == b"adapter"
    missing = client().get(f"/api/runs/{run.id}/model.gguf?type=Q6_K")
    assert missing.status_code == 404
    assert f"lathe export {run.id} --gguf --type Q6_K" in missing.text
    assert client().get(f"/api/runs/{run.id}/model.gguf?type=Q9").status_code == 422


@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="llama.cpp is installed")
def test_a_type_that_needs_llama_cpp_says_so_where_it_is_not_installed(home: Path, tmp_path: Path) -> None:
    done = lathe("export", finished().id, "--gguf", "--type", "Q4_K_M", "-o", tmp_path / "m.gguf")
    assert done.exit_code != 0
    assert "needs llama.cpp, which is not installed" in done.stderr
    assert "choose Q8_0" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--type", "Q8_0"], "is for GGUF files"),
        (["--adapter"], "is for GGUF files"),
        (["--gguf", "--adapter", "--type", "Q8_0"], "is the adapter alone"),
    ],
)
def test_options_of_export_that_do_not_go_together_are_refused(
    home: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    done = lathe("export", finished().id, *options, "-o", tmp_path / "m.gguf")
    assert done.exit_code != 0
    assert message in done.stderr


def test_after_full_fine_tuning_the_result_is_called_a_model(home: Path) -> None:
    forms = outputs(finished(method="full"))
    assert list(forms)[:2] == ["Model", "GGUF"]
    assert "GGUF adapter" not in forms
    assert forms["Model"]["address"].endswith("/model.zip")
    assert client().get(forms["Model"]["address"]).status_code == 200


def test_adapters_that_cannot_be_merged_say_so(home: Path) -> None:
    forms = outputs(finished(method="prompt_tuning"))
    assert forms["Merged model"]["note"] == "Adapters of prompt_tuning cannot be merged."
    assert "GGUF" not in forms


def test_a_failed_run_leaves_its_configuration_and_log(home: Path) -> None:
    run = PlayedRun().claim().prints("one", "two")
    run.end(Status.FAILED, error={"message": "no"})
    assert list(outputs(run)) == ["Configuration", "Log", "Whole run"]
    assert client().get(f"/api/runs/{run.id}/log.txt").text == "one\ntwo\n"


def test_answers_are_sorted_by_change(home: Path) -> None:
    answers = answers_of(finished().id)[:]
    assert [answer.row for answer in answers] == [*range(1, 31), 31, 32, 33]
    assert [answer.change for answer in answers[29:]] == [Change.RIGHT, Change.WRONG, Change.CHANGED, Change.SAME]


def test_a_run_without_answers_has_none(home: Path) -> None:
    assert not answers_of(finished(answers=False).id)


@pytest.mark.parametrize(
    ("before", "after", "left", "right"),
    [
        ("a b c", "a x c", [(False, "a"), (True, " b"), (False, " c")], [(False, "a"), (True, " x"), (False, " c")]),
        ("same", "same", [(False, "same")], [(False, "same")]),
        ("", "new", [], [(True, "new")]),
        ("word " * 3000, "other", [(True, "word " * 3000)], [(True, "other")]),
    ],
)
def test_differing_words_are_marked(before: str, after: str, left: list[Any], right: list[Any]) -> None:
    assert differences(before, after) == (left, right)


def answers_shown(run: PlayedRun, query: str) -> str:
    """The section of answers."""
    text = client().get(f"/run?id={run.id}{query}").text
    return text.partition('id="answers"')[2].partition("</section>")[0]


def test_five_answers_are_shown_at_first_and_then_all_page_by_page(home: Path) -> None:
    run = finished()
    first, every, second = (answers_shown(run, query) for query in ("", "&answers=all", "&answers=all&answers_page=2"))
    assert first.count('<td class="change') == 5 and "Show all 33 answers" in first
    assert every.count('<td class="change') == 25 and "1 to 25 of 33 rows" in every
    assert "26 to 33 of 33 rows" in second
    assert "<del>a</del> letter" in first and "&lt;b&gt;" in first
    assert answers_shown(run, "&answers=all&answers_page=x") == every
    wrong = answers_shown(run, "&answers=became wrong")
    assert wrong.count('<td class="change') == 1 and "<ins>no</ins>" in wrong


def test_the_page_of_a_run_without_answers_has_no_section_for_them(home: Path) -> None:
    text = client().get(f"/run?id={finished(answers=False).id}").text
    assert 'id="take-away"' in text and 'id="answers"' not in text and 'href="#answers"' not in text


class TestInABrowser:
    pytestmark = IN_BROWSER

    def test_a_snippet_is_copied_with_one_press(self, page: Any) -> None:
        run = finished()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(f"/run?id={run.id}")
        page.get_by_text("transformers", exact=True).click()
        page.get_by_role("button", name="Copy the snippet for transformers").click()
        says(page, ".take-away", "Copied")
        assert f"{run.id}/adapter" in page.evaluate("navigator.clipboard.readText()")

    def test_the_type_of_a_gguf_file_is_chosen_from_a_list(self, page: Any) -> None:
        run = finished()
        page.goto(f"/run?id={run.id}")
        says(page, "table.outputs", f"lathe export {run.id} --gguf -o {run.id}.gguf")
        page.get_by_label("Type of GGUF").select_option("Q4_K_M")
        says(page, "table.outputs", f"lathe export {run.id} --gguf --type Q4_K_M -o {run.id}.gguf")
        assert page.evaluate("location.search") == f"?id={run.id}&gguf=Q4_K_M"

    def test_answers_are_filtered_without_loading_the_page(self, page: Any) -> None:
        page.goto(f"/run?id={finished().id}")
        page.evaluate("window.same = true")
        page.get_by_role("link", name="Became wrong (1)").click()
        says(page, "#answers", "1 to 1 of 1 row")
        assert page.locator("table.answers ins").all_inner_texts() == ["no"]
        assert page.evaluate("window.same")
