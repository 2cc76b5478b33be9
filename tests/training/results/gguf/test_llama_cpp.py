"""llama.cpp reads a converted model as transformers does: tokens, chat prompts, logits and greedy answers."""

import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_families import FAMILIES, TEXTS, make
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.results.gguf.convert import convert

pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (the extra llama)", exc_type=ImportError)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

from training.results.gguf.llama import LlamaModel  # noqa: E402

LATIN_MARKS, HINDI = "a\u0301", "हिन्दी"
DIFFER = {
    "qwen2.5": LATIN_MARKS,
    "qwen3": LATIN_MARKS,
    "mistral-nemo": HINDI,
    "phi-4-mini": HINDI,
}
"""Texts that llama.cpp splits differently: it does not compose characters (NFC), and tekken and gpt-4o split at marks."""
PREFIXED = ("mistral-v0.3", "phi-3")
"""A space is put before a text, but not before a chat's; llama.cpp can only do both, and chats are what is written."""
WITHOUT_BEGIN = ("phi-3",)
"""Its chat template does not start with the token that the tokenizer puts before texts, so llama.cpp shall not add it."""
BLOCKS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0x2000, 0x206F),
    (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1FAFF), (0xFF00, 0xFFEF),
]  # fmt: skip
CHAT = [
    {"role": "user", "content": " Hello  there, 123!\n"},
    {"role": "assistant", "content": "It's a naïve answer 🙂."},
    {"role": "user", "content": "def add(a, b):\n    return a + b"},
]


class Converted:
    """A model and its tokenizer in transformers, and the GGUF file."""

    def __init__(self, name: str, folder: Path, **changes: Any) -> None:
        make(name, folder / "model", **changes)
        self.file = folder / "model.gguf"
        self.notes = convert(folder / "model", self.file)
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder / "model"))
        self.model = AutoModelForCausalLM.from_pretrained(str(folder / "model")).eval()

    def logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(torch.tensor([tokens])).logits[0].float()


def close(converted: Converted) -> float:
    """The tolerance of logits: llama.cpp looks GELU up in a table of fp16 values, all else is fp32."""
    return 1e-4 if getattr(converted.model.config, "hidden_act", "") == "silu" else 3e-3


@pytest.fixture(scope="module", params=FAMILIES)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Converted, LlamaModel]:
    converted = Converted(request.param, tmp_path_factory.mktemp("family"))
    return request.param, converted, LlamaModel(converted.file, threads=1)


def test_texts_have_the_same_tokens(family: tuple[str, Converted, LlamaModel]) -> None:
    name, converted, loaded = family
    start = FAMILIES[name].bos or "" if name in PREFIXED else ""
    for text in TEXTS:
        for special in (False, True):
            if special and name in WITHOUT_BEGIN:
                continue
            expected = converted.tokenizer(start + text, add_special_tokens=special)["input_ids"]
            same = loaded.tokens(start + text, special=special) == expected
            assert same is not (name in DIFFER and DIFFER[name] in text), (text, special)


def random_texts(count: int) -> list[str]:
    """Composed (NFC) texts of many scripts, symbols and white space, the same in each call."""
    draw, found = random.Random(20), list[str]()
    for _ in range(count):
        parts = [chr(draw.randint(*draw.choice(BLOCKS))) for _ in range(draw.randint(1, 60))]
        parts += draw.choices([" ", "  ", "\n", "\t", "'s", "'LL", "1234"], k=12)
        draw.shuffle(parts)
        known = "".join(part for part in parts if len(part) > 1 or unicodedata.category(part) not in ("Cn", "Cs"))
        found.append(unicodedata.normalize("NFC", known))
    return found


def test_random_texts_have_the_same_tokens(family: tuple[str, Converted, LlamaModel]) -> None:
    name, converted, loaded = family
    if DIFFER.get(name) == HINDI or name in PREFIXED:
        pytest.skip("splits some texts differently, as docs/outputs.md says")
    for text in random_texts(60):
        assert loaded.tokens(text) == converted.tokenizer(text, add_special_tokens=False)["input_ids"], ascii(text)


