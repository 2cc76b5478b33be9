"""The options of the commands that evaluate a run's result or take it away: `lathe evaluate`, `export`, `verify`, `push`, ..."""

from pathlib import Path

import click

from app.cli.options import Command, LocalCommand, calls, count_type, json_option, path_type, run_argument
from training.config.choices import Quantization
from training.run_folder.derived import GgufType
from training.scoring.request import MOST_SHOTS, Decoding

FORMS = (
    "adapter",
    "model",
    "merged",
    "served",
    *(f"adapter-{bits.value}" for bits in Quantization if bits is not Quantization.NONE),
    "gguf",
    *(f"gguf-{kind.value}" for kind in GgufType if kind is not GgufType.TRAINED),
)

leaked_option = click.option(
    "--exclude-leaked-rows", is_flag=True, help="Leave out rows that training rows contain, entirely or in part."
)
merged_option = click.option("--merged", is_flag=True, help="The adapter merged into its base model.")


@click.command(cls=Command)
@run_argument
@click.option("--output", "-o", metavar="FILE", type=path_type, help="Write a zip, or the GGUF file.")
@click.option("--to", metavar="FOLDER", type=path_type, help="Write to a folder.")
@merged_option
@click.option("--gguf", is_flag=True, help="A GGUF file for llama.cpp and Ollama, with the adapter merged.")
@click.option(
    "--type",
    "kind",
    type=click.Choice([kind.value for kind in GgufType], case_sensitive=False),
    help="Type of the GGUF file. Default: the trained dtype.",
)
@click.option("--adapter", is_flag=True, help="With --gguf: the LoRA adapter alone.")
@click.option("--force", is_flag=True, help="Replace an existing FILE or FOLDER.")
@json_option
@calls("runs.export:export")
def export() -> None:
    """Export a finished run's adapter or model as a zip, a folder or a GGUF file."""


@click.command(cls=Command)
@run_argument
@click.option("--to", metavar="FOLDER", type=path_type, required=True, help="A folder that does not exist yet.")
@click.option("--step", metavar="N", type=click.IntRange(min=1), help="The checkpoint's step. Default: the newest.")
@json_option
@calls("runs.export:gather")
def gather() -> None:
    """Write the adapter or model of a checkpoint, also of a run that stopped or failed.

    Shards of ZeRO or FSDP are gathered, which needs one process and the base model.
    """


@click.command(cls=LocalCommand)
@run_argument
@click.argument("forms", metavar="[FORM]...", nargs=-1, type=click.Choice(FORMS))
@json_option
@calls("runs.export:verify")
def verify() -> None:
    """Compare the forms of a finished run's result with what was trained.

    Each form renders the same prompts and answers them greedily: adapter or model, merged, served, gguf (default: these, and
    the types of GGUF files that were exported), types such as gguf-Q8_0, and adapter-4bit and adapter-8bit on a quantized base
    model. It prints whether the tokens of prompts and answers are equal, the largest difference of the logits, and for lossy
    forms what they lose in exact match and perplexity. Exit code 1: a form differs that is not lossy.
    """


@click.command(cls=LocalCommand)
@run_argument
@click.argument("repo", metavar="OWNER/NAME")
@merged_option
@click.option("--public", is_flag=True, help="Create a new repository as public (default: private).")
@json_option
@calls("runs.export:push")
def push() -> None:
    """Upload a finished run's adapter or model to a model hub.

    Set HF_TOKEN or LATHE_HUB_TOKEN to your token, and HF_ENDPOINT for a hub other than huggingface.co.
    """


@click.command(cls=Command)
@run_argument
@click.argument("file", metavar="FILE", type=path_type)
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
@json_option
@calls("runs.export:archive_run")
def archive() -> None:
    """Write an ended run into one file: configuration, metrics, events, log and result.

    `lathe restore` imports it into another Lathe. Checkpoints are not in it.
    """


