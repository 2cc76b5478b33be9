"""The serving program: prompts as in training, answers of the base and of several adapters, streams, and errors."""

import shutil
import threading

import pytest
from patience import eventually
from served import MESSAGES, TOKEN, application, ask, chunks, make_folders
from starlette.testclient import TestClient

from training.serving import templates

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def served(folders):
    from training.serving.loaded import Base, load

    adapters = {name: folders / name for name in ("one", "two")}
    return load(Base(str(folders / "base"), "base"), adapters, {"whole": folders / "base"}, {})


@pytest.fixture(scope="module")
def client(served):
    app = application(served, TOKEN)
    with TestClient(app, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        yield client


def test_a_prompt_has_the_same_tokens_as_in_training(client, folders):
    from training.chat.tokenizer import load
    from training.data.example import Example
    from training.tokens.encoding import Encoder
    from training.tokens.rendering import Renderer

    tokenizer = load(str(folders / "base"))
    example = Example(messages=[*MESSAGES, {"role": "assistant", "content": "4"}])
    trained = Encoder(tokenizer).prompt(Renderer(tokenizer).last_turn(example))
    assert ask(client).json()["prompt_token_ids"] == trained
    shown = client.post("/tokenize", json={"model": "one", "messages": MESSAGES, "return_token_strs": True}).json()
    assert shown["tokens"] == trained
    assert shown["token_strs"][:2] == ["<|system|>", "C"]


def test_base_and_adapters_answer_as_each_does_when_loaded_alone(client, folders):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    answers = {name: ask(client, model=name).json() for name in ("one", "base", "two", "whole")}
    tokens = {name: answer["choices"][0]["token_ids"] for name, answer in answers.items()}
    assert len({tuple(ids) for ids in tokens.values()}) == 3
    for name, expected in tokens.items():
        alone = AutoModelForCausalLM.from_pretrained(folders / "base")
        if name in ("one", "two"):
            alone = PeftModel.from_pretrained(alone, str(folders / name))
        prompt = torch.tensor([answers[name]["prompt_token_ids"]])
        generated = alone.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=6
        )
        assert generated[0, prompt.shape[1] :].tolist() == expected, name


def test_a_stream_is_the_same_answer_in_chunks(client):
    whole = ask(client, model="one", logprobs=True, top_logprobs=2).json()
    streamed = chunks(ask(client, model="one", stream=True, stream_options={"include_usage": True}))
    choices = [chunk["choices"][0] for chunk in streamed[:-1]]
    assert streamed[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == whole["choices"][0]["token_ids"]
    assert (
        "".join(choice["delta"].get("content", "") for choice in choices) == whole["choices"][0]["message"]["content"]
    )
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert streamed[-1]["usage"] == whole["usage"] | {"completion_tokens": 6}
    first = whole["choices"][0]["logprobs"]["content"][0]
    assert first["logprob"] == max(one["logprob"] for one in first["top_logprobs"]) < 0


def test_sampling_repeats_with_its_seed_and_follows_top_k(client):
    def sampled(**fields):
        return ask(client, temperature=2.0, **fields).json()["choices"][0]["token_ids"]

    assert sampled(seed=1) == sampled(seed=1) != sampled(seed=2)
    assert sampled(top_k=1) == ask(client).json()["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-320},
        {"temperature": 5e-324, "top_p": 5e-324, "top_k": 2**62},
        {"temperature": 10, "top_p": 1e-320, "seed": -(2**63)},
        {"temperature": 1, "top_k": 1, "seed": 2**63 - 1, "stop": ["\u0000", "\U0010ffff" * 200]},
        {"temperature": 1e-4, "logprobs": True, "top_logprobs": 20},
    ],
)
def test_sampling_at_its_bounds_answers(client, fields):
    choice = ask(client, **fields).json()["choices"][0]
    assert 1 <= len(choice["token_ids"]) <= 6


