"""Tiny tokenizers of three kinds, and chat templates in the style of common model families."""

import json
from pathlib import Path
from typing import Any

SYSTEM = "{%- if messages[0]['role'] == 'system' %}"

CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
)
LLAMA3 = (
    "{{- bos_token -}}{%- for m in messages %}"
    "{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' -}}"
    "{% endfor -%}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{% endif -%}"
)
GEMMA = (
    "{{- bos_token -}}{%- set ns = namespace(first='') -%}"
    "{%- if messages[0]['role'] == 'system' -%}{%- set ns.first = messages[0]['content'] + '\\n\\n' -%}"
    "{%- set turns = messages[1:] -%}{%- else -%}{%- set turns = messages -%}{%- endif -%}"
    "{%- for m in turns -%}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Roles must alternate') }}{%- endif -%}"
    "{%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}"
    "{{- '<start_of_turn>' + role + '\\n' + (ns.first if loop.first else '') + m['content'] | trim + '<end_of_turn>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"
)
MISTRAL = (
    "{{- bos_token -}}{%- set ns = namespace(system='') -%}{%- for m in messages -%}"
    "{%- if m['role'] == 'system' -%}{%- set ns.system = m['content'] + '\\n\\n' -%}"
    "{%- elif m['role'] == 'user' -%}{{- '[INST]' + ns.system + m['content'] + '[/INST]' -}}{%- set ns.system = '' -%}"
    "{%- else -%}{{- m['content'] + eos_token -}}{%- endif -%}{%- endfor -%}"
)
QWEN3 = (
    "{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n' -}}{%- for tool in tools %}{{- tool | tojson + '\\n' -}}{% endfor -%}"
    "{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m['role'] == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- for m in messages -%}{%- set content = m['content'] or '' -%}"
    "{%- if m['role'] == 'assistant' -%}"
    "{%- set thought = m['reasoning_content'] or '' -%}"
    "{%- if not thought and '</think>' in content -%}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1] -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- if loop.index0 > ns.last and (loop.last or thought) -%}"
    "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' -}}{%- endif -%}{{- content -}}"
    "{%- for call in m['tool_calls'] or [] -%}"
    "{{- '\\n<tool_call>\\n' + call['function'] | tojson + '\\n</tool_call>' -}}{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- elif m['role'] == 'tool' -%}"
    "{{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' -}}"
    "{%- else -%}{{- '<|im_start|>' + m['role'] + '\\n' + content + '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
)
FAMILIES: dict[str, tuple[str, str, list[str]]] = {  # template, end token, other special tokens
    "llama3": (LLAMA3, "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    "qwen3": (QWEN3, "<|im_end|>", ["<|im_start|>"]),
    "gemma": (GEMMA, "<end_of_turn>", ["<start_of_turn>"]),
    "chatml": (CHATML, "<|im_end|>", ["<|im_start|>"]),
    "mistral": (MISTRAL, "</s>", ["[INST]", "[/INST]"]),
}
KINDS = ("byte_level", "byte_fallback", "unigram")
_CORPUS = [
    "The answer is four.",
    "What is two plus two? Hello, how are you today?",
    "user assistant model system think",
] * 4


def backend(kind: str, special: list[str]) -> Any:
    """A tokenizer of a kind: byte-level BPE, BPE with byte fallback, or Unigram with byte fallback, as SentencePiece makes them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if kind == "byte_level":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(_CORPUS, trainer)
        return tokenizer
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = sorted(set("▁\n0123456789+<>/:" + "".join(_CORPUS).replace(" ", "▁")))
    if kind == "byte_fallback":
        vocabulary = {piece: index for index, piece in enumerate(["<unk>", *special, *fallback, *pieces, "th", "▁th"])}
        tokenizer = Tokenizer(
            models.BPE(
                vocab=vocabulary, merges=[("t", "h"), ("▁", "th")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
            )
        )
    else:
        scored = [(piece, -float(index)) for index, piece in enumerate(["<unk>", *special, *fallback, *pieces, "▁the"])]
        tokenizer = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special)
    return tokenizer


def make_tokenizer(family: str, kind: str = "byte_level", **changes: Any) -> Any:
    """The tokenizer of a family of models; `changes` replace its tokens and its template."""
    from transformers import PreTrainedTokenizerFast

    template, end, others = FAMILIES[family]
    special = ["<pad>", "<s>", end, *others, *changes.pop("more", [])]
    given = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": end, "extra_special_tokens": others}
    template = changes.pop("chat_template", template)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend(kind, special), **given | changes)
    fast.chat_template = template
    return fast


def chat(*contents: str, system: str = "", **answer: Any) -> dict[str, Any]:
    """A row of user and assistant messages in turn; `answer` adds fields to the last one."""
    messages: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[index % 2], "content": content} for index, content in enumerate(contents)
    ]
    messages[-1] |= answer
    return {"messages": [*([{"role": "system", "content": system}] if system else []), *messages]}


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def write_model(folder: Path, head: int, **config: Any) -> Path:
    """A folder with a config.json, as far as the check reads it."""
    folder.mkdir(exist_ok=True)
    values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": head, **config}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder
