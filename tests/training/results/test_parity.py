"""Saved results render and answer as the trained model does; a form that does not is named."""

import json
import math
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm
import without_ipv4
from paths import PROGRAMS, ROOT
from safetensors.torch import load_file, save_file
from trained import FAMILIES, PARITY, Recipe, copy_of, data, model, of_family, trained
from trainer_process import train_here
from transformers import AutoTokenizer

from training.config.run_config import RunConfig
from training.errors import UserError
from training.results.evaluate import load_weights
from training.results.parity.comparison import Row, document
from training.results.parity.forms import adapter_form
from training.results.parity.reference import Reference, ReferencePrompt
from training.results.parity.verify import verdict, verify
from training.serving.loaded import Base, load

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
ON_CHATS = Recipe("llama", "chats", PARITY)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_form_of_a_family_has_the_prompts_and_answers_of_training(name: str) -> None:
    found = trained(of_family(name, merge_adapter=True)).summary["parity"]
    assert found["equal"], found
    for form in ("adapter", "merged"):
        assert (found["forms"][form]["rows"], found["forms"][form]["prompt_ids_equal"]) == (3, True)
        assert found["forms"][form]["max_logit_difference"] < 1e-4


def finished(recipe: Recipe, run_dir: Path) -> tuple[RunConfig, Path, Reference]:
    """A run with its adapter, and its reference."""
    copy_of(recipe, run_dir, "merged")
    config = RunConfig.model_validate_json((run_dir / "config.json").read_text())
    reference = Reference.read(run_dir)
    assert reference
    return config, run_dir, reference


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="needs llama_cpp_python (the extra llama)")
@pytest.mark.parametrize("name", FAMILIES)
def test_llama_cpp_renders_and_answers_as_training_did(name: str, tmp_path: Path) -> None:
    config, run_dir, reference = finished(of_family(name, merge_adapter=True), tmp_path / "run")
    exact, lossy = verify(config, run_dir, reference, ["gguf", "gguf-Q8_0"])
    assert (exact["prompt_ids_equal"], exact["answers_equal"]) == (True, True), exact
    assert exact["max_logit_difference"] < 5e-3
    assert lossy["prompt_ids_equal"]
    assert lossy["perplexity"] == pytest.approx(exact["perplexity"], rel=0.1)


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_the_served_result_renders_and_answers_as_training_did(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.use_python(monkeypatch)
    config, run_dir, reference = finished(of_family(name, merge_adapter=True), tmp_path / "run")
    (served,) = verify(config, run_dir, reference, ["served"])
    assert (served["rows"], served["prompt_ids_equal"], served["answers_equal"]) == (3, True, True), served
    assert served["max_logit_difference"] < 1e-4


def test_a_thinking_block_that_serving_omits_is_found_in_the_first_row() -> None:
    found = trained(Recipe("qwen3", "chats", PARITY)).summary["parity"]
    assert not found["equal"]
    different = found["forms"]["adapter"]["first_difference"]
    assert different["what"] == "prompt"
    assert different["trained"].startswith("<think>")


def test_an_answer_ends_at_the_token_that_the_chat_teaches(tmp_path: Path) -> None:
    """A base model's own end token is another: without a generation configuration the answer would go on."""
    base = Path(shutil.copytree(model("qwen3"), tmp_path / "model"))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    train_here(tmp_path / "run", base, data("chats"), **PARITY)
    written = json.loads((tmp_path / "run/adapter/generation_config.json").read_text())
    im_end = AutoTokenizer.from_pretrained(base).convert_tokens_to_ids("<|im_end|>")
    assert sorted(written["eos_token_id"]) == [0, im_end]


def test_another_template_and_other_weights_are_found(tmp_path: Path) -> None:
    config, run_dir, reference = finished(ON_CHATS, tmp_path / "run")
    kept = run_dir / "kept"
    shutil.copytree(run_dir / "adapter", kept)
    template = run_dir / "adapter/chat_template.jinja"
    template.write_text(template.read_text().replace("<|user|>", "User: "))
    template.write_text("Be brief. " + template.read_text())
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert (form["prompt_ids_equal"], form["answers_equal"]) == (False, True)
    assert form["first_difference"]["here"].startswith("Be brief.")
    shutil.rmtree(run_dir / "adapter")
    kept.rename(run_dir / "adapter")
    weights = load_file(run_dir / "adapter/adapter_model.safetensors")
    save_file({name: -8 * value for name, value in weights.items()}, run_dir / "adapter/adapter_model.safetensors")
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert (form["prompt_ids_equal"], form["answers_equal"]) == (True, False)
    assert form["max_logit_difference"] > 0.1
    assert not verdict(reference, [form])["equal"]


def test_a_form_that_cannot_be_loaded_has_its_reason(tmp_path: Path) -> None:
    config, run_dir, reference = finished(ON_CHATS, tmp_path / "run")
    (run_dir / "adapter/adapter_model.safetensors").unlink()
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert form["error"]["message"]
    assert not verdict(reference, [form])["equal"]


def test_a_quantized_run_equals_on_its_own_base_and_loses_little_elsewhere(tmp_path: Path) -> None:
    quantized = of_family("llama-3.2", quantization="4bit", merge_adapter=True)
    parity = trained(quantized).summary["parity"]
    assert parity["equal"], parity
    exact, merged = parity["forms"]["adapter"], parity["forms"]["merged"]
    assert (exact["lossy"], exact["answers_equal"], merged["lossy"]) == (False, True, True)
    assert exact["max_logit_difference"] < 1e-4
    assert merged["max_logit_difference"] > 0.01
    assert merged["perplexity_loss"] == pytest.approx(merged["perplexity"] - parity["perplexity"])
    config, run_dir, reference = finished(quantized, tmp_path / "run")
    card = (run_dir / "adapter/README.md").read_text()
    assert f"perplexity {merged['perplexity']:.4g}" in card
    (other,) = verify(config, run_dir, reference, ["adapter-8bit"])
    assert (other["lossy"], other["prompt_ids_equal"], other["perplexity_loss"] != 0) == (True, True, True), other


def test_a_full_fine_tuning_is_compared_as_a_model() -> None:
    found = trained(Recipe("llama", "chats", PARITY | {"method": "full"})).summary["parity"]
    assert (list(found["forms"]), found["equal"]) == (["model"], True)


def test_a_merged_head_that_shared_its_weights_with_the_embeddings_has_its_own(tmp_path: Path) -> None:
    settings = {"target_modules": "c_attn, lm_head", "merge_adapter": True, "learning_rate": 0.05}
    run = trained(of_family("gpt2", **settings))
    assert json.loads((model("gpt2") / "config.json").read_text()).get("tie_word_embeddings", True)
    parity = run.summary["parity"]
    assert parity["equal"] and parity["forms"]["merged"]["max_logit_difference"] < 1e-4, parity
    assert json.loads((run.run_dir / "merged/config.json").read_text())["tie_word_embeddings"] is False
    assert any("lm_head" in name for name in load_file(run.run_dir / "merged/model.safetensors"))


@pytest.mark.parametrize(
    ("exact", "answer", "loss", "equal"),
    [
        (True, [2], 9.0, True),
        (True, [3], 9.0, False),  # another answer in fp32
        (False, [3], 9.01, True),  # rounding in bf16
        (True, [2], 9.25, False),  # the same greedy answer, another perplexity
        (False, [2], 9.25, False),
    ],
)
def test_greedy_answers_alone_do_not_decide(exact: bool, answer: list[int], loss: float, equal: bool) -> None:
    prompt = ReferencePrompt(0, [1], "a", expected=[2], answer=[2], loss=9.0)
    rows = [Row(prompt, [1], answer, None, loss)]
    form = document("merged", rows, Reference([prompt], exact=exact), str, lossy=False)
    assert form["equal"] is equal
    assert form["perplexity_loss"] == pytest.approx(math.exp(loss) - math.exp(9.0))


@pytest.mark.parametrize(("own", "equal"), [([4], True), ([5], False), (None, True)])
def test_answers_under_the_model_s_own_configuration_count_where_the_form_has_one(
    own: list[int] | None, equal: bool
) -> None:
    prompt = ReferencePrompt(0, [1], "a", expected=[2], answer=[2], own_answer=[4], loss=9.0)
    rows = [Row(prompt, [1], [2], None, 9.0, own)]
    form = document("adapter", rows, Reference([prompt], exact=True), str, lossy=False)
    assert form["equal"] is equal
    assert (form["own_answers"], form["equal_own_answers"]) == (int(own is not None), int(own == [4]))
    assert (form["first_difference"] or {}).get("what") == (None if equal else "answer by generation_config.json")


def test_a_saved_configuration_without_the_trained_model_s_penalty_is_found(tmp_path: Path) -> None:
    config, run_dir, reference = finished(ON_CHATS, tmp_path / "run")
    file = run_dir / "adapter/generation_config.json"
    penalized = json.loads(file.read_text()) | {"repetition_penalty": 3.0}
    file.write_text(json.dumps(penalized))
    with adapter_form(config, run_dir / "adapter", config.quantized, []) as form:
        for prompt in reference.prompts:
            prompt.own_answer = form.own_answer(prompt, reference.max_new_tokens)
    (same,) = verify(config, run_dir, reference, ["adapter"])
    assert (same["own_answers"], same["equal_own_answers"], same["answers_equal"]) == (3, 3, True)
    file.write_text(json.dumps(penalized | {"repetition_penalty": 1.5}))
    (changed,) = verify(config, run_dir, reference, ["adapter"])
    assert changed["equal_own_answers"] < 3 and not changed["answers_equal"]


def test_logits_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    config, run_dir, reference = finished(ON_CHATS, tmp_path / "run")
    weights = load_file(run_dir / "adapter/adapter_model.safetensors")
    save_file(
        {name: value * math.nan for name, value in weights.items()}, run_dir / "adapter/adapter_model.safetensors"
    )
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert "has NaN or infinity in 8 of" in form["error"]["message"]
    assert not verdict(reference, [form])["equal"]
    with pytest.raises(UserError, match="has NaN or infinity"):
        load_weights(config, run_dir / "adapter", AutoTokenizer.from_pretrained(run_dir / "adapter"), ())
    base = Base(config.model, "base")
    with pytest.raises(UserError, match="has NaN or infinity"):
        load(base, {"broken": run_dir / "adapter"}, {}, {})


CHATTED_PAIRS = [
    {"prompt": [{"role": "user", "content": f"{n}?"}], "chosen": [{"role": "assistant", "content": "yes"}],
     "rejected": [{"role": "assistant", "content": "no"}]} for n in range(20)
]  # fmt: skip


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize(("task", "rows"), [("classification", "classes"), ("reward", "pairs")])
def test_a_model_that_gives_scores_is_compared_by_its_scores(task: str, rows: str, method: str) -> None:
    settings = PARITY | {"task": task, "method": method, "merge_adapter": method == "lora", "learning_rate": 0.05}
    found = trained(Recipe("plain_llama", rows, settings)).summary["parity"]
    assert found["equal"], found
    assert list(found["forms"]) == (["model"] if method == "full" else ["adapter", "merged"])
    for form in found["forms"].values():
        assert (form["rows"], form["prompt_ids_equal"], form["answers_equal"]) == (3, True, True)
        assert form["max_logit_difference"] < 1e-4


def test_a_reward_model_reads_a_conversation_as_it_was_trained(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in CHATTED_PAIRS))
    run = train_here(tmp_path / "run", model("qwen3"), file, **PARITY | {"task": "reward"})
    parity = run.summary["parity"]
    assert parity["equal"] and parity["forms"]["adapter"]["prompt_ids_equal"], parity


def test_a_classifier_with_another_head_differs_and_names_the_classes(tmp_path: Path) -> None:
    recipe = Recipe("plain_llama", "classes", PARITY | {"task": "classification", "learning_rate": 0.05})
    config, run_dir, reference = finished(recipe, tmp_path / "run")
    file = run_dir / "adapter/adapter_model.safetensors"
    save_file({name: -value if "score" in name else value for name, value in load_file(file).items()}, file)
    (form,) = verify(config, run_dir, reference, ["adapter"])
    assert not form["equal"] and form["prompt_ids_equal"]
    assert {form["first_difference"]["trained"], form["first_difference"]["here"]} == {"good", "bad"}


def test_the_served_form_is_reached_on_a_machine_without_ipv4() -> None:
    done = without_ipv4.python(PROGRAMS / "served_form.py", ROOT / "static/starter")
    assert done.stdout.startswith("http://[::1]:"), done.stderr