@click.command(cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
@calls("runs.export:restore_run")
def restore() -> None:
    """Import a run from a file of `lathe archive`."""


@click.command(cls=Command)
@run_argument
@click.option("--data", default="", metavar="FILE|ID", help="Data file or data set id.")
@click.option("--source", metavar="SOURCE", help="result, base (before training) or checkpoint-N.  [default: result]")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="exact_match, f1, rougeL, json_valid, ..., judge, FILE.py:FUNCTION, or a reward as JSON. Repeatable.",
)
@click.option("--rows", type=count_type, metavar="N", help="Only the first N rows.")
@leaked_option
@click.option("--columns", metavar="TEXT", help="Column of each role, such as prompt=question, completion=answer.")
@click.option("--max-new-tokens", type=count_type, metavar="N", help="Longest answer.  [default: the run's]")
@click.option(
    "--decoding",
    type=click.Choice([kind.value for kind in Decoding]),
    help="greedy, or model: as the model's own generation_config.json says.  [default: greedy]",
)
@click.option("--judge-url", metavar="URL", help="Address of an OpenAI-compatible API, such as http://HOST:8000/v1.")
@click.option("--judge-model", metavar="NAME", help="Model of the judge.")
@click.option(
    "--judge-prompt", metavar="FILE", type=click.Path(path_type=Path, exists=True), help="Prompt with {answer}."
)
@click.option("--judge-scale", type=float, metavar="N", help="Highest score of the judge.  [default: 10]")
@click.option("--lm-eval", multiple=True, metavar="TASK", help="A task of lm-eval instead of --data. Repeatable.")
@click.option("--queue", "only_queue", is_flag=True, help="Only queue it; do not wait for the result.")
@json_option
@calls("evaluate:evaluate")
def evaluate() -> None:
    """Evaluate a run on a data set: answer its rows and score the answers.

    Exit codes: 0 finished, 1 failed, 3 stopped.
    """


@click.command(cls=Command)
@run_argument
@click.option(
    "--cases",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Prompts with expectations: a JSON object in each line.",
)
@click.option("--data", default="", metavar="FILE|ID", help="Held-out rows: data file or data set id.")
@click.option("--source", metavar="SOURCE", help="result or checkpoint-N.  [default: result]")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="As for lathe evaluate; the first one decides."
)
@click.option("--rows", type=count_type, metavar="N", help="Only the first N rows.")
@leaked_option
@click.option("--columns", metavar="TEXT", help="Column of each role, such as prompt=question, completion=answer.")
@click.option(
    "--shots", type=click.IntRange(0, MOST_SHOTS), metavar="K", help="Training rows in the prompts of a baseline."
)
@click.option("--max-new-tokens", type=count_type, metavar="N", help="Longest answer.  [default: the run's]")
@click.option(
    "--text",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Plain text whose loss is measured before and after training.",
)
@click.option(
    "--most-gap",
    type=float,
    metavar="SHARE",
    help="Highest gap of the gains on training and held-out rows.  [default: 0.1]",
)
@click.option("--most-kl", type=float, metavar="NATS", help="Highest KL divergence from the base.  [default: 1]")
@click.option("--most-loss", type=float, metavar="NATS", help="Highest growth of the loss on the text.  [default: 0.5]")
@click.option("--junit", "junit_file", metavar="FILE", type=path_type, help="Write JUnit XML.")
@json_option
@calls("suite:suite")
def suite() -> None:
    """Check what training has gained and cost: held-out rows, forgetting, and cases with expectations.

    Exit codes: 0 passed, 1 a check or a case failed.
    """


@click.command(cls=Command)
@run_argument
@json_option
@calls("suite:listing")
def suites() -> None:
    """List the suites of a run, newest first."""


@click.command(cls=Command)
@click.argument("rewards", metavar="REWARD...", nargs=-1, required=True)
@click.option("--data", required=True, metavar="FILE|ID", help="Data file or data set id.")
@click.option(
    "--answers",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Answers to score: answers.jsonl of an evaluation, or a line each.  [default: the expected answers]",
)
@click.option("--model", metavar="MODEL", help="Score samples of this model in place of answers: a run draws them.")
@click.option("--max-completion-length", type=count_type, metavar="N", help="Longest sample in tokens.  [default: 512]")
@click.option("--columns", metavar="TEXT", help="Column of each role, such as prompt=question, completion=answer.")
@click.option(
    "--rows",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Only the first N.  [default: 20, or all answers; with --model 16 of the run's]",
)
@json_option
@calls("reward:reward")
def reward() -> None:
    """Try rewards on rows: what each gives, their weighted sum, and what goes wrong.

    REWARD is a built-in name (exact_match, json_fields, ...), FILE.py with functions, FILE.py:FUNCTION, each with *WEIGHT if you
    like, or a JSON object such as '{"reward": "length", "most": 50}'. Exit code 1: one has no score for some rows, by a fault; with
    --model, nothing can be learned from the samples.
    """


@click.command(cls=Command)
@run_argument
@json_option
@calls("evaluate:listing")
def evaluations() -> None:
    """List the evaluations of a run, newest first."""


@click.command(cls=Command)
@run_argument
@click.option("--step", type=click.IntRange(0, 2**31 - 1), metavar="N", help="Only of this step; 0 is before training.")
@click.option("--search", metavar="TEXT", help="Only prompts with this text, there or in a sample.")
@click.option("--cut-off", is_flag=True, help="Only prompts with a sample that was cut off.")
@click.option("--equal", is_flag=True, help="Only prompts whose samples all have the same reward.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="Prompts at most."
)
@json_option
@calls("samples:samples")
def samples() -> None:
    """Show the samples that a run of task grpo or distill drew, with their scores, the last step first."""
