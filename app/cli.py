"""The command `lathe`. Each command says what it takes and hands over; the heavy imports wait until one runs."""

from pathlib import Path
from typing import Any

import click

from app.cli_dataset import dataset
from app.cli_errors import Command
from app.cli_options import Group, count_type, json_option, path_type
from app.cli_settings import RunCommand, settings_by_any_name, underscores_too
from app.cli_user import token, user

STATUSES = ("queued", "running", "finished", "failed", "stopped")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

host_option = click.option("--host", help="Address to listen on.  [default: LATHE_HOST or 127.0.0.1]")
port_type = click.IntRange(1, 65535)
port_option = click.option("--port", type=port_type, help="Port to listen on.  [default: LATHE_PORT or 7860]")
run_argument = click.argument("run_id", metavar="RUN")
merged_option = click.option("--merged", is_flag=True, help="The adapter merged into its base model; made if need be.")


@click.group(cls=Group, context_settings=CONTEXT)
@click.version_option(package_name="lathe", prog_name="lathe", message="%(prog)s %(version)s")
def main() -> None:
    """Fine-tune language models: start Lathe, queue runs, follow them, take the adapter.

    RUN is a run's id or the first four or more characters of it.
    """


@main.command(cls=Command)
@host_option
@port_option
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser once it answers.")
@click.pass_context
def up(ctx: click.Context, host: str | None, port: int | None, open_browser: bool) -> None:
    """Start everything on this machine.

    Database, queue, one worker and the web page. Ctrl-C stops all of it: a run that trains is saved first, and goes
    on at the next start.
    """
    from app import cli_serve

    ctx.exit(cli_serve.up(host, port, open_browser=open_browser))


@main.command(cls=Command)
@host_option
@port_option
def web(host: str | None, port: int | None) -> None:
    """Start the web server alone."""
    from app import cli_serve

    cli_serve.web(host, port)


@main.command(cls=Command)
@click.option("--drain", is_flag=True, help="When told to stop, wait until the runs here are saved and back in the queue.")
@click.pass_context
def worker(ctx: click.Context, drain: bool) -> None:
    """Start a worker alone.

    It takes queued runs and trains them on this machine's devices; LATHE_DEVICES narrows those. Without --drain runs
    train on while their worker is restarted; a container, which ends as a whole, needs --drain.
    """
    from app import cli_serve

    ctx.exit(cli_serve.worker(drain=drain))


main.add_command(dataset)
main.add_command(user)
main.add_command(token)


@main.command(cls=RunCommand, context_settings={"token_normalize_func": underscores_too})
@click.argument("config", metavar="[CONFIG.yaml]", required=False, type=path_type)
@click.option("--follow", is_flag=True, help="Stay and show the progress: exit 0 finished, 1 failed, 3 stopped.")
@json_option
@click.pass_context
def run(ctx: click.Context, config: Path | None, follow: bool, as_json: bool, overrides: dict[str, Any]) -> None:
    """Queue a run.

    Its settings are those of CONFIG.yaml, with the ones given as flags in their place.
    """
    from app import cli_run

    ctx.exit(cli_run.run(config, overrides, follow=follow, as_json=as_json))


@main.command(cls=RunCommand, context_settings={"token_normalize_func": underscores_too})
@click.argument("config", metavar="[CONFIG.yaml]", required=False, type=path_type)
@json_option
def targets(config: Path | None, as_json: bool, overrides: dict[str, Any]) -> None:
    """Show which modules a run would train.

    Nothing is queued and no weights are loaded; of the settings, model, method and target modules matter.
    """
    from app import cli_targets

    cli_targets.targets(config, overrides, as_json=as_json)


@main.command(cls=RunCommand, context_settings={"token_normalize_func": settings_by_any_name})
@click.argument("config", metavar="[CONFIG.yaml]", required=False, type=path_type)
@click.option("--gpu", metavar="NAME", help="v100-32gb, a100-80gb, h100, ..., or GiB of memory.  [default: this machine's]")
@click.option("--gpus", metavar="N", type=click.IntRange(1, 1024), help="GPUs, each with a process of its own.")
@click.option("--simulate", is_flag=True, help="Also simulate a step of the real model: up to a minute.")
@click.option("--host-memory", metavar="GIB", type=click.FloatRange(min=0.5), help="Host memory of the machine.")
@json_option
def forecast(config: Path | None, overrides: dict[str, Any], **asked: Any) -> None:
    """Show how much memory a run takes, and what fits.

    Nothing is queued or loaded: a model's config.json is enough, and data need not be given.
    """
    from app import cli_forecast

    cli_forecast.show(config, overrides, **asked)