def test_an_answer_ends_before_a_stop_string(client):
    body = {"model": "base", "prompt": "ab", "temperature": 1, "seed": 3, "max_tokens": 40}
    text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = text[3:5]
    choice = client.post("/v1/completions", json=body | {"stop": [stop]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize(
    ("fields", "status", "field", "words"),
    [
        ({"model": "three"}, 404, "model", "Use one of base, one, two, whole."),
        ({"temperature": -1}, 400, "temperature", "greater than or equal to 0"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "prompt", "the context of base is 512"),
        ({"max_tokens": 5000}, 400, "max_tokens", "Give at most"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages", "only text"),
        ({"chat_template_kwargs": {"tokenize": True}}, 400, "chat_template_kwargs", "set by the server"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty", "send 0"),
        ({"guided_json": {}}, 400, "guided_json", "Leave it out"),
        ({"reasoning_effort": "low"}, 400, "reasoning_effort", "chat_template_kwargs"),
        ({"tool_choice": "required"}, 400, "tool_choice", "the model decides"),
        ({"tools": [{"type": "function"}]}, 400, "tools", "not rendered by the chat template"),
        ({"functions": [{"name": "f"}]}, 400, "functions", "Send tools"),
        ({"n": 2}, 400, "n", "several times"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "Leave it out"),
        ({"min_tokens": 7}, 400, "min_tokens", "Give at most 6"),
        ({"top_logprobs": 2}, 400, "top_logprobs", "Send logprobs"),
        ({"stream_options": {"other": 1}}, 400, "stream_options.other", "Correct it"),
        ({"of_a_later_version": 1}, 400, "of_a_later_version", "Leave it out"),
    ],
)
def test_a_request_that_cannot_be_answered_names_field_value_and_fix(client, fields, status, field, words):
    answer = ask(client, **fields)
    error = answer.json()["error"]
    code = {400: "bad_request", 404: "model_not_found"}[status]
    assert (answer.status_code, error["param"], error["code"]) == (status, field, code)
    assert words in error["message"]
    assert error["fix"]


def test_a_completion_refuses_what_would_change_its_text(client):
    for name, value in (("suffix", "end"), ("best_of", 2), ("echo", True), ("messages", []), ("logit_bias", {"5": 1})):
        answer = client.post("/v1/completions", json={"model": "base", "prompt": "a", "max_tokens": 1, name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_values_that_change_nothing_are_accepted(client):
    plain = ask(client).json()["choices"]
    neutral = {"n": 1, "frequency_penalty": 0, "logit_bias": {}, "tool_choice": "none", "response_format": None}
    assert ask(client, user="one", store=True, metadata={"a": "b"}, stream=None, **neutral).json()["choices"] == plain


def test_null_changes_nothing_whatever_the_parameter_and_the_key_of_a_message(client):
    plain = ask(client).json()
    for name in ("reasoning_effort", "seed", "stop", "tools", "logprobs", "of_a_later_version", "stream_options"):
        assert ask(client, **{name: None}).json()["choices"] == plain["choices"], name
    dumped = [message | {"tool_calls": None, "refusal": None, "name": None} for message in MESSAGES]
    assert ask(client, messages=dumped).json()["prompt_token_ids"] == plain["prompt_token_ids"]


def complete(client, **fields):
    body = {"model": "base", "prompt": "ab", "temperature": 0, "max_tokens": 6, "return_token_ids": True} | fields
    return client.post("/v1/completions", json=body)


@pytest.mark.parametrize("prompts", [["ab", "b", "Höhe 3"], [[3, 76], [3], [5, 6, 7]], ["ab", [3, 76]]], ids=str)
def test_each_prompt_of_a_list_is_answered_as_alone_whole_and_as_a_stream(client, prompts):
    alone = [complete(client, prompt=prompt).json() for prompt in prompts]
    together = complete(client, prompt=prompts).json()
    assert [choice["index"] for choice in together["choices"]] == list(range(len(prompts)))
    for choice, expected in zip(together["choices"], alone, strict=True):
        assert choice | {"index": 0} == expected["choices"][0]
    assert together["usage"]["total_tokens"] == sum(one["usage"]["total_tokens"] for one in alone)
    streamed = chunks(complete(client, prompt=prompts, stream=True, stream_options={"include_usage": True}))
    texts, ends = [""] * len(prompts), {}
    for choice in (choice for chunk in streamed for choice in chunk["choices"]):
        texts[choice["index"]] += choice["text"]
        ends |= {choice["index"]: choice["finish_reason"]} if choice["finish_reason"] else {}
    assert texts == [choice["text"] for choice in together["choices"]]
    assert [ends[index] for index in range(len(prompts))] == [one["choices"][0]["finish_reason"] for one in alone]
    assert streamed[-1]["usage"] == together["usage"]


@pytest.mark.parametrize(
    "wrong", [5, {}, [], [[]], ["a", 5], [["a"]], ["a"] * 129, [True]], ids=lambda one: str(one)[:20]
)
def test_what_is_no_prompt_is_refused_by_its_name(client, wrong):
    error = complete(client, prompt=wrong).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "bad_request")


def test_text_offsets_are_the_places_of_the_tokens_in_the_text(client):
    given = {"temperature": 1, "seed": 5, "max_tokens": 40, "logprobs": 0}
    choice = complete(client, **given).json()["choices"][0]
    text, logprobs = choice["text"], choice["logprobs"]
    assert not text.isascii()  # a character may have several tokens
    offsets = logprobs["text_offset"]
    assert len(offsets) == len(logprobs["tokens"])
    assert offsets == sorted(offsets)
    for token, offset in zip(logprobs["tokens"], offsets, strict=True):
        assert token.startswith("bytes:") or text[offset : offset + len(token)] == token or offset == len(text)
    streamed = chunks(complete(client, **given, stream=True))
    found = [one["logprobs"]["text_offset"] for chunk in streamed if (one := chunk["choices"][0])["logprobs"]]
    assert [offset for part in found for offset in part] == offsets


def test_a_repetition_penalty_changes_the_choice_but_not_the_reported_probabilities(client):
    def tokens(**fields):
        (choice,) = ask(client, logprobs=True, max_tokens=8, **fields).json()["choices"]
        return choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]]

    (plain, probable), (penalized, reported) = tokens(), tokens(repetition_penalty=5)
    assert len(set(plain)) < len(set(penalized)) == 8
    prefix = next(place for place, (one, other) in enumerate(zip(plain, penalized, strict=True)) if one != other)
    assert reported[:prefix] == pytest.approx(probable[:prefix])
    assert reported[prefix] < probable[prefix]


def test_min_p_leaves_only_likely_tokens(client):
    body = {"temperature": 3.0, "seed": 1}
    assert ask(client, min_p=1, **body).json()["choices"] == ask(client).json()["choices"]
    assert ask(client, min_p=0, **body).json()["choices"] != ask(client).json()["choices"]


def test_end_tokens_and_stop_strings_end_no_answer_before_min_tokens_and_none_with_ignore_eos(served):
    from dataclasses import replace

    with TestClient(application(served)) as client:
        first = ask(client).json()["choices"][0]["token_ids"][0]
    ending = {"base": replace(served["base"], ends=(first,))}
    with TestClient(application(ending)) as client:

        def answer(**fields):
            (choice,) = ask(client, max_tokens=8, **fields).json()["choices"]
            return choice["token_ids"], choice["finish_reason"], choice["message"]["content"]

        assert answer() == ([first], "stop", "")
        later = answer(min_tokens=3)[0]
        assert first not in later[:3]
        assert len(later) > 3
        endless, reason, text = answer(ignore_eos=True)
        assert (endless[0], len(endless), reason) == (first, 8, "length")
        stopped, reason, kept = answer(ignore_eos=True, stop=[text[0]])
        assert len(stopped) < 8
        assert (reason, kept) == ("stop", "")
        assert answer(ignore_eos=True, stop=[text[0]], min_tokens=8)[0] == endless


def test_the_bytes_of_each_token_are_those_of_the_answer(client):
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    from training.serving.text import TokenBytes

    whole = ask(client, max_tokens=30, temperature=1, seed=5, logprobs=True).json()["choices"][0]
    content = b"".join(bytes(entry["bytes"]) for entry in whole["logprobs"]["content"])
    assert content.decode(errors="replace") == whole["message"]["content"]
    assert not whole["message"]["content"].isascii()
    pieces = {"<unk>": 0, "▁a": 1, "<0xC3>": 2, "<0xA9>": 3}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    of = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=tokenizer)).of
    assert b"".join(map(of, (1, 2, 3))).decode() == " aé"


def test_openai_s_client_reads_models_answers_streams_and_errors(served):
    openai = pytest.importorskip("openai")
    app = application(served)
    with TestClient(app) as http:
        client = openai.OpenAI(base_url="http://testserver/v1", api_key="any", http_client=http, max_retries=0)
        assert {model.id for model in client.models.list()} == set(served)
        assert client.models.retrieve("one").id == "one"
        chat = {"model": "base", "messages": MESSAGES, "max_tokens": 5, "temperature": 0}
        answer = client.chat.completions.create(**chat, logprobs=True, extra_body={"min_tokens": 2})
        assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content) == 5
        streamed = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
        parts = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
        assert ("".join(parts), streamed[-1].usage.completion_tokens) == (answer.choices[0].message.content, 5)
        with pytest.raises(openai.BadRequestError, match="frequency_penalty") as refused:
            client.chat.completions.create(**chat, frequency_penalty=1)
        assert (refused.value.param, refused.value.type) == ("frequency_penalty", "invalid_request_error")
        with pytest.raises(openai.NotFoundError, match="Use one of base"):
            client.models.retrieve("nothing")


