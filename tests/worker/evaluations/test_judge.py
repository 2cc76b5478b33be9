"""Judges behind a real HTTP server that speaks the API of chat completions."""

import json
import socket
import time

import pytest
from environment import use
from judge_server import JudgeServer
from subtest_table import table

from training.config.run_config import RunConfig
from training.rewards import judge as judge_module
from training.rewards.judge import Judge, JudgeError, judged, key_of_rank
from training.rewards.reward_batch import Trouble
from training.rewards.reward_process import RewardProcess
from training.rewards.rewards import parse_rewards, total
from training.rewards.sample import Sample
from training.scoring.request import EvaluationRequest
from worker.allowed_paths import EVERYTHING, allowed
from worker.allowed_rewards import judge_key, judge_problem, sampler_of_run, variables
from worker.evaluations.scoring import MetricFailed, add_scores, read_records, summarize
from worker.runs.settle import settle


@pytest.fixture
def server(home, monkeypatch):
    monkeypatch.setattr(judge_module, "_WAIT_SECONDS", 0.0)
    found = JudgeServer()
    yield found
    found.shutdown()
    found.server_close()


def record(row, answer):
    return {"row": row, "prompt": "p", "answer": answer, "expected": "e", "scores": {}}


def all_judged(server, *answers, **settings):
    judge = Judge(url=server.url, model="m", **settings)
    records = [record(*one) for one in enumerate(answers)]
    return list(judged(judge, records, lambda *_: None, lambda: False, judge_key(judge.url)))


def test_answers_are_scored_in_order_and_the_replies_kept(server):
    found = all_judged(server, *(["right", "wrong"] * 12))
    assert [one.score for one in found] == [1.0, 0.2] * 12
    assert found[0].reply == 'It is fine. {"score": 10}'
    path, body = server.received[0]
    assert (path, body["model"], body["temperature"]) == ("/v1/chat/completions", "m", 0)


def test_scores_and_replies_are_in_the_answers_and_the_mean_in_the_summary(server, tmp_path):
    rows = [record(0, "right") | {"scores": {"f1": 0.5}}, record(1, "wrong") | {"scores": {"f1": 0.7}}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"own.py": "print('noise')\ndef words(prompt, answer, expected): return len(answer.split()) / 2\n"}
    judge = {"url": server.url, "model": "m"}
    request = EvaluationRequest.model_validate({"metrics": ["f1", "judge", "own.py:words"], "judge": judge, "own": own})
    phases = []
    add_scores(tmp_path, request, lambda *progress: phases.append(progress), lambda: False)
    records = read_records(tmp_path)
    assert [row["scores"] for row in records] == [
        {"f1": 0.5, "own.py:words": 0.5, "judge": 1.0}, {"f1": 0.7, "own.py:words": 0.5, "judge": 0.2},
    ]  # fmt: skip
    assert records[1]["judge"].startswith("It is fine.")
    summary = summarize(records, request.metrics)
    assert summary["metrics"]["judge"]["mean"] == pytest.approx(0.6)
    assert phases[-1] == ("judging", 2, 2)


def test_rewards_and_judges_see_the_prompt_without_its_chat_template(server, tmp_path):
    row = record(0, "right") | {"prompt": "<|user|>how long?<|end|>", "plain": "how long?"}
    (tmp_path / "answers.jsonl").write_text(json.dumps(row) + "\n")
    own = {"own.py": "def letters(prompt, answer, expected): return len(prompt)\n"}
    judge = {"url": server.url, "model": "m", "prompt": "{prompt}|{answer}"}
    request = EvaluationRequest.model_validate({"metrics": ["judge", "own.py:letters"], "judge": judge, "own": own})
    add_scores(tmp_path, request, lambda *_: None, lambda: False)
    kept = read_records(tmp_path)[0]
    assert (kept["scores"]["own.py:letters"], kept["prompt"]) == (9, "<|user|>how long?<|end|>")
    assert "plain" not in kept
    assert server.received[0][1]["messages"][0]["content"] == "how long?|right"


REFUSED = (401, "no such key")


@table(("replies", "scores", "silent"), [
    ([REFUSED], [None, 1.0, 1.0, 1.0], 1),
    ([(200, "<html>")], [None, 1.0, 1.0, 1.0], 1),
    ([None, REFUSED, REFUSED], [1.0, None, None, None], 3),
])  # fmt: skip
def test_a_row_without_a_reply_of_the_judge_costs_no_other_its_score(
    server, monkeypatch, tmp_path, replies, scores, silent
):
    monkeypatch.setattr(judge_module, "_AT_ONCE", 1)
    good = (200, json.dumps({"choices": [{"message": {"content": '{"score": 10}'}}]}))
    server.replies = [reply or good for reply in replies]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(record(row, "right")) + "\n" for row in range(4)))
    request = EvaluationRequest.model_validate({"metrics": ["judge"], "judge": {"url": server.url, "model": "m"}})
    troubles = add_scores(tmp_path, request, lambda *_: None, lambda: False)
    assert [row["scores"]["judge"] for row in read_records(tmp_path)] == scores
    assert (troubles["judge"].failed, troubles["judge"].kind) == (silent, "judge")
    server.replies.clear()


