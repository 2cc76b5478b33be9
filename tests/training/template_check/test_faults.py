"""Each of the usual faults of templates and tokenizers is found, and healthy ones give no alarm."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from chat_models import CHATML, FAMILIES, KINDS, LLAMA3, MISTRAL, QWEN3, chat, make_tokenizer, write_model, write_rows
from subtest_table import table

from training.chat.template import NAMED
from training.config.run_config import RunConfig
from training.template_check.check import check
from training.template_check.findings import ERROR, WARNING, Finding, TemplateReport

ROWS = [
    chat("What is two plus two?", "The answer is four.", system="Be short."),
    chat("Hello?", "Hello, how are you today?", "Fine.", "The answer is fine: äöü 😀."),
    chat("What is 2+2?", " 4"),
]
CHAT = [ROWS[0], ROWS[1], chat("What is 2+2?", "4")]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
WITH_TOOLS = {
    "messages": [
        {"role": "user", "content": "What is two plus two?"},
        {"role": "assistant", "content": "", "reasoning_content": "add", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"sum": 4}'},
        {"role": "assistant", "content": "The answer is four.", "reasoning_content": "done"},
    ],
    "tools": TOOLS,
}


def checked(
    folder: Path, tokenizer: Any, rows: list[dict[str, Any]], head: int | None = None, **settings: Any
) -> TemplateReport:
    """The report on these rows, for a model with as many ids as the tokenizer unless `head` says otherwise."""
    model = write_model(folder / "model", len(tokenizer) if head is None else head)
    given = {"model": str(model), "data": "rows", "method": "lora", **settings}
    if settings.get("chat_template"):
        tokenizer.chat_template = settings["chat_template"]
    return check(RunConfig.model_validate(given), write_rows(folder / "rows.jsonl", rows), None, tokenizer)


def only(report: TemplateReport, fault: str, severity: str) -> Finding:
    """The one finding of a report, with a fix, and the text of a row."""
    assert [(str(one.fault), one.severity) for one in report.findings] == [(fault, severity)], report.findings
    (finding,) = report.findings
    assert finding.fix and finding.message
    return finding


@table("kind", KINDS)
@table("family", [name for name in FAMILIES if name != "qwen3"])
def test_healthy_templates_give_no_alarm(tmp_path: Path, family: str, kind: str) -> None:
    report = checked(tmp_path, make_tokenizer(family, kind), CHAT)
    assert (report.findings, report.checked) == ((), 3)
    assert all(any(token.trained for token in row.tokens) for row in report.rows)


@table("kind", KINDS)
@table(
    ("rows", "settings"),
    [
        ([chat("2+2?", "4", reasoning_content="add"), chat("2+2?", "<think>\nadd\n</think>\n\n4")], {}),
        (CHAT, {"chat_template_kwargs": "enable_thinking=false"}),
        ([chat("2+2?", "<think>\nadd\n</think>\n\n4", "And?", "5", reasoning_content="more")], {"loss_on": "last"}),
        (
            [chat("2+2?", "<think>\nadd\n</think>\n\n4", "?", "5", reasoning_content="more")],
            {"reasoning_history": "keep"},
        ),
        ([WITH_TOOLS], {}),
    ],
)
def test_a_healthy_thinking_template_gives_no_alarm(
    tmp_path: Path, kind: str, rows: list[dict[str, Any]], settings: dict[str, Any]
) -> None:
    assert checked(tmp_path, make_tokenizer("qwen3", kind), rows, **settings).findings == ()


@table("kind", KINDS)
def test_doubled_bos(tmp_path: Path, kind: str) -> None:
    report = checked(tmp_path, make_tokenizer("llama3", kind), CHAT, chat_template="{{ bos_token }}" + LLAMA3)
    finding = only(report, "doubled_bos", ERROR)
    assert (finding.row, finding.rows, finding.tokens[:2]) == (1, 3, ("<s>", "<s>"))


def test_end_token_masked(tmp_path: Path) -> None:
    """The template rewrites earlier turns, and puts text between an answer and its end token."""
    footer = "\\n-- this answer was written by an assistant --"
    template = QWEN3.replace("{{- content -}}", "{{- content + '" + footer + "' -}}")
    rows = [chat("2+2?", "4", "And?", "5", reasoning_content="more")]
    settings = {"chat_template_kwargs": "enable_thinking=true"}
    report = checked(tmp_path, make_tokenizer("qwen3"), rows, chat_template=template, **settings)
    finding = only(report, "end_token_masked", ERROR)
    assert "<|im_end|> after the answer has no loss" in finding.message


@table("kind", KINDS)
def test_end_token_that_the_template_never_writes(tmp_path: Path, kind: str) -> None:
    report = checked(tmp_path, make_tokenizer("mistral", kind), CHAT, chat_template=MISTRAL.replace("+ eos_token", ""))
    assert "writes no end token" in only(report, "end_token_never_written", ERROR).message


def test_another_end_token_than_that_of_the_template(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(
        "chatml", eos_token="<|endoftext|>", more=["<|endoftext|>"], extra_special_tokens=["<|im_end|>"]
    )
    finding = only(checked(tmp_path, tokenizer, CHAT), "end_token_never_written", WARNING)
    assert "<|im_end|>" in finding.message and "<|endoftext|>" in finding.message


def test_the_end_tokens_of_the_generation_config_count(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(
        "chatml", eos_token="<|endoftext|>", more=["<|endoftext|>"], extra_special_tokens=["<|im_end|>"]
    )
    write_model(tmp_path / "model", len(tokenizer))
    ends = {"eos_token_id": [tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id]}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(ends))
    assert checked(tmp_path, tokenizer, CHAT).findings == ()


@table("family", ["chatml", "mistral"])
def test_pad_equal_to_the_end_token(tmp_path: Path, family: str) -> None:
    end = FAMILIES[family][1]
    only(checked(tmp_path, make_tokenizer(family, pad_token=end), CHAT), "pad_is_end_token", WARNING)


def test_prompt_tokens_that_differ_from_the_generation_prompt(tmp_path: Path) -> None:
    template = CHATML.replace("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant:' }}")
    finding = only(checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=template), "prompt_differs", WARNING)
    assert finding.rows == 3 and "inference has" in finding.message and "⏎" in finding.sentence


def test_a_template_without_generation_prompt(tmp_path: Path) -> None:
    template = CHATML[: CHATML.index("{%- if add_generation_prompt")]
    report = checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=template)
    assert "prompt_differs" in [str(one.fault) for one in report.findings]


def test_a_prompt_whose_last_token_merges_with_the_answer(tmp_path: Path) -> None:
    """The text is that of the generation prompt, but its last character is in one token with the answer."""
    template = "{{ bos_token }}" + CHATML.replace("\\n' + m['content']", " ' + m['content']").replace(
        "assistant\\n'", "assistant '"
    )
    report = checked(tmp_path, make_tokenizer("chatml"), [chat("Hi", "answer is four.")], chat_template=template)
    only(report, "prompt_differs", WARNING)


@table("family", ["llama3", "gemma"])
def test_a_template_that_trims_the_answer(tmp_path: Path, family: str) -> None:
    finding = only(checked(tmp_path, make_tokenizer(family), ROWS), "answer_trimmed", WARNING)
    assert finding.row == 3


def test_a_template_that_omits_part_of_the_answer(tmp_path: Path) -> None:
    template = CHATML.replace("m['content'] +", "m['content'].split('\\n')[0] +")
    rows = [chat("2+2?", "4\nfour")]
    assert (
        only(checked(tmp_path, make_tokenizer("chatml"), rows, chat_template=template), "answer_trimmed", ERROR).row
        == 1
    )


def test_a_dropped_system_message(tmp_path: Path) -> None:
    template = CHATML.replace("{%- for m in messages %}", "{%- for m in messages if m['role'] != 'system' %}")
    finding = only(checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=template), "system_dropped", ERROR)
    assert finding.tokens == ("Be short.",)


def test_an_empty_thinking_block(tmp_path: Path) -> None:
    finding = only(checked(tmp_path, make_tokenizer("qwen3"), CHAT), "empty_thinking", WARNING)
    assert finding.changes == {"chat_template_kwargs": "enable_thinking=false"}


def test_reasoning_that_is_dropped_from_an_earlier_turn_with_loss(tmp_path: Path) -> None:
    rows = [chat("2+2?", "<think>\nadd\n</think>\n\n4", "And?", "5", reasoning_content="more")]
    rows[0]["messages"][1] = {"role": "assistant", "content": "4", "reasoning_content": "add"}
    finding = only(checked(tmp_path, make_tokenizer("qwen3"), rows), "empty_thinking", WARNING)
    assert finding.changes == {"loss_on": "last"}


def test_a_tokenizer_with_fewer_ids_than_the_head(tmp_path: Path) -> None:
    only(checked(tmp_path, make_tokenizer("chatml"), CHAT, head=2048), "fewer_ids_than_head", WARNING)


def test_a_head_that_is_rounded_up_gives_no_alarm(tmp_path: Path) -> None:
    assert checked(tmp_path, make_tokenizer("chatml"), CHAT, head=1024).findings == ()


@table(
    ("settings", "found"),
    [
        ({}, True),
        ({"method": "full", "trainable_layers": 2}, True),
        ({"method": "full"}, False),
        ({"modules_to_save": "embed_tokens, lm_head"}, False),
    ],
)
def test_added_tokens_that_are_not_trained(tmp_path: Path, settings: dict[str, Any], found: bool) -> None:
    """The two tokens of ChatML were added behind the ids of the base model."""
    tokenizer = make_tokenizer("mistral", chat_template=CHATML, eos_token="<|im_end|>", more=[])
    head = len(tokenizer)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    report = checked(tmp_path, tokenizer, CHAT, head=head - 1, **settings)
    assert [str(one.fault) for one in report.findings] == (["added_tokens_untrained"] if found else [])
    if found:
        assert report.findings[0].changes == {"modules_to_save": "embed_tokens, lm_head"}


def test_special_tokens_whose_embeddings_are_zero(tmp_path: Path) -> None:
    """As in base models of Llama 3, which have rows for the tokens of the chat that no training has touched."""
    tokenizer = make_tokenizer("chatml")
    table = np.random.default_rng(0).normal(size=(len(tokenizer), 4)).astype(np.float32)
    table[tokenizer.convert_tokens_to_ids("<|im_start|>")] = 0
    write_model(tmp_path / "model", len(tokenizer))
    entry = {"dtype": "F32", "shape": list(table.shape), "data_offsets": [0, table.nbytes]}
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    (tmp_path / "model" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + table.tobytes())
    assert only(checked(tmp_path, tokenizer, CHAT), "added_tokens_untrained", ERROR).tokens == ("<|im_start|>",)


@table(("limit", "severity"), [(8, ERROR), (24, WARNING)])
def test_a_maximum_length_that_cuts_the_end_token_off(tmp_path: Path, limit: int, severity: str) -> None:
    rows = [chat("Hi", "Hello"), chat("Hi", "Hello " * 20)]
    found = {
        str(one.fault): one for one in checked(tmp_path, make_tokenizer("chatml"), rows, max_length=limit).findings
    }
    finding = found.pop("end_token_cut_off")
    assert finding.severity == severity and set(found) == ({"no_loss"} if limit == 8 else set())
    fixed = checked(tmp_path, make_tokenizer("chatml"), rows, **finding.changes)
    assert fixed.findings == ()


def test_a_template_that_knows_other_role_names(tmp_path: Path) -> None:
    template = CHATML.replace(
        "{%- for m in messages %}", "{%- for m in messages if m['role'] in ('system', 'human', 'assistant') %}"
    )
    finding = only(checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=template), "wrong_role", ERROR)
    assert "'user'" in finding.message


def test_a_role_that_lathe_does_not_know(tmp_path: Path) -> None:
    rows = [*CHAT, {"messages": [{"role": "narrator", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}]
    finding = only(checked(tmp_path, make_tokenizer("chatml"), rows), "wrong_role", ERROR)
    assert finding.row == 4 and "narrator" in finding.message


def test_roles_in_an_order_that_the_template_refuses(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, *chat("b", "c")["messages"]]}]
    assert "Roles must alternate" in only(checked(tmp_path, make_tokenizer("gemma"), rows), "wrong_role", ERROR).message


def test_an_error_of_the_template_names_its_line(tmp_path: Path) -> None:
    template = "{{ bos_token }}\n{% for m in messages %}\n{{ m['content'] + 1 }}\n{% endfor %}"
    finding = checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=template).findings[0]
    assert (str(finding.fault), finding.severity) == ("cannot_render", ERROR)
    assert "line 3 of the template" in finding.message and "line 3" in finding.fix


DATED = "{{ strftime_now('%d %b %Y') }}\n" + CHATML
DATED_UNLESS_GIVEN = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}\n" + CHATML


def test_a_template_that_writes_the_current_date(tmp_path: Path) -> None:
    finding = only(
        checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=DATED_UNLESS_GIVEN), "current_date", WARNING
    )
    assert finding.rows == 3 and "date_string" in finding.fix
    settings = {"chat_template_kwargs": "date_string='26 Jul 2024'"}
    given = checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=DATED_UNLESS_GIVEN, **settings)
    assert given.findings == ()
    unfixed = only(checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=DATED), "current_date", WARNING)
    assert "date_string" not in unfixed.fix


@table("name", NAMED)
def test_templates_by_name_give_no_alarm(tmp_path: Path, name: str) -> None:
    family = {"zephyr": "mistral"}.get(name, name)
    tokenizer = make_tokenizer(family)
    assert checked(tmp_path, tokenizer, CHAT, chat_template=NAMED[name]).findings == ()


def test_marks_of_turns_that_the_settings_ignore(tmp_path: Path) -> None:
    rows = [chat("2+2?", "5", "Wrong.", "4")]
    rows[0]["messages"][1]["weight"] = 0
    finding = only(checked(tmp_path, make_tokenizer("chatml"), rows), "marks_ignored", WARNING)
    report = checked(tmp_path, make_tokenizer("chatml"), rows, **finding.changes)
    assert report.findings == ()
    trained = "".join(token.text for token in report.rows[0].tokens if token.trained)
    assert trained == "4<|im_end|>"


def test_rows_without_any_loss(tmp_path: Path) -> None:
    rows = [chat("2+2?", "4", train=False)]
    finding = only(checked(tmp_path, make_tokenizer("chatml"), rows, loss_on="field"), "no_loss", ERROR)
    only(checked(tmp_path, make_tokenizer("chatml"), rows, **finding.changes), "marks_ignored", WARNING)


def test_answers_that_all_begin_after_the_maximum_length(tmp_path: Path) -> None:
    rows = [chat("How much is 2+2? " * 20, "4")]
    found = checked(tmp_path, make_tokenizer("chatml"), rows, max_length=64).findings
    (finding,) = [finding for finding in found if finding.fault == "no_loss"]
    assert finding.setting == "max_length" and finding.severity == ERROR
    assert checked(tmp_path, make_tokenizer("chatml"), rows, **finding.changes).findings == ()


def test_loss_weights_that_are_all_zero(tmp_path: Path) -> None:
    rows = [chat("2+2?", "4") | {"weight": 0}]
    finding = only(checked(tmp_path, make_tokenizer("chatml"), rows, weight_field="weight"), "no_loss", ERROR)
    assert checked(tmp_path, make_tokenizer("chatml"), rows, **finding.changes).findings == ()


@table(
    ("template", "message"),
    [
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0]['content'] * 5000000 }}", "characters; at most"),
        ("{% for a in range(10000000) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_template_runs_in_a_sandbox(tmp_path: Path, template: str, message: str) -> None:
    report = checked(tmp_path, make_tokenizer("chatml"), CHAT, chat_template=template)
    assert message in only(report, "cannot_render", ERROR).message


def test_a_template_that_drops_tools_and_their_calls(tmp_path: Path) -> None:
    lamp = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "lamp", "arguments": {"on": 1}}}]}
    rows = [{"messages": [{"role": "user", "content": "Light!"}, lamp], "tools": TOOLS}]
    findings = checked(tmp_path, make_tokenizer("chatml"), rows).findings
    assert [(str(one.fault), one.severity) for one in findings] == [("tools_dropped", ERROR)] * 2
    assert "tool_calls" in " ".join(one.message for one in findings) and "column tools" in findings[0].message


def test_a_template_that_drops_reasoning(tmp_path: Path) -> None:
    rows = [chat("2+2?", "4", reasoning_content="add")]
    only(checked(tmp_path, make_tokenizer("chatml"), rows), "reasoning_dropped", WARNING)


def test_reasoning_as_text_in_an_earlier_turn_gets_the_advice_of_a_field(tmp_path: Path) -> None:
    rows = [chat("2+2?", "<think>\nadd\n</think>\n\n4", "And?", "5", reasoning_content="more")]
    finding = only(checked(tmp_path, make_tokenizer("qwen3"), rows), "empty_thinking", WARNING)
    assert finding.changes == {"loss_on": "last"} and "messages[1]" in finding.message


def test_every_row_is_rendered_also_those_beyond_the_checked_ones(tmp_path: Path) -> None:
    """Only row 500 has a system message, and only row 501 a role that the template refuses."""
    rows = [chat("2+2?", "4") for _ in range(499)]
    rows += [
        chat("2+2?", "4", system="Be short."),
        {"messages": [{"role": "tool", "content": "x"}, *rows[0]["messages"]]},
    ]
    template = CHATML.replace("{%- for m in messages %}", "{%- for m in messages if m['role'] != 'system' %}").replace(
        "{{ '<|im_start|>' +", "{{ raise_exception('unknown role') if m['role'] == 'tool' else '' }}{{ '<|im_start|>' +"
    )
    report = checked(tmp_path, make_tokenizer("chatml"), rows, chat_template=template)
    found = {str(one.fault): (one.row, one.rows) for one in report.findings}
    assert found == {"system_dropped": (500, 1), "wrong_role": (501, 1)}
    assert (report.rendered, report.complete) == (500, True) and report.checked < 100


def test_the_rejected_answers_of_pairs_are_looked_for_too(tmp_path: Path) -> None:
    template = CHATML.replace("m['content'] +", "m['content'].split('\n')[0] +")
    question = [{"role": "user", "content": "2+2?"}]
    good, bad = [{"role": "assistant", "content": text} for text in ("4", "5\nfive")]
    rows = [{"prompt": question, "chosen": [good], "rejected": [bad]}]
    report = checked(tmp_path, make_tokenizer("chatml"), rows, chat_template=template, task="dpo")
    only(report, "answer_trimmed", ERROR)


def test_answers_cut_off_by_the_maximum_length_are_counted(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "completion": " no"} for prompt in ("Say it.", "Say it. " * 30) * 2]
    finding = only(checked(tmp_path, make_tokenizer("chatml"), rows, max_length=48), "end_token_cut_off", WARNING)
    assert "2 of 4 checked rows" in finding.message and "2 it cuts off the whole answer" in finding.message


def test_columns_with_texts_that_nothing_uses_are_named(tmp_path: Path) -> None:
    row = {
        "instruction": "2+2?",
        "output": "4",
        "id": 7,
        "explanation": "Two and two are four, as everybody knows. " * 2,
    }
    finding = only(checked(tmp_path, make_tokenizer("chatml"), [row, row]), "columns_unused", WARNING)
    assert (
        "explanation (in 2 rows)" in finding.message and "id" not in finding.message.split("columns")[1].split(" ")[1]
    )


@table(("kind", "severity"), [("llama", WARNING), ("gpt2", ERROR)])
def test_rows_beyond_the_positions_of_the_model(tmp_path: Path, kind: str, severity: str) -> None:
    tokenizer = make_tokenizer("chatml")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 32, "n_positions": 32}
    write_model(tmp_path / "model", len(tokenizer), model_type=kind, **sizes)
    given = {"model": str(tmp_path / "model"), "data": "rows", "method": "lora"}
    rows = write_rows(tmp_path / "rows.jsonl", [chat("Hi", "Hello " * count) for count in (1, 20)])
    finding = only(check(RunConfig.model_validate(given), rows, None, tokenizer), "beyond_positions", severity)
    assert "1 of 2 checked rows" in finding.message and finding.changes == {"max_length": 32}
