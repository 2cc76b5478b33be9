"""A Modelfile's template writes the prompts that the chat template writes."""

import json
import os
import re
import subprocess
from pathlib import Path
from shutil import which

import gguf_families
import jinja2
import pytest
from paths import PROGRAMS, ROOT
from transformers.utils.chat_template_utils import render_jinja_template

from app.format.snippets import Used, modelfile, snippets
from training.chat.template import NAMED
from training.config.run_config import RunConfig
from training.model_info.chat_template import ChatTemplate, chat_template_of, turns_of

TEMPLATES = {
    "chatml": (gguf_families.CHATML, "", "<|im_end|>"),
    "llama3": (gguf_families.LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": (gguf_families.MISTRAL, "<s>", "</s>"),
    "phi3": (gguf_families.PHI3, "", "<|endoftext|>"),
    "gemma, which refuses system messages": (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + gguf_families.GEMMA, "<bos>", "<eos>",
    ),
    "braces and quotes around messages": (
        '{% for m in messages %}{"{{ m.role }}": "{{ m.content }}"""}\n{% endfor %}'
        '{% if add_generation_prompt %}{"assistant": "{% endif %}',
        "", "}",
    ),
    "a default system message": (
        "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe {% raw %}{{kind}}{% endraw %}.<|im_end|>\n{% endif %}"
        + gguf_families.CHATML, "", "<|im_end|>",
    ),
}  # fmt: skip
TALK = [
    {"role": "system", "content": "Speak plainly."},
    {"role": "user", "content": "Hello\nthere, 'you'"},
    {"role": "assistant", "content": "Hi {x}."},
    {"role": "user", "content": "Bye"},
]
# The part of Go's template language that Modelfiles here use, in Jinja.
GO_TO_JINJA = [
    (r"\{\{ if \.System \}\}", "{% if System %}"),
    (r'\{\{ if eq \.Role "(\w+)" \}\}', r'{% if m.role == "\1" %}'),
    (r'\{\{ else if eq \.Role "(\w+)" \}\}', r'{% elif m.role == "\1" %}'),
    (r"\{\{ else \}\}", "{% else %}"),
    (r"\{\{ range \.Messages \}\}", "{% for m in Messages %}"),
    (r"\{\{ \.Content \}\}", "{{ m.content }}"),
    (r"\{\{ \.System \}\}", "{{ System }}"),
]


def in_jinja(template: str) -> str:
    """Go's template in Jinja; `end` closes what was opened last."""
    for pattern, replacement in GO_TO_JINJA:
        template = re.sub(pattern, replacement, template)
    opened: list[str] = []

    def close(found: re.Match[str]) -> str:
        if found[1]:
            opened.append(found[1])
            return found[0]
        return f"{{% end{opened.pop()} %}}"

    return re.sub(r"\{% (if|for) .*?%\}|\{\{ end \}\}", close, template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompts_are_those_of_the_chat_template(name: str) -> None:
    template, begin, end = TEMPLATES[name]
    turns = turns_of(template, begin, end)
    text = modelfile("./m.gguf", context=512, turns=turns, begin=begin, end=end, chats=True)
    assert text and turns
    (body,) = re.findall('TEMPLATE """(.*)"""', text, re.DOTALL)
    environment = jinja2.Environment(keep_trailing_newline=True)
    original = jinja2.Environment()
    original.globals["raise_exception"] = None
    for talk in (TALK, TALK[1:], TALK[1:2]):
        system = talk[0]["content"] if talk[0]["role"] == "system" and turns.system else ""
        rest = [one for one in talk if one["role"] != "system"]
        written = environment.from_string(in_jinja(body)).render(System=system, Messages=rest)
        shown = talk if system else rest
        expected = original.from_string(template).render(
            messages=shown, bos_token=begin, eos_token=end, add_generation_prompt=True
        )
        assert begin + written == expected


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that renders Go's templates."""
    if which("go") is None:
        pytest.skip("Go is not installed")
    program = tmp_path_factory.mktemp("go") / "render"
    source = PROGRAMS / "go_template/main.go"
    subprocess.run(["go", "build", "-o", program, source], check=True, env=os.environ | {"GO111MODULE": "off"})
    return program


@pytest.mark.slow
def test_go_renders_the_prompts_of_the_chat_template(go_program: Path) -> None:
    asked, expected = [], []
    for template, begin, end in (*TEMPLATES.values(), *((text, "<s>", "</s>") for text in NAMED.values())):
        turns = turns_of(template, begin, end)
        text = modelfile("./m.gguf", context=512, turns=turns, begin=begin, end=end, chats=True)
        assert text and turns
        (body,) = re.findall('TEMPLATE """(.*?)"""', text, re.DOTALL)
        for talk in (TALK, TALK[1:], TALK[1:2]):
            system = str(talk[0]["content"]) if talk[0]["role"] == "system" and turns.system else ""
            shown = talk if system else [one for one in talk if one["role"] != "system"]
            asked.append({"template": body, "system": system, "messages": talk})
            rendered, _ = render_jinja_template(
                conversations=[shown],
                chat_template=template,
                add_generation_prompt=True,
                bos_token=begin,
                eos_token=end,
            )
            expected.append(rendered[0])
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    done = subprocess.run([go_program], input=lines, text=True, capture_output=True, check=True)
    begins = [begin for _, begin, _ in (*TEMPLATES.values(), *(("", "<s>", "") for _ in NAMED)) for _ in range(3)]
    written = [json.loads(line) for line in done.stdout.splitlines()]
    assert [
        begin * text.startswith(begin) + line for begin, line, text in zip(begins, written, expected, strict=True)
    ] == expected


def test_the_starter_model_has_a_modelfile() -> None:
    found = chat_template_of(ROOT / "static/starter")
    assert found
    text = modelfile(
        "./m.gguf",
        context=512,
        turns=turns_of(found.text, found.begin, found.end),
        begin=found.begin,
        end=found.end,
        chats=True,
    )
    assert text == (
        'FROM ./m.gguf\nTEMPLATE """{{ if .System }}<|system|>{{ .System }}<|end|>{{ else }}{{ end }}'
        '{{ range .Messages }}{{ if eq .Role "user" }}<|user|>{{ .Content }}<|end|>'
        '{{ else if eq .Role "assistant" }}<|assistant|>{{ .Content }}<|end|>{{ end }}{{ end }}<|assistant|>"""\n'
        'PARAMETER stop "<|end|>"\nPARAMETER num_ctx 512\nPARAMETER temperature 0\n'
    )


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ loop.index }}: {{ m.content }}\n{% endfor %}",
        "{{ messages[-1].content }}",
        "{{ strftime_now('%d %b %Y') }}" + gguf_families.CHATML,
        "{{ broken",
    ],
)
def test_other_templates_have_none(template: str) -> None:
    assert turns_of(template, "", "") is None
    assert modelfile("m", context=8, turns=None, begin="", end="", chats=True) is None