def test_rows_without_a_score_are_counted_and_named_and_a_metric_without_any_fails_the_evaluation(home, tmp_path):
    code = "def total(prompt, answer, expected, row):\n    return row['total']\n"
    rows = [record(0, "[1]") | {"columns": {"total": 3}}, record(6, "no") | {"columns": {"sum": 3}}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"metrics": ["json_valid", "own.py:total", '{"reward": "length", "most": 2}'], "own": {"own.py": code}}
    request = EvaluationRequest.model_validate(values)
    troubles = add_scores(tmp_path, request, lambda *_: None, lambda: False)
    assert read_records(tmp_path) == [
        record(0, "[1]") | {"scores": {"json_valid": 1, "own.py:total": 3, "length": 0}},
        record(6, "no") | {"scores": {"json_valid": 0, "own.py:total": None, "length": 1}},
    ]
    assert troubles == {"own.py:total": Trouble(1, "row 7, own.py, line 2: KeyError: 'total'", "exception")}
    summary = summarize(read_records(tmp_path), request.metrics)
    assert [summary["metrics"][name]["rows"] for name in request.metrics] == [2, 1, 2]
    with pytest.raises(MetricFailed, match=r"row 1, own\.py, line 2: KeyError: 'total'"):
        add_scores(tmp_path, request, lambda *_: None, lambda: False)  # the columns are gone with the scores


def test_a_judge_is_a_reward_beside_others_and_is_given_up_when_it_does_not_answer(server, tmp_path):
    judge = {"reward": "judge", "url": server.url, "model": "m", "weight": 2}
    rewards = parse_rewards(json.dumps([judge, "exact_match"]))
    samples = [Sample("p", answer, "wrong") for answer in ("right", "wrong", "right")]
    with RewardProcess(rewards, {}, tmp_path, judge_key=lambda url: url[:4]) as process:
        scores = process.score(samples)
        assert (scores.values, scores.troubles) == ({"judge": [1, 0.2, 1], "exact_match": [0, 1, 0]}, {})
        assert total(rewards, scores.values) == [2, 1.4, 2]
        assert set(server.keys) == {"Bearer http"}
        server.replies = [(200, json.dumps({"choices": [{"message": {"content": "fine"}}]}))] * 3
        trouble = process.score(samples).troubles["judge"]
        message = "sample 1, judge: no number from 0 to 10 in the reply: 'fine'"
        assert (trouble.failed, trouble.kind, trouble.sentence) == (3, "judge", message)
        server.replies = [(401, "no such key")] * 100
        for _ in range(3):
            scores = process.score(samples)
            assert scores.values == {"judge": [None] * 3, "exact_match": [0, 1, 0]}
            assert scores.troubles["judge"].sentence == "judge: row 1: answered with status 401: no such key"
        asked = len(server.received)
        assert process.score(samples).troubles["judge"].kind == "given up"
        assert len(server.received) == asked


def test_a_judge_whose_prompt_asks_for_json_is_asked_to_answer_in_it_if_its_server_can(server):
    all_judged(server, "right")
    server.replies = [(400, "unknown field response_format")]
    assert [one.score for one in all_judged(server, "right", "right")] == [1.0, 1.0]
    all_judged(server, "right", prompt="Rate {answer} from 0 to 10.")
    forms = [body.get("response_format") for _, body in server.received]
    assert forms[0] == {"type": "json_object"}
    assert forms.count(None) >= 2
    assert forms[-1] is None


def test_a_busy_judge_is_asked_again(server):
    server.replies = [(429, "slow down"), (503, "")]
    assert all_judged(server, "right")[0].score == 1.0
    assert len(server.received) == 3


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, "no such key"), "row 1: answered with status 401: no such key"),
        ((302, ""), "row 1: answered with status 302"),
        ((200, "<html>"), "row 1: answered, but not as /v1/chat/completions does: <html>"),
    ],
)
def test_a_refusal_a_redirect_and_another_service_are_errors(server, reply, message):
    server.replies = [reply]
    with pytest.raises(JudgeError, match=message):
        all_judged(server, "right")
    assert len(server.received) == 1


