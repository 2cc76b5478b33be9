"""The command `lathe`: options and help of each command. Heavy imports happen when a command runs."""

import click

from app.cli.agents.entries import ENTRIES
from app.cli.dataset.commands import dataset
from app.cli.notify import notify
from app.cli.options import Group, calls, config_type, count_type, json_option, path_type, run_argument
from app.cli.runs.edit import delete, edit
from app.cli.runs.queue import queue
from app.cli.services import backup, doctor, machines, restore_backup, system, up, web, worker
from app.cli.setting_flags import RunCommand, settings_by_any_name, underscores_too
from app.cli.take_away import (
    archive,
    evaluate,
    evaluations,
    export,
    gather,
    push,
    restore,
    reward,
    samples,
    suite,
    suites,
    verify,
)
from app.cli.user import share, token, user
from training.config.choices import Strategy, Wanted
from training.parts import present
from worker.choices import Status

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
config_argument = click.argument("path", metavar="[CONFIG.yaml]", required=False, type=config_type)


@click.group(cls=Group, context_settings=CONTEXT)
@click.version_option(package_name="lathe-workbench", prog_name="lathe", message="%(prog)s %(version)s")
def main() -> None:
    """Fine-tune language models: start Lathe, queue runs, follow them, export the adapter.

    RUN is a run's id, or its first four or more characters.
    """


for command in (
    up,
    web,
    worker,
    doctor,
    backup,
    restore_backup,
    system,
    machines,
    *present("app.cli.runs.sweep:sweep"),
    dataset,
    edit,
    delete,
    share,
    queue,
    notify,
    user,
    token,
):
    main.add_command(command)


@main.command(cls=RunCommand, context_settings={"token_normalize_func": underscores_too})
@config_argument
@click.option(
    "--follow", is_flag=True, help="Show the progress until the run ends. Exit codes: 0 finished, 1 failed, 3 stopped."
)
@click.option(
    "--like",
    metavar="FOLDER",
    type=path_type,
    help="The same run as the one that made this result: its settings and data. Says what differs here.",
)
@json_option
@calls("runs.run:run")
def run() -> None:
    """Queue a run.

    Flags override the settings in CONFIG.yaml, or those of the run that made the result in FOLDER.
    """


@main.command(cls=RunCommand, context_settings={"token_normalize_func": underscores_too})
@config_argument
@json_option
@calls("forecast:targets")
def targets() -> None:
    """Show which modules a run would train.

    Queues nothing and loads no weights. Only the model, its method and its target modules matter.
    """


@main.command(cls=RunCommand, context_settings={"token_normalize_func": underscores_too})
@config_argument
@json_option
@calls("forecast:render")
def render() -> None:
    """Show rows as a run renders them.

    Queues nothing. Shows which tokens carry loss, and faults of the chat template, the tokenizer and the rows. Exit code 1: errors.
    """


@main.command(cls=RunCommand, context_settings={"token_normalize_func": settings_by_any_name})
@config_argument
@click.option(
    "--gpu", metavar="NAME", help="v100-32gb, a100-80gb, h100, ..., or GiB of memory.  [default: this machine's]"
)
@click.option("--gpus", metavar="N", type=click.IntRange(1, 1024), help="Number of GPUs, one process each.")
@click.option(
    "--simulate/--no-simulate",
    default=None,
    help="Also simulate a training step (up to a minute).  [default: where the formula cannot decide]",
)
@click.option(
    "--solve",
    multiple=True,
    metavar="SETTING",
    type=click.Choice([wanted.value for wanted in Wanted]),
    help="Also find the most that fits: max_length, micro_batch_size, lora_r, gpus (fewest), gpu (cheapest).",
)
@click.option("--fetch-config", is_flag=True, help="First download the model's config.json from the hub.")
@click.option("--host-memory", metavar="GIB", type=click.FloatRange(min=0.5), help="Host memory of the machine.")
@json_option
@calls("forecast:show")
def forecast() -> None:
    """Forecast the memory of a run, and show settings that fit.

    Queues and loads nothing: the model's config.json is enough, and --data is optional.
    """