def test_the_documents_name_every_parameter_that_is_read():
    from paths import ROOT

    from training.serving.forms import WITHOUT_EFFECT, ChatRequest, CompletionRequest

    _, _, section = (ROOT / "docs" / "playground.md").read_text(encoding="utf-8").partition("## The endpoint")
    read = {*ChatRequest.model_fields, *CompletionRequest.model_fields, *WITHOUT_EFFECT}
    assert [name for name in sorted(read) if f"`{name}`" not in section] == []


TOO_SLOW = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def renderers():
    """Processes that render prompts: with two seconds for a template without end, and for others with as long as it takes."""
    return {True: templates.TemplateProcess(cpu_seconds=2), False: templates.TemplateProcess(cpu_seconds=3600)}


BOMBS = {
    "{{ 'a' * 10**10 }}": "more text than fits in memory",
    "{% set a = namespace(x='a' * 10**8) %}{% for i in range(40) %}{% set a.x = a.x ~ a.x %}{% endfor %}{{ a.x }}": "memory",
    "{{ 'a' * 30000000 }}": "at most 20,000,000",
    TOO_SLOW: "too much time",
    "{{ range(99999) | map('string') | join('x' * 99999) }}": "memory",
    "{{ raise_exception('no') }}": "no",
}


@pytest.mark.parametrize("template", BOMBS)
def test_a_template_that_exceeds_a_limit_is_refused_and_the_next_prompt_is_answered(
    client, served, renderers, monkeypatch, template
):
    renderer = renderers[template == TOO_SLOW]
    monkeypatch.setattr(templates, "SECONDS", 3600.0)
    monkeypatch.setattr(served["one"].tokenizer, "chat_template", template)
    monkeypatch.setattr(client.app.state.api, "_templates", renderer)
    renderer._known.clear()  # the tokenizer is sent again, with the other template
    answer = client.post("/tokenize", json={"model": "one", "messages": MESSAGES})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], BOMBS[template] in error["message"]) == (400, "messages", True), error
    assert ask(client).status_code == 200


