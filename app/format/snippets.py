"""How to use a run's result in peft, transformers, vLLM, llama.cpp and Ollama, with the run's own names. Pure."""

import json
import re
import shlex
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from training.config.choices import Quantization
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.model_info.chat_template import DATE, ChatTemplate, Turns
from training.run_folder.derived import GGUF_TYPES, GgufType
from training.vllm.limits import max_rank

_TOOLS = re.compile(r"\btools\b")
_CHAT = 'messages = [{"role": "user", "content": "Hello"}]'


@dataclass(frozen=True)
class Snippet:
    """A text to copy: the program's name, its language (python or sh), and a sentence above it."""

    program: str
    language: str
    note: str
    text: str


@dataclass(frozen=True)
class Used:
    """A finished run as snippets name it: `folder` is that of the adapter or model, `merged` that of the merged model, if any.

    `chats` is True if prompts go through the chat template `template`, whose parts are `turns` if it only joins texts;
    `own_template` is its file in the folder if the base model has another template or none; `own_ends` is True if the folder has
    a generation configuration, which nothing loads with an adapter.
    """

    run_id: str
    name: str
    config: RunConfig
    folder: str
    merged: str = ""
    chats: bool = False
    own_template: str = ""
    template: ChatTemplate | None = None
    turns: Turns | None = None
    classes: tuple[str, ...] = ()
    mergeable: bool = True
    own_ends: bool = False


def snippets(used: Used) -> list[Snippet]:
    """The snippets that the run's task and method permit."""
    found = [_peft(used)] if used.config.method.adapts else []
    found.append(_transformers(used))
    if used.config.task.traits.generates and not used.config.task.traits.has_encoder and used.mergeable:
        found += [_vllm(used), *([_llama_cpp(used), _ollama(used)] if GGUF_TYPES else [])]
    return found


def _peft(used: Used) -> Snippet:
    config, cls = used.config, _model_class(used)
    quantized = config.quantized is not Quantization.NONE
    revision = [f"revision={_text(config.revision)}"] if config.revision else []
    arguments = [_text(config.model), *revision, *_head(used), 'dtype="auto"', 'device_map="auto"']
    if quantized:
        arguments.append(f"quantization_config={_quantization(config)}")
    imports = f"{cls}, AutoTokenizer" + (", BitsAndBytesConfig" if quantized else "") + _ends_import(used)
    lines = [
        *(["import torch"] if config.quantized is Quantization.NF4 else []),
        "from peft import PeftModel",
        f"from transformers import {imports}",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({_text(used.folder)})",
        f"base = {cls}.from_pretrained(",
        indent(",\n".join(arguments) + ",", "    "),
        ")",
        f"model = PeftModel.from_pretrained(base, {_text(used.folder)}).eval()",
        *_ends(used),
        "",
        *_use(used),
    ]
    return Snippet("peft", "python", "The base model with the adapter on top.", _joined(lines))


def _transformers(used: Used) -> Snippet:
    cls = _model_class(used)
    folder = used.merged or used.folder
    note = {
        True: "The whole model; PEFT is not needed.",
        False: "transformers loads the base model that the adapter names; PEFT must be installed.",
    }[bool(used.merged) or not used.config.method.adapts]
    head = [] if used.merged or not used.config.method.adapts else _head(used)
    arguments = ", ".join([_text(folder), *head, 'dtype="auto"', 'device_map="auto"'])
    on_base = used.config.method.adapts and not used.merged
    lines = [
        f"from transformers import {cls}, AutoTokenizer" + (_ends_import(used) if on_base else ""),
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({_text(folder)})",
        f"model = {cls}.from_pretrained({arguments}).eval()",
        *(_ends(used) if on_base else []),
        "",
        *_use(used),
    ]
    return Snippet("transformers", "python", note, _joined(lines))


