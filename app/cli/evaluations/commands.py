"""The options of `lathe evaluate` and `lathe evaluations`."""

from pathlib import Path
from typing import Any

import click

from app.cli.errors import Command
from app.cli.options import count_type, json_option

run_argument = click.argument("run_id", metavar="RUN")


@click.command(cls=Command)
@run_argument
@click.option("--data", default="", metavar="FILE|ID", help="Data file or data set id.")
@click.option("--source", metavar="SOURCE", help="result, base (before training) or checkpoint-N.  [default: result]")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="exact_match, f1, rouge1, rouge2, rougeL, accuracy, judge, or FILE.py:FUNCTION. Repeatable.",
)
@click.option("--rows", type=count_type, metavar="N", help="Only the first N rows.")
@click.option("--columns", metavar="TEXT", help="Column of each role, such as prompt=question, completion=answer.")
@click.option("--max-new-tokens", type=count_type, metavar="N", help="Longest answer.  [default: the run's]")
@click.option("--judge-url", metavar="URL", help="Address of an OpenAI-compatible API, such as http://HOST:8000/v1.")
@click.option("--judge-model", metavar="NAME", help="Model of the judge.")
@click.option(
    "--judge-prompt", metavar="FILE", type=click.Path(path_type=Path, exists=True), help="Prompt with {answer}."
)
@click.option("--judge-scale", type=float, metavar="N", help="Highest score of the judge.  [default: 10]")
@click.option("--lm-eval", multiple=True, metavar="TASK", help="A task of lm-eval instead of --data. Repeatable.")
@click.option("--queue", "only_queue", is_flag=True, help="Only queue it; do not wait for the result.")
@json_option
@click.pass_context
def evaluate(ctx: click.Context, /, run_id: str, as_json: bool, only_queue: bool, **options: Any) -> None:
    """Evaluate a run on a data set: answer its rows and score the answers.

    Exit codes: 0 finished, 1 failed, 3 stopped.
    """
    from app.cli.evaluations import evaluate as cli_evaluate

    ctx.exit(cli_evaluate.evaluate(run_id, options, only_queue=only_queue, as_json=as_json))


@click.command(cls=Command)
@run_argument
@json_option
def evaluations(run_id: str, as_json: bool) -> None:
    """List the evaluations of a run, newest first."""
    from app.cli.evaluations import evaluate as cli_evaluate

    cli_evaluate.listing(run_id, as_json=as_json)