def test_a_prompt_is_answered_though_the_process_that_renders_it_was_killed(client):
    assert ask(client).status_code == 200
    client.app.state.api._templates._process.kill()
    client.app.state.api._templates._process.join()
    assert ask(client).status_code == 200


def test_a_prompt_that_ends_the_process_each_time_is_refused(client, monkeypatch):
    renderer = templates.TemplateProcess()
    start = renderer._start

    def start_and_kill():
        connection = start()
        renderer._process.kill()
        renderer._process.join()
        return connection

    monkeypatch.setattr(renderer, "_start", start_and_kill)
    monkeypatch.setattr(client.app.state.api, "_templates", renderer)
    answer = ask(client)
    assert (answer.status_code, "too little memory" in answer.json()["error"]["message"]) == (400, True)


def test_a_template_that_python_cannot_interrupt_is_ended(client, served, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(templates, "SECONDS", 2.0)
        patched.setattr(served["one"].tokenizer, "chat_template", "{{ 7 ** (3 * 10**8) }}")
        client.app.state.api._templates._known.clear()  # the tokenizer is sent again, with the other template
        answer = client.post("/v1/chat/completions", json={"model": "one", "messages": MESSAGES})
        assert (answer.status_code, "too much time" in answer.json()["error"]["message"]) == (400, True)
    client.app.state.api._templates._known.clear()
    assert ask(client).status_code == 200


def test_every_route_needs_the_token(client):
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/health")):
        assert client.request(method, path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_cancelled_request_ends_and_the_next_one_is_answered(client, served):
    from training.serving.forms import CompletionRequest
    from training.serving.generation import generate
    from training.serving.jobs import Generator, Job

    seen, generator = [], Generator(generate)
    request = CompletionRequest(model="base", prompt="", temperature=1, seed=0)
    job = Job(served["base"], [3, 76], request, 400, seen.append)
    job.emit = lambda item: (seen.append(item), job.cancelled.set())
    generator.add(job)
    while generator.pending:
        pass
    assert len(seen) == 2  # one token and the end
    assert ask(client).status_code == 200


def job_of(served, client, emit=lambda item: None, **fields):
    from training.serving.forms import CompletionRequest
    from training.serving.jobs import Job

    request = CompletionRequest(model="base", prompt="a", **fields)
    return Job(served["base"], [3], request, 4, emit, client=client)


def test_clients_take_turns_whatever_one_of_them_has_sent(served):
    """One answer at a time, of a client that sent many at once and of two that send one after another."""
    from training.serving.jobs import Generator

    began, order = threading.Event(), []

    def answer(job):
        began.wait()
        order.append(job.client)
        if job.client != "many" and len(order) < 12:
            generator.add(job_of(served, job.client))

    generator = Generator(answer)
    for client in (*["many"] * 20, "one", "two"):
        generator.add(job_of(served, client))
    began.set()
    eventually(lambda: not generator.pending)
    assert order[:12] == ["many", "one", "two"] * 4 or order[:12] == ["many", "many", *["one", "two", "many"] * 4][:12]
    assert generator.answered == len(order)


def behind_an_answer(served, clients, emit=lambda _: None):
    """A generator with an answer under way and the requests of these clients behind it; the clients that it has answered, and what
    lets it go on."""
    from training.serving.jobs import Generator

    began, answered = threading.Event(), []

    def answer(job):
        began.wait()
        answered.append(job.client)

    generator = Generator(answer)
    generator.add(job_of(served, "running"))
    eventually(lambda: not generator._waiting)
    for client in clients:
        generator.add(job_of(served, client, emit))
    return generator, answered, began


def test_the_users_that_an_account_names_share_its_turns(served):
    clients = (*(f"eve/{number}" for number in range(5)), "eve/0", "bob/1", "bob/1", "bob/2")
    generator, answered, began = behind_an_answer(served, clients)
    began.set()
    eventually(lambda: not generator.pending)
    assert answered[1:] == ["eve/0", "bob/1", "eve/1", "bob/2", "eve/2", "bob/1", "eve/3", "eve/4", "eve/0"]


def test_an_account_is_no_other_one_by_the_users_that_it_names(served):
    """Once others wait for the place, one request of each account is answered."""
    from training.serving.jobs import Moved

    moved = []
    generator, answered, began = behind_an_answer(served, ("eve/0", "eve/1", "bob/0"), moved.append)
    generator.drain()
    began.set()
    eventually(lambda: not generator.pending)
    assert answered == ["running", "eve/0", "bob/0"]
    assert [type(one) for one in moved] == [Moved]


def test_before_others_take_the_place_each_client_gets_its_next_answer_and_the_rest_is_sent_back(served):
    from training.serving.jobs import Moved

    moved = []
    generator, answered, began = behind_an_answer(served, (*["many"] * 5, "one"), moved.append)
    generator.drain()
    with pytest.raises(Moved, match="makes room"):
        generator.add(job_of(served, "late"))
    began.set()
    eventually(lambda: not generator.pending)
    assert answered == ["running", "many", "one"]
    assert [type(one) for one in moved] == [Moved] * 4


@pytest.fixture
def live(folders):
    """A process that serves the base model alone."""
    from training.serving.loaded import Base, load

    with TestClient(application(load(Base(str(folders / "base"), "base"), {}, {}, {}))) as client:
        yield client


def test_adapters_that_join_a_process_answer_as_when_loaded_at_its_start_and_leave_the_base_as_it_was(
    live, client, folders
):
    names = ("base", "one", "two")
    expected = {name: ask(client, model=name).json()["choices"] for name in names}
    assert ask(live).json()["choices"] == expected["base"]
    for name in ("one", "two"):
        assert live.post("/load", json={"name": name, "folder": str(folders / name)}).json()["id"] == name
    assert {name: ask(live, model=name).json()["choices"] for name in names} == expected
    live.post("/load", json={"name": "again", "arguments": {}})
    assert ask(live, model="again").json()["choices"] == expected["base"]
    assert [one["id"] for one in live.get("/v1/models").json()["data"]] == ["base", "one", "two", "again"]


def damaged(folders, folder, change):
    """A copy of an adapter whose weights were changed."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folders / "one", folder)
    file = folder / "adapter_model.safetensors"
    save_file({name: change(weight).contiguous() for name, weight in load_file(file).items()}, file)
    return folder


@pytest.mark.parametrize("already", [False, True])
def test_an_adapter_that_cannot_join_leaves_the_others_as_they_were(live, client, folders, tmp_path, already):
    names = ["base", "one"] if already else ["base"]
    if already:
        live.post("/load", json={"name": "one", "folder": str(folders / "one")})
    for number, change in enumerate((lambda weight: weight[:1, :1], lambda weight: weight * float("nan"))):
        folder = damaged(folders, tmp_path / str(number), change)
        error = live.post("/load", json={"name": "broken", "folder": str(folder)}).json()["error"]
        assert error["param"] == "adapter"
        for name in names:
            assert ask(live, model=name).json()["choices"] == ask(client, model=name).json()["choices"]
    assert live.post("/load", json={"name": "two", "folder": str(folders / "two")}).status_code == 200
    for name in (*names, "two"):
        assert ask(live, model=name).json()["choices"] == ask(client, model=name).json()["choices"]


def test_a_process_that_makes_room_refuses_requests_so_that_they_can_be_sent_again(live):
    assert live.post("/drain").json()["pending"] == 0
    for fields in ({}, {"stream": True}):
        refused = ask(live, **fields)
        assert (refused.status_code, refused.headers["X-Lathe-Moved"]) == (503, "1")


def test_an_answer_says_how_long_it_waited_for_others(client):
    for fields in ({}, {"stream": True}):
        assert float(ask(client, **fields).headers["X-Lathe-Queue-Seconds"]) >= 0


def test_an_encoder_decoder_answers_plain_text_as_when_loaded_alone(folders):
    import torch
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    from training.serving.loaded import Base, load

    tokenizer = AutoTokenizer.from_pretrained(folders / "base")
    tokenizer.chat_template = None
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(1)
    config = T5Config(vocab_size=len(tokenizer), **sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    folder = folders / "t5"
    model = T5ForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with TestClient(application(load(Base(str(folder), "t5"), {}, {}, {}))) as client:
        body = {"model": "t5", "prompt": "Höhe 3", "temperature": 0, "max_tokens": 6, "return_token_ids": True}
        choice = client.post("/v1/completions", json=body).json()["choices"][0]
        refused = ask(client, model="t5").json()["error"]
    ids = torch.tensor([choice["prompt_token_ids"]])
    generated = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)
    assert generated[0, 1:].tolist() == choice["token_ids"]
    assert "has no chat template" in refused["message"]
    assert "plain text" in refused["fix"]