@main.command
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only runs with this status.")
@click.option(
    "--search",
    default="",
    metavar="TEXT",
    help="A filter: words, or conditions such as method:lora loss<1.5 tag:paper.",
)
@click.option("--group", default="", metavar="NAME", help="By groups: model, data, method, sweep, tag, or a setting.")
@click.option("--limit", default=50, show_default=True, metavar="N", type=count_type, help="At most N runs.")
@json_option
@calls("runs.show:listing")
def runs() -> None:
    """List the runs: pinned ones first, then the newest."""


@main.command
@run_argument
@json_option
@calls("runs.show:show")
def show() -> None:
    """Show one run: progress, results, configuration and events."""


@main.command
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: a row for each run, numbers without units.")
@click.option("--all-settings", is_flag=True, help="Also the settings that do not differ.")
@json_option
@calls("runs.show:compare")
def compare() -> None:
    """Compare up to 50 runs: parameters, memory, speed, losses, and the settings that differ."""


@main.command
@run_argument
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the run ends.")
@click.option("--tail", default=200, show_default=True, metavar="N", type=count_type, help="Print the last N lines.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@calls("runs.show:logs")
def logs() -> None:
    """Print the log of a run's training process."""


@main.command
@click.argument("log", metavar="[LOG]", required=False)
@click.option("--run", "run_id", metavar="RUN", help="Diagnose a run of Lathe instead of a log.")
@click.option(
    "--model", metavar="MODEL", help="Folder or config.json of the model, to name the tensor that did not fit."
)
@click.option(
    "--micro-batch", type=count_type, metavar="N", help="Rows per forward pass, if the log does not contain it."
)
@json_option
@calls("diagnose:diagnosis")
def diagnose() -> None:
    """Diagnose why a training run failed, from its log.

    LOG is a file, or - for standard input. It can come from any training program.
    """


@main.command("import")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=path_type)
@click.option("--output", "-o", type=path_type, help="Write the configuration to this file.")
@json_option
@calls("import_files:import_")
def import_() -> None:
    """Translate configuration files of other programs into a run's.

    FILE is a YAML of LLaMA-Factory, axolotl, torchtune or Oumi, arguments of trl, transformers or ms-swift, a configuration
    of accelerate, a DeepSpeed JSON, an adapter_config.json, a shell script with a training command, or a Python script or
    notebook of Unsloth or trl. Nothing of it is executed. A later file adds to an earlier one.
    """


@main.command
@click.option("--entry", type=click.Choice([*ENTRIES]), help="Print the entry for this agent instead.")
@calls("agents.server:serve")
def mcp() -> None:
    """Serve Lathe as tools of an agent (Model Context Protocol).

    The agent starts this command and speaks with it over standard input and output. Tools that change something must be confirmed.
    """


@main.command
@run_argument
@json_option
@calls("runs.run:stop")
def stop() -> None:
    """Stop a run.

    A running run saves a checkpoint first; `lathe resume` continues from it.
    """


@main.command
@run_argument
@click.option("--step-down", is_flag=True, help="Use the settings proposed when it ran out of memory.")
@click.option("--num-processes", type=click.IntRange(1, 1024), help="Continue on another number of processes.")
@click.option(
    "--strategy", type=click.Choice([strategy.value for strategy in Strategy]), help="Continue with another strategy."
)
@json_option
@calls("runs.run:resume")
def resume() -> None:
    """Resume a failed, stopped or diverged run from its last complete checkpoint.

    Of a finished run, what was not done after its training is done: lathe show lists it.

    With another strategy or number of processes, the global batch size stays the same.
    """


for command in (evaluate, evaluations, suite, suites, samples, reward, export, gather, verify, push, archive, restore):
    main.add_command(command)


if __name__ == "__main__":
    main()
