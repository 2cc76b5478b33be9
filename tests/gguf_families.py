"""Tiny random models of the families that people train, with tokenizers in the style of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from training.results.gguf import split_rules

CORPUS = [
    "The quick brown fox jumps over the lazy dog; it's what they'd have done, I'LL say. We've 12 345 of 6789 in 2024.",
    "def add(first, second):\n    return first + second  # the sum\n\n\nclass Tree:\n\tdef __init__(self) -> None: ...\n",
    "Größe, naïve café, ΑΒΓ αβγ, Привет мир, 日本語のテキスト, 한국어, हिन्दी में, العربية, 🙂🚀👩‍👩‍👧",
    "the then there these this that with without within and hand sand land  two   three    four spaces",
] * 8
TEXTS = [
    "",
    " ",
    "Hello world",
    " Hello  world   again\n\nnew\tline \r\n end ",
    "1 12 123 1234 12345 3.14159 1,000,000 2024-05-17",
    "It's they'd I'LL we've 'total 'S ''quoted''",
    "def add(a, b):\n    return a + b  # sum\n\n\tif x != y: pass;\n",
    "Größe naïve café ΑΒΓ αβγ Привет 日本語のテキスト 한국어 हिन्दी العربية",
    "🙂🚀 👩‍👩‍👧 emoji 😶‍🌫️✅",
    '{"key": [1, 2.5, null], "s": "a\\nb"} <html>&amp;</html> http://x.org/?q=1#a',
    "!!!???...---===___***~~~```$$$^^^",
    "a\u0301 e\u0308 zero\u200bwidth non\u00a0breaking \u3000wide",
    "ALLCAPS camelCase PascalCase snake_case kebab-case",
    "\n\n\n   \n \t \t\t",
]
"""Texts on which tokenizers differ; the empty one included."""
ENDS = {"CHATML": ("<|im_start|>", "<|im_end|>"), "LLAMA3": ("<|start_header_id|>", "<|eot_id|>")}

CHATML = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + "
    "m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) "
    "+ '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
PHI3 = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
HIDDEN, LAYERS = 256, 2
_SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_LONG = [1.0 + 0.1 * place for place in range(12)]


@dataclass(frozen=True)
class Family:
    """A model type of transformers with its configuration, a tokenizer, its chat template and special tokens."""

    model_type: str
    tokenizer: Callable[["Family"], Tokenizer]
    template: str
    specials: tuple[str, ...]
    bos: str | None
    eos: str
    config: dict[str, Any] = field(default_factory=dict)


def _trained(tokenizer: Tokenizer, family: Family, size: int = 420) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + size, special_tokens=list(family.specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    if family.bos:
        number = tokenizer.token_to_id(family.bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", pair=f"{family.bos} $A {family.bos} $B", special_tokens=[(family.bos, number)]
        )
    return tokenizer


def gpt2_bytes(family: Family) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained(tokenizer, family)


def digits_then_bytes(family: Family) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return _trained(tokenizer, family)


def split_by(pattern: str, *, ignore_merges: bool = False, nfc: bool = False) -> Callable[[Family], Tokenizer]:
    def make(family: Family) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        if nfc:
            tokenizer.normalizer = normalizers.NFC()
        return _trained(tokenizer, family)

    return make


def sentencepiece(prefix: str) -> Callable[[Family], Tokenizer]:
    """BPE with byte fallback; `prefix` says how the first space is added: gemma (not), prepend, first or always."""

    def make(family: Family) -> Tokenizer:
        learner = Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        learner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, show_progress=False))
        learned = learner.get_vocab()
        texts = [
            *family.specials,
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *sorted(learned, key=learned.__getitem__),
        ]
        vocab = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        merges = [
            (text[:place], text[place:])
            for text in learned_order(learned)
            for place in range(1, len(text))
            if text[:place] in learned and text[place:] in learned
        ]
        tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        if prefix == "gemma":
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        elif prefix == "prepend":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in family.specials])
        if family.bos:
            number = tokenizer.token_to_id(family.bos)
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{family.bos} $A",
                pair=f"{family.bos} $A {family.bos} $B",
                special_tokens=[(family.bos, number)],
            )
        return tokenizer

    return make


def learned_order(learned: dict[str, int]) -> list[str]:
    """Tokens that merges make, in the order in which they were learned."""
    return [text for text in sorted(learned, key=learned.__getitem__) if len(text) > 1]


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA3_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_GEMMA_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
_MISTRAL_TOKENS = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
_PHI_TOKENS = ("<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
_GEMMA_SHAPE = _SHAPE | {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}

FAMILIES = {
    "gpt2": Family("gpt2", gpt2_bytes, "", ("<|endoftext|>",), None, "<|endoftext|>",
                   {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 8, "n_positions": 512}),
    "llama-3.2": Family("llama", split_by(split_rules.THREE_DIGITS, ignore_merges=True), LLAMA3, _LLAMA3_TOKENS,
                        "<|begin_of_text|>", "<|eot_id|>", _SHAPE | {"rope_parameters": _LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama-2": Family("llama", sentencepiece("prepend"), "", ("<unk>", "<s>", "</s>"), "<s>", "</s>",
                      _SHAPE | {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    "smollm": Family("llama", digits_then_bytes, CHATML, _CHATML, None, "<|im_end|>", _SHAPE | {"attention_bias": True}),
    "mistral-v0.3": Family("mistral", sentencepiece("first"), MISTRAL, _MISTRAL_TOKENS, "<s>", "</s>",
                           _SHAPE | {"sliding_window": None, "head_dim": 64}),
    "mistral-nemo": Family("mistral", split_by(split_rules.TEKKEN, ignore_merges=True), MISTRAL, _MISTRAL_TOKENS, "<s>", "</s>",
                           _SHAPE | {"sliding_window": 256}),
    "qwen2.5": Family("qwen2", split_by(split_rules.EACH_DIGIT, nfc=True), CHATML, _CHATML, None, "<|im_end|>",
                      _SHAPE | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                                    "original_max_position_embeddings": 128}}),
    "qwen3": Family("qwen3", split_by(split_rules.EACH_DIGIT, nfc=True), CHATML, _CHATML, None, "<|im_end|>",
                    _SHAPE | {"head_dim": 64}),
    "gemma": Family("gemma", sentencepiece("gemma"), GEMMA, _GEMMA_TOKENS, "<bos>", "<eos>", _SHAPE | {"head_dim": 32}),
    "gemma2": Family("gemma2", sentencepiece("gemma"), GEMMA, _GEMMA_TOKENS, "<bos>", "<eos>", _GEMMA_SHAPE),
    "gemma3": Family("gemma3_text", sentencepiece("gemma"), GEMMA, _GEMMA_TOKENS, "<bos>", "<eos>",
                     _GEMMA_SHAPE | {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                         "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}}}),
    "phi-2": Family("phi", gpt2_bytes, "", ("<|endoftext|>",), None, "<|endoftext|>", _SHAPE | {"num_key_value_heads": 8}),
    "phi-3": Family("phi3", sentencepiece("first"), PHI3, _PHI_TOKENS, "<s>", "<|endoftext|>",
                    _SHAPE | {"pad_token_id": 0}),
    "phi-4": Family("phi3", split_by(split_rules.THREE_DIGITS), CHATML, _CHATML, None, "<|im_end|>",
                    _SHAPE | {"pad_token_id": 0}),
    "phi-4-mini": Family("phi3", split_by(split_rules.O200K), PHI3, _PHI_TOKENS[3:], None, "<|endoftext|>",
                         _SHAPE | {"pad_token_id": 0, "max_position_embeddings": 1024, "original_max_position_embeddings": 512,
                                   "tie_word_embeddings": True, "partial_rotary_factor": 0.75,
                                   "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0,
                                                       "partial_rotary_factor": 0.75,
                                                       "original_max_position_embeddings": 512,
                                                       "long_factor": [2 * one for one in _LONG], "short_factor": _LONG}}),
}  # fmt: skip


def make(name: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Saves a random model of the family with its tokenizer in `folder`; all its parameters differ from their defaults."""
    family = FAMILIES[name]
    torch.manual_seed(0)
    text = PreTrainedTokenizerFast(
        tokenizer_object=family.tokenizer(family), bos_token=family.bos, eos_token=family.eos,
        chat_template=family.template or None, clean_up_tokenization_spaces=False,
        **({"unk_token": "<unk>"} if "<unk>" in family.specials else {}),
    )  # fmt: skip
    ends = {"bos_token_id": text.bos_token_id, "eos_token_id": text.eos_token_id}
    config = AutoConfig.for_model(family.model_type, **(family.config | ends | {"vocab_size": len(text) + 3} | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    text.save_pretrained(folder)
    return folder