def _vllm(used: Used) -> Snippet:
    config, quote = used.config, shlex.quote
    name = slug(used)
    template = f" --chat-template {quote(used.own_template)}" if used.chats and used.own_template else ""
    if config.method.is_lora and not config.use_dora and not config.modules_to_save:
        revision = f" --revision {quote(config.revision)}" if config.revision else ""
        bits = " --quantization bitsandbytes" if config.quantized is Quantization.NF4 else ""
        serve = (
            f"vllm serve {quote(config.model)}{revision}{bits} --enable-lora --max-lora-rank {max_rank(config.lora_r)}"
        )
        serve += f" --lora-modules {quote(f'{name}={used.folder}')}{template}"
        serve += f" --generation-config {quote(used.folder)}" if used.own_ends else ""
        note = "vLLM loads the adapter beside its base model."
    elif config.method.adapts:
        serve = f"lathe export {used.run_id} --merged --to {name}\nvllm serve ./{name} --served-model-name {name}"
        note = "vLLM does not load adapters of this kind, so the model is merged first."
    else:
        serve = f"vllm serve {quote(used.folder)} --served-model-name {name}"
        note = "vLLM serves the whole model."
    path, body = _request(used, name)
    ask = f"curl http://localhost:8000/v1/{path} -H 'Content-Type: application/json' -d {quote(json.dumps(body))}"
    return Snippet("vLLM", "sh", note, f"{serve}\n\n# when it serves, in another terminal:\n{ask}\n")


def _llama_cpp(used: Used) -> Snippet:
    name = slug(used)
    path, body = _request(used, name)
    ask = f"curl http://localhost:8080/v1/{path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    lines = [
        _export_gguf(used),
        f"llama-server -m {name}.gguf --jinja -c {used.config.max_length} --temp 0",
        "",
        "# when it serves, in another terminal:",
        ask,
    ]
    note = "The file has the chat template that training used; --jinja makes the server apply it."
    return Snippet("llama.cpp", "sh", note if used.chats else "The whole model as one file.", "\n".join(lines) + "\n")


def _ollama(used: Used) -> Snippet:
    name, found = slug(used), used.template
    written = modelfile(
        f"./{name}.gguf",
        context=used.config.max_length,
        turns=used.turns,
        begin=found.begin if found else "",
        end=found.end if found else "",
        chats=used.chats,
    )
    if written is None:
        why = " It writes the current date." if found and DATE in found.text else ""
        note = (
            f"This model's chat template cannot be written in Ollama's template language.{why} Use llama.cpp's server."
        )
        return Snippet("Ollama", "sh", note, f"{_export_gguf(used)}\nllama-server -m {name}.gguf --jinja\n")
    lines = [
        _export_gguf(used),
        f"cat > Modelfile <<'END'\n{written}END",
        f"ollama create {name} -f Modelfile",
        f"ollama run {name} Hello",
    ]
    note = "The Modelfile has the chat template in Ollama's language; temperature 0 answers as Lathe's own evaluation does."
    if used.chats and found and _TOOLS.search(found.text):
        note += " It has no tools: use llama.cpp's server for them."
    return Snippet("Ollama", "sh", note, "\n".join(lines) + "\n")


def _ends(used: Used) -> list[str]:
    """The line that makes answers end where training ends them."""
    line = f"model.generation_config = GenerationConfig.from_pretrained({_text(used.folder)})"
    return [line] if used.own_ends and used.config.task.traits.generates else []


def _ends_import(used: Used) -> str:
    return ", GenerationConfig" if _ends(used) else ""


def _export_gguf(used: Used) -> str:
    return f"lathe export {used.run_id} --gguf --type {GgufType.Q8_0.value} -o {slug(used)}.gguf"


def _use(used: Used) -> list[str]:
    """The lines that ask the model something."""
    if not used.config.task.traits.generates:
        score = (
            "print(scores)" if used.config.task.traits.scores else "print(model.config.id2label[int(scores.argmax())])"
        )
        return [*_inputs(used), "scores = model(**inputs).logits[0]", score]
    start = "" if used.config.task.traits.has_encoder else ', inputs["input_ids"].shape[1] :'
    return [
        *_inputs(used),
        f"output = model.generate(**inputs, max_new_tokens={used.config.max_new_tokens})",
        f"print(tokenizer.decode(output[0{start}], skip_special_tokens=True))",
    ]


def _inputs(used: Used) -> list[str]:
    """The lines that make the model's inputs, with tokens as in training. A reward model scores a prompt and its answer."""
    scores = used.config.task.traits.scores
    if used.chats:
        options = "".join(f", {name}={value!r}" for name, value in _template_options(used).items())
        given = f'{"" if scores else "add_generation_prompt=True, "}return_dict=True, return_tensors="pt"{options}'
        messages = _CHAT.removesuffix("]") + ', {"role": "assistant", "content": "Hi"}]' if scores else _CHAT
        return [messages, f"inputs = tokenizer.apply_chat_template(messages, {given}).to(model.device)"]
    text = '"Hello, how are you? Fine." + (tokenizer.eos_token or "")' if scores else '"Hello"'
    return [f'inputs = tokenizer({text}, return_tensors="pt").to(model.device)']