def test_no_judge_at_the_address_is_an_error_with_the_address(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(JudgeError, match=r"row 1: did not answer") as failure:
        all_judged(server, "right")
    assert failure.value.problem.value == server.url


def test_the_key_goes_only_to_the_judges_of_the_server(server, monkeypatch, tmp_path):
    use(monkeypatch, DATA_DIR=str(tmp_path), JUDGE_KEY="secret-key", JUDGE_URLS="https://judge.example/v1")
    all_judged(server, "right")
    use(monkeypatch, DATA_DIR=str(tmp_path), JUDGE_KEY="secret-key", JUDGE_URLS=f"https://x/v1, {server.url}/")
    all_judged(server, "right")
    assert server.keys == [None, "Bearer secret-key"]


def test_accounts_may_use_the_judges_of_the_server_only(home, monkeypatch):
    use(monkeypatch, DATA_DIR=str(home), JUDGE_URLS="https://judge.example/v1")
    assert judge_problem("https://judge.example/v1/", trusted=False) is None
    for url in ("http://169.254.169.254/latest", "https://judge.example/v1/../admin", "https://judge.example"):
        assert judge_problem(url, trusted=False).message == "is not a judge of this server."
        assert judge_problem(url, trusted=True) is None


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "judge.example/v1", "http://", "http://user:password@host/v1", "http://:password@host", "http://@host",
        "http://[::1", "http://h\u2100.com/", "http://host:abc", "http://host:99999", "http://host:0", "http://ho st",
        "http://ho\nst", "http://a..b", f"http://{'a' * 64}.com", "http://xn--a", "http://\u2603.net", "http://%00h", "http://host?a",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_for_judges_and_for_vllm(home, url):
    for problem in (judge_problem(url, trusted=True), sampler_of_run(sampled_run(url), EVERYTHING)):
        assert problem.message == "is not the address of an API." and problem.fix.startswith("Give http://HOST:PORT/v1")
    assert problem.field == "vllm_url" and problem.value == url


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://[::1]:8000/v1", "https://\u4f8b\u3048.jp/v1", "http://my_host"]
)
def test_addresses_of_every_kind_are_accepted(home, url):
    assert judge_problem(url, trusted=True) is None and sampler_of_run(sampled_run(url), EVERYTHING) is None


def sampled_run(url):
    return RunConfig(model="m", data="d", task="grpo", generation="vllm", vllm_url=url)


def judged_run(url, **settings):
    reward = {"reward": "judge", "url": url, "model": "m"}
    return RunConfig(model="m", data="d", **({"task": "grpo", "rewards": json.dumps([reward])} | settings))


def test_the_ranks_of_a_run_get_the_key_of_its_judges_alone(home, monkeypatch):
    use(monkeypatch, JUDGE_KEY="secret-of-judges", JUDGE_URLS="http://a/v1")
    given = variables(judged_run("http://a/v1"))
    assert variables(judged_run("http://b/v1")) == variables(judged_run("http://a/v1", task="sft")) == {}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert key_of_rank("http://a/v1") == "secret-of-judges" and key_of_rank("http://b/v1") is None


def test_an_account_s_run_has_only_judges_of_the_server(home, monkeypatch):
    use(monkeypatch, JUDGE_URLS="http://a/v1")
    refused = {url: settle(judged_run(url), allowed()).refused for url in ("http://a/v1", "http://169.254.169.254/v1")}
    assert [[problem.message for problem in problems if problem.field == "rewards"] for problems in refused.values()] == [
        [], ["is not a judge of this server."],
    ]  # fmt: skip
    assert not settle(judged_run("http://169.254.169.254/v1")).refused


def test_an_account_s_run_has_samples_from_vllm_servers_of_the_server_only(home, monkeypatch):
    def refused(url, may):
        return [(problem.field, problem.message) for problem in settle(sampled_run(url), may).refused]

    use(monkeypatch, VLLM_URLS="http://a:8000/v1, http://b:8000")
    assert [refused(url, allowed()) for url in ("http://a:8000", "http://b:8000/v1/")] == [[], []]
    assert refused("http://169.254.169.254", allowed()) == [("vllm_url", "is not a vLLM of this server.")]
    assert refused("http://169.254.169.254", EVERYTHING) == []
    assert refused("file:///etc/passwd", EVERYTHING) == [("vllm_url", "is not the address of an API.")]


def test_a_judge_that_does_not_answer_costs_no_more_than_the_given_time(monkeypatch):
    monkeypatch.setattr(judge_module, "_WAIT_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        began = time.monotonic()
        judge = Judge(url=f"http://127.0.0.1:{silent.getsockname()[1]}/v1", model="m")
        with pytest.raises(JudgeError, match="did not answer"):
            list(judged(judge, [record(0, "a")] * 40, lambda *_: None, lambda: False, seconds=0.3))
    assert time.monotonic() - began < 30  # each answer alone may take 120 s