def test_a_chat_has_the_tokens_that_training_uses(family: tuple[str, Converted, LlamaModel]) -> None:
    name, converted, loaded = family
    if not FAMILIES[name].template:
        pytest.skip("has no chat template")
    prompt = converted.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert loaded.prompt(CHAT) == prompt


def test_a_server_adds_the_first_token_that_the_template_writes(family: tuple[str, Converted, LlamaModel]) -> None:
    name, converted, loaded = family
    if not FAMILIES[name].template:
        pytest.skip("has no chat template")
    text = converted.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    prompt = converted.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert loaded.tokens(text.removeprefix(FAMILIES[name].bos or ""), special=True) == prompt


def test_logits_and_greedy_answers_are_equal(family: tuple[str, Converted, LlamaModel]) -> None:
    _, converted, loaded = family
    torch.manual_seed(1)
    tokens = torch.randint(10, 300, (96,)).tolist()
    expected = converted.logits(tokens)
    assert expected.std() > 0.5
    assert torch.allclose(loaded.logits(tokens), expected, atol=close(converted))
    answer = converted.model.generate(torch.tensor([tokens]), max_new_tokens=8, do_sample=False)[0, len(tokens) :]
    assert loaded.greedy(tokens, 8)[0] == answer.tolist()
    assert loaded.loss(tokens) == pytest.approx(
        converted.model(torch.tensor([tokens]), labels=torch.tensor([tokens])).loss.item(), abs=1e-3
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma3", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("gemma2", {"layer_types": ["full_attention", "full_attention"]}),
        ("gemma3", {"layer_types": ["full_attention", "full_attention"]}),
        ("gemma2", {"layer_types": ["sliding_attention", "sliding_attention"], "attn_logit_softcapping": 0.5}),
        ("llama-3.2", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "attention_bias": True}),
        ("qwen3", {"tie_word_embeddings": True, "head_dim": 32}),
    ],
)
def test_variants_of_a_family_are_equal_too(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    converted = Converted(name, tmp_path, **changes)
    tokens = torch.arange(10, 106).tolist()
    with LlamaModel(converted.file, threads=1) as loaded:
        assert torch.allclose(loaded.logits(tokens), converted.logits(tokens), atol=close(converted))


def test_a_window_that_llama_cpp_ignores_shortens_the_context(tmp_path: Path) -> None:
    converted = Converted("mistral-nemo", tmp_path, sliding_window=64)
    assert converted.notes == [
        "llama.cpp does not compute this model's sliding window, so its context is 64 tokens and not 512."
    ]
    tokens = torch.arange(10, 106).tolist()
    with LlamaModel(converted.file, threads=1) as loaded:
        far = (loaded.logits(tokens) - converted.logits(tokens)).abs().amax(dim=1)
    assert far[:64].max() < close(converted)
    assert far[64:].max() > 0.01


def test_longer_contexts_use_the_long_factors(tmp_path: Path) -> None:
    converted = Converted("phi-4-mini", tmp_path)
    tokens = torch.randint(10, 300, (600,), generator=torch.Generator().manual_seed(0)).tolist()
    with LlamaModel(converted.file, context=700, threads=1) as loaded:
        assert torch.allclose(loaded.logits(tokens)[-1], converted.logits(tokens)[-1], atol=close(converted))


def test_the_starter_model_reads_and_answers_the_same(tmp_path: Path) -> None:
    from paths import ROOT

    starter = ROOT / "static/starter"
    convert(starter, tmp_path / "model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(str(starter))
    model = AutoModelForCausalLM.from_pretrained(str(starter)).eval()
    with LlamaModel(tmp_path / "model.gguf", threads=1) as loaded:
        for text in TEXTS:
            assert loaded.tokens(text, special=True) == tokenizer(text)["input_ids"], text
        chat = [{"role": "user", "content": "Say 'hello there' in 3 words: naïve, café!"}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert loaded.prompt(chat) == prompt
        answer = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :].tolist()
        assert loaded.greedy(prompt, 20)[0] == answer