def _head(used: Used) -> list[str]:
    """The arguments of a scoring model's head, which the base model lacks."""
    if used.config.task.traits.scores:
        return ["num_labels=1"]
    if used.config.task.traits.has_classes and used.classes:
        return [f"num_labels={len(used.classes)}", f"id2label={dict(enumerate(used.classes))!r}"]
    return []


def _quantization(config: RunConfig) -> str:
    match config.quantized:
        case Quantization.NONE:
            return "None"
        case Quantization.INT8:
            return "BitsAndBytesConfig(load_in_8bit=True)"
        case Quantization.NF4:
            options = 'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16'
            double = ", bnb_4bit_use_double_quant=True" if config.double_quantization else ""
            return f"BitsAndBytesConfig({options}{double})"


def _request(used: Used, name: str) -> tuple[str, dict[str, Any]]:
    limit = {"model": name, "max_tokens": used.config.max_new_tokens}
    if not used.chats:
        return "completions", limit | {"prompt": "Hello"}
    options = _template_options(used)
    return "chat/completions", limit | {"messages": [{"role": "user", "content": "Hello"}]} | (
        {"chat_template_kwargs": options} if options else {}
    )


def _template_options(used: Used) -> dict[str, Any]:
    return dict(template_arguments(used.config.chat_template_kwargs) or {})


def _model_class(used: Used) -> str:
    return used.config.task.traits.kind.auto_class


def slug(used: Used) -> str:
    """A name for servers: lower-case letters, digits, dots and hyphens."""
    plain = re.sub(r"[^a-z0-9.]+", "-", used.name.lower()).strip("-.")[:40].strip("-.")
    return f"{plain}-{used.run_id}" if plain else used.run_id


def _text(value: str) -> str:
    """A text as a Python literal, whose escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


_QUOTES = '"""'


def modelfile(file: str, *, context: int, turns: Turns | None, begin: str, end: str, chats: bool) -> str | None:
    """The Modelfile for `file`; None if Ollama cannot write the prompts that training used.

    `turns` are the parts of the chat template, `begin` and `end` the tokens that begin and end a text, `context` the
    tokens of prompt and answer together. Without `chats` a prompt is the text alone.
    """
    template = _template(turns, begin) if chats and turns else "{{ .Prompt }}"
    if chats and turns is None:
        return None
    lines = [f"FROM {file}", f"TEMPLATE {_QUOTES}{template}{_QUOTES}"]
    lines += [
        f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in _stops(turns if chats else None, end)
    ]
    return "\n".join([*lines, f"PARAMETER num_ctx {context}", "PARAMETER temperature 0"]) + "\n"


def _template(turns: Turns, begin: str) -> str:
    """Ollama puts the token that begins a text before the prompt itself."""
    start = _literal(turns.start.removeprefix(begin))
    if turns.system:
        before, after = turns.system
        around = f"{_literal(before.removeprefix(begin))}{{{{ .System }}}}{_literal(after)}"
        start = f"{{{{ if .System }}}}{around}{{{{ else }}}}{start}{{{{ end }}}}"
    user, assistant = (
        f"{_literal(before)}{{{{ .Content }}}}{_literal(after)}" for before, after in (turns.user, turns.assistant)
    )
    roles = f'{{{{ if eq .Role "user" }}}}{user}{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}'
    return f"{start}{{{{ range .Messages }}}}{roles}{{{{ end }}}}{_literal(turns.answer)}"


def _literal(literal: str) -> str:
    """A text that Go's templates print as it is: quoted if it has a brace, which may begin an action, or a quote, which may end
    the template."""
    quoted = "{" in literal or '"' in literal
    return f"{{{{ {json.dumps(literal, ensure_ascii=False)} }}}}" if quoted else literal


def _stops(turns: Turns | None, end: str) -> list[str]:
    """The end token, and what the template writes after an answer."""
    after = turns.assistant[1].strip() if turns else ""
    return list(dict.fromkeys(stop for stop in (end, after) if stop and "\n" not in stop))