@main.command(cls=Command)
@click.option("--status", type=click.Choice(STATUSES), help="Only runs with this status.")
@click.option("--search", default="", metavar="TEXT", help="Only runs with this text in their name, model or data.")
@click.option("--limit", default=50, show_default=True, metavar="N", type=count_type, help="At most N runs.")
@json_option
def runs(status: str | None, search: str, limit: int, as_json: bool) -> None:
    """List the runs, newest first."""
    from app import cli_show

    cli_show.listing(status, search, limit, as_json=as_json)


@main.command(cls=Command)
@run_argument
@json_option
def show(run_id: str, as_json: bool) -> None:
    """Show one run: progress, results, configuration and events."""
    from app import cli_show

    cli_show.show(run_id, as_json=as_json)


@main.command(cls=Command)
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--markdown", "as_markdown", is_flag=True, help="A Markdown table, to copy.")
@json_option
def compare(run_ids: tuple[str, ...], as_markdown: bool, as_json: bool) -> None:
    """Show runs side by side: parameters, memory, speed, losses, and the settings in which they differ."""
    from app import cli_compare

    cli_compare.table(list(run_ids), as_json=as_json, as_markdown=as_markdown)


@main.command(cls=Command)
@run_argument
@click.option("--follow", "-f", is_flag=True, help="Go on as the run prints, until it ends.")
@click.option("--tail", default=200, show_default=True, metavar="N", type=count_type, help="Last N lines.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, one object a line.")
@click.pass_context
def logs(ctx: click.Context, run_id: str, follow: bool, tail: int, as_json: bool) -> None:
    """Print what a run's training process printed."""
    from app import cli_logs

    ctx.exit(cli_logs.logs(run_id, follow=follow, tail=tail, as_json=as_json))


@main.command(cls=Command)
@click.argument("log", metavar="[LOG]", required=False)
@click.option("--run", "run_id", metavar="RUN", help="Diagnose a run of Lathe in the place of a log.")
@click.option("--model", metavar="MODEL", help="The model's folder or config.json: tells what a tensor of some size was.")
@click.option("--micro-batch", type=count_type, metavar="N", help="Rows in one forward pass, where the log does not say.")
@json_option
def diagnose(log: str | None, run_id: str | None, model: str | None, micro_batch: int | None, as_json: bool) -> None:
    """Say why a training run failed, from its log.

    LOG is a file, or - for standard input; it need not come from Lathe.
    """
    from app import cli_diagnose

    cli_diagnose.diagnosis(log, run_id=run_id, model=model, micro_batch=micro_batch, as_json=as_json)


@main.command(cls=Command)
@run_argument
@json_option
def stop(run_id: str, as_json: bool) -> None:
    """Stop a run.

    One that trains saves a checkpoint first; `lathe resume` goes on from it.
    """
    from app import cli_run

    cli_run.stop(run_id, as_json=as_json)


@main.command(cls=Command)
@run_argument
@click.option("--step-down", is_flag=True, help="With the settings proposed when its memory ran out.")
@json_option
def resume(run_id: str, step_down: bool, as_json: bool) -> None:
    """Queue a failed or stopped run again.

    It goes on from its last whole checkpoint.
    """
    from app import cli_run

    cli_run.resume(run_id, step_down=step_down, as_json=as_json)


@main.command(cls=Command)
@run_argument
@click.option("--output", "-o", metavar="FILE", type=path_type, help="Write a zip, or the GGUF file.")
@click.option("--to", metavar="FOLDER", type=path_type, help="Write a folder.")
@merged_option
@click.option("--gguf", is_flag=True, help="One GGUF file, for llama.cpp: Llama, Mistral, Qwen2, Qwen3, GPT-2.")
@click.option("--force", is_flag=True, help="Replace FILE or FOLDER where it exists.")
@json_option
def export(
    run_id: str, output: Path | None, to: Path | None, merged: bool, gguf: bool, force: bool, as_json: bool
) -> None:
    """Copy a finished run's adapter or model, as a zip, a folder or a GGUF file."""
    from app import cli_export

    cli_export.export(run_id, output, to, merged=merged, gguf=gguf, force=force, as_json=as_json)


@main.command(cls=Command)
@run_argument
@click.argument("repo", metavar="OWNER/NAME")
@merged_option
@click.option("--public", is_flag=True, help="Make a repository that is new public; it is private otherwise.")
@json_option
def push(run_id: str, repo: str, merged: bool, public: bool, as_json: bool) -> None:
    """Upload a finished run's adapter or model to a model hub.

    The token is HF_TOKEN or LATHE_HUB_TOKEN; HF_ENDPOINT names a hub other than huggingface.co.
    """
    from app import cli_export

    cli_export.push(run_id, repo, merged=merged, public=public, as_json=as_json)


if __name__ == "__main__":
    main()