def test_the_snippet_writes_the_modelfile_or_says_why_not() -> None:
    config = RunConfig.model_validate({"model": "m", "data": "d", "max_length": 2048})
    good = ChatTemplate(gguf_families.CHATML, "", "<|im_end|>", None)
    bad = ChatTemplate("{{ messages[-1].content }}", "", "", None)
    found = {
        template.text: {
            one.program: one
            for one in snippets(
                Used(
                    "run1",
                    "My run",
                    config,
                    "/a",
                    chats=True,
                    template=template,
                    turns=turns_of(template.text, template.begin, template.end),
                )
            )
        }
        for template in (good, bad)
    }
    ollama = found[good.text]["Ollama"].text
    assert "PARAMETER num_ctx 2048" in ollama
    assert 'PARAMETER stop "<|im_end|>"' in ollama
    assert "cannot be written in Ollama's template language" in found[bad.text]["Ollama"].note
    for one in found.values():
        assert "--jinja" in one["llama.cpp"].text
        for program in ("Ollama", "llama.cpp"):
            subprocess.run(["bash", "-n"], input=one[program].text, text=True, check=True)


def test_a_template_in_json_or_in_the_tokenizer_s_file_is_found(tmp_path: Path) -> None:
    assert chat_template_of(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "inside", "eos_token": {"content": "</s>"}}')
    assert chat_template_of(tmp_path) == ChatTemplate("inside", "", "</s>", None)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "beside"}')
    assert chat_template_of(tmp_path) == ChatTemplate("beside", "", "</s>", tmp_path / "chat_template.json")


@pytest.mark.parametrize("value", ["[5]", '[{"name": "default"}]', '[{"name": "default", "template": 5}]'])
def test_a_folder_with_wrong_values_has_no_template(tmp_path: Path, value: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {value}}}')
    assert chat_template_of(tmp_path) is None


def test_a_template_that_is_not_utf_8_is_shown_with_replacements(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff{{ x }}")
    found = chat_template_of(tmp_path)
    assert found and found.text == "\N{REPLACEMENT CHARACTER}{{ x }}"
