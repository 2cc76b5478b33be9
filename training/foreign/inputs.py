"""What a text gives to which program: the keys of a YAML or JSON file, or the arguments of the training command of a script."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from training.config import yaml_text
from training.errors import UserError
from training.foreign import launchers, notebook_text, python_text
from training.foreign.entries import Entry, Outcome, Values, is_on
from training.foreign.launchers import Arguments, Launch, launches
from training.foreign.programs import (
    BY_FLAGS,
    BY_ITSELF,
    COMMANDS,
    LAUNCHERS,
    LLAMAFACTORY,
    ONE_PROCESS,
    PROGRAMS,
    SCRIPT,
    SWIFT,
    TRL,
    UNSLOTH,
    Program,
    check_is_read,
    of_command,
    recognized,
)
from training.foreign.shell_text import read as read_script
from training.foreign.shell_values import Unresolved
from training.foreign.shell_words import ShellTextError
from training.foreign.tasks import named_task
from training.foreign.trainer_keys import COMMAND, FILE
from training.foreign.trl import is_own

_CONFIG_FLAGS = ("config", "c", "config_file", "config_path")
_SHELL_ENDINGS = (".sh", ".bash", ".slurm", ".sbatch")
_ENDINGS = (".yaml", ".yml", ".json")
_NO_TRAINING = re.compile(
    r"(?:^|[_./-])(?:merge|convert|export|eval|evaluate|evaluation|infer|inference|generate|generation|predict|preprocess|prepare|"
    r"expand|llama_pro|download|serve|deploy|quantize|tokenize|upload)(?:[_./-]|$)"
)
"""Names of scripts that do something else than training."""
_OF_TRAINING = re.compile(
    r"(?:learning_rate|lr|stage|task|config|(?:num_(?:train_)?)?epochs|max_steps|do_train|packing|deepspeed|bf16|fp16|beta)$"
    r"|(?:per_device_|micro_|train_)?(?:train_)?batch_size|gradient_|warmup_|lora_|use_(?:q?lora|peft)|max_(?:seq|length)|block_size"
    r"|save_|train|dataset|data_|lr_|optim|finetuning_|model_max|cutoff"
)
"""Flags that no inference, server or conversion has."""
_EXAMPLE = re.compile(r"(^|/)run_(clm|fim|glue|classification|xnli|summarization|translation|seq2seq\w*)\.py$")
"""Examples of transformers."""
_FOLDERS = ("", "..", "../..", "../../..")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MOST_HOPS, _LONGEST_REFERRING = 5, 4096
_LARGEST = 2**20
"""Bytes of a file that a configuration names; configurations are a few thousand."""
_OTHER_TRAINING = "is another training of the script. Import its command by itself."
_NOT_KNOWN = "is an argument that Lathe does not know."
_NOT_HERE = "is not here. Import that file too."
_LEFT = "stands outside of a command: a comment or a blank behind a backslash ends the command before it."


@dataclass(frozen=True)
class Nearby:
    """The folder of a file, from which names are looked up, and texts that a script writes. Without a folder, no file is read."""

    folder: Path | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """The text of a named file, from the folder upwards; None if it is not here, too large or no text."""
        if name in self.written:
            return self.written[name]
        for path in [self.folder / part / name for part in _FOLDERS] if self.folder else []:
            try:
                if path.is_file() and path.stat().st_size <= _LARGEST:
                    return path.read_text(encoding="utf-8")
            except (OSError, ValueError):  # a name that no file can have; not text
                continue
        return None

    def mapping(self, name: str) -> Values | None:
        """The mapping in a named file; None if it is not here, or none."""
        text = self.text(name)
        return None if text is None else _mapping(text)[0]


class NoTraining(UserError):  # noqa: N818
    """A command or file that only evaluates or predicts."""


@dataclass(frozen=True)
class Given:
    """A program with the values of its keys, its launcher with the launcher's options, and entries for what is not read."""

    program: Program
    values: Values
    launcher: Program | None = None
    options: Values = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    nearby: Nearby = field(default_factory=Nearby)
    unseen: str = ""
    """A script of its own that is not here, so that its defaults are not known."""

    @property
    def complete(self) -> bool:
        """True if nothing that it names is missing, so that missing keys have the program's defaults."""
        return python_text.ARGUMENTS not in self.values and all(one.note != _NOT_HERE for one in self.entries)


def given(text: str, folder: Path | None, name: str) -> Given:
    """What a text gives. Raises UserError if the text exceeds a limit, or is of no program that Lathe reads."""
    nearby = Nearby(folder)
    if python_text.is_script(text):
        return _script(text, name)
    notebook = notebook_text.of_notebook(text)
    if notebook is not None:
        text = notebook[1]
        if python_text.is_script(notebook[0]):
            return _script(notebook[0], name)
    values, problem = _mapping(text) if notebook is None else ({}, "")
    if values is not None and (program := recognized(values)) is not None:
        check_is_read("", values, name)
        _check_trains(program, values, name)
        if program is TRL and name:
            values = {FILE: name} | values
        return Given(program, flat(values, program.table) if program.nested else values, nearby=nearby)
    if values is None:
        check_is_read("", _toml(text), name)
    try:
        command = _command(text, nearby)
    except ShellTextError as error:
        raise UserError("file", name, f"is not read: {error}.", "Give a shorter script.") from None
    if command is not None:
        return command
    check_is_read("", values or {}, name)
    names = ", ".join(program.name for program in PROGRAMS)
    if text.startswith("#!") or name.endswith(_SHELL_ENDINGS):
        message = f"starts no training of {names}, or only with arguments of its own."
        raise UserError("file", name, message, "Give the command of the training with its values.")
    if problem and not values:
        raise UserError("file", name, f"is not valid YAML or JSON: {problem}", "Correct it, or give a command.")
    fix = "Give one of theirs, or the flags of a command."
    raise UserError("file", name, f"is not a configuration of {names}.", fix)


def _script(text: str, name: str) -> Given:
    """What the calls of a Python script give."""
    try:
        values = python_text.read(text)
    except ValueError as error:
        raise UserError("file", name, f"is not read: {error}.", "Correct it, or give the run's arguments.") from None
    of_file = {FILE: name} if name else {}
    return Given(UNSLOTH if "Unsloth" in values[COMMAND] else SCRIPT, of_file | values)


def _mapping(text: str) -> tuple[Values | None, str]:
    """The mapping of a YAML or JSON text, or None and what is wrong with it."""
    if text.startswith("#!"):
        return None, ""
    try:
        values = yaml_text.load(text)
    except yaml_text.YamlTextError as error:
        return None, str(error)
    return (values, "") if isinstance(values, dict) else (None, "")


def _toml(text: str) -> Values:
    """The keys of a TOML text, which no program has that Lathe reads; empty for another text."""
    if len(text) > yaml_text.LONGEST_TEXT:
        return {}
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}


def _command(text: str, nearby: Nearby) -> Given | None:
    """The first training command of a shell text; the others are named."""
    script = read_script(text)
    nearby = replace(nearby, written=script.files)
    trainings: list[Given] = []
    refusals: list[NoTraining] = []
    for launch in launches(script, COMMANDS):
        try:
            one = _given(launch, nearby)
        except NoTraining as error:
            refusals.append(error)
            continue
        except UserError:  # a program that is not read
            if not trainings:
                raise
            one = None
        trainings += [one] if one is not None else []
    left = [command.words for command in script.commands if command.words and command.words[0].startswith("--")]
    if not trainings:
        flags = launchers.arguments(left[0]).flags if left else {}
        program = recognized(flags)
        if program is None and refusals:
            raise refusals[0]
        return Given(program, flags, nearby=nearby) if program else None
    first, *others = trainings
    entries = [Entry(str(one.values.get(COMMAND)), None, Outcome.UNSUPPORTED, note=_OTHER_TRAINING) for one in others]
    lost = [
        Entry(key, value, Outcome.UNSUPPORTED, note=_LEFT)
        for words in left
        for key, value in launchers.arguments(words).flags.items()
    ]
    return replace(first, entries=(*first.entries, *lost, *entries))


def _given(launch: Launch, nearby: Nearby) -> Given | None:
    """What a command gives to a program; None if it starts no training. Raises UserError if it starts a program that Lathe does
    not read, or a task that it does not train."""
    words = list(launch.arguments)
    skipped = 1 if launch.target in COMMANDS else 0
    command = " ".join([launch.target, *words[:skipped]])
    read = launchers.arguments(words[skipped:])
    of_files, entries = _of_files(read, nearby)
    flags = {
        name: value for name, value in read.flags.items() if name not in _CONFIG_FLAGS or not isinstance(value, str)
    }
    given = of_files | flags
    named = of_command(command)
    program = named or _by_flags(launch, given)
    check_is_read(command, given, command)
    made = None
    if (program in (None, TRL) or (named is None and program in (LLAMAFACTORY, SWIFT))) and launch.target.endswith(
        ".py"
    ):
        made = python_text.of_command(nearby.text(launch.target), given, TRL.table)
    if made or (program is None and entries and named_task(launch.target.rpartition("/")[2])):
        program = TRL  # its arguments are the script's, or in the file that is not here
    if program is None or _NO_TRAINING.search(launch.target):
        return None
    _check_trains(program, {COMMAND: command} | given, command)
    values = (flat(of_files, program.table) if program.nested else of_files) | flags
    own = made or _EXAMPLE.search(command) or is_own({COMMAND: command})
    unseen = launch.target if program is TRL and launch.target.endswith(".py") and not own else ""
    if made:
        own_adapter = made.get("use_peft") is True and "get_peft_config" not in (nearby.text(launch.target) or "")
        program, values = (SCRIPT if own_adapter else TRL), made  # get_peft_config is trl's, of trl's arguments
        command = f"{command} {made[COMMAND]}"
    entries += [
        Entry(word, None, Outcome.UNSUPPORTED, note=f"{word.reason}." if isinstance(word, Unresolved) else _NOT_KNOWN)
        for word in read.positional
        if not _is_file_name(word)
    ]
    launcher = LAUNCHERS.get(launch.launcher, ONE_PROCESS if program.divides else BY_ITSELF)
    options = dict(launch.options)
    if launch.launcher in LAUNCHERS:
        options = {name: value for name, value in options.items() if name.islower() or name == "CUDA_VISIBLE_DEVICES"}
        options = _config_of_launcher(options, nearby)
    return Given(program, values | {COMMAND: command}, launcher, options, tuple(entries), nearby, unseen)


def _check_trains(program: Program, values: Values, given: str) -> None:
    """Checks that a program that trains only with do_train is asked to, if it is asked for something else. Raises NoTraining if
    it is not."""
    needs_it = program is LLAMAFACTORY or _EXAMPLE.search(str(values.get(COMMAND)))
    asked = next((name for name in ("do_predict", "do_eval") if is_on(values.get(name))), None)
    if program is LLAMAFACTORY and not any(_OF_TRAINING.match(str(key)) for key in values):
        asked = next((name for name in ("export_dir", "infer_backend") if values.get(name)), asked)
    if needs_it and asked and not is_on(values.get("do_train")):
        message = f"trains nothing: {asked} is given, do_train is not on."
        raise NoTraining("file", given, message, "Give the file or command of the training.")


def _by_flags(launch: Launch, values: Values) -> Program | None:
    """The program whose flags the values are; files alone are of no command, nor are a server's flags of a training."""
    program = recognized(values) if launch.target not in COMMANDS else None
    of_python = launch.launcher or re.search(r"\.py$|^\w+(\.\w+)+$|train|tune", launch.target)
    trains = of_python or any(_OF_TRAINING.match(str(key)) for key in values)
    return program if program in BY_FLAGS and trains else None


def _of_files(read: Arguments, nearby: Nearby) -> tuple[Values, list[Entry]]:
    """The values of the configuration files that a command names, and entries for those that are not here."""
    names = [word for word in read.positional if _is_file_name(word)]
    names += [str(read.flags[flag]) for flag in _CONFIG_FLAGS if isinstance(read.flags.get(flag), str)]
    values: Values = {}
    entries = []
    for name in names:
        if (mapping := nearby.mapping(name)) is None:
            entries.append(Entry("config", name, Outcome.UNSUPPORTED, note=_NOT_HERE))
        else:
            values |= mapping
    return values, entries


def _config_of_launcher(options: Values, nearby: Nearby) -> Values:
    """The options of a launcher over those of the configuration file that they name, if it is here."""
    mapping = nearby.mapping(str(options["config_file"])) if "config_file" in options else None
    if mapping is None:
        return options
    return mapping | {name: value for name, value in options.items() if name != "config_file"}


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value.lower().endswith(_ENDINGS)


def flat(values: Values, whole: Collection[str]) -> Values:
    """The values of sections under dotted keys; lists and the keys in `whole` are one value. `${a.b}` is the value of a.b."""
    flat = dict(_dotted(values, whole, ""))
    return {key: _resolved(value, flat) for key, value in flat.items()}


def _dotted(values: Values, whole: Collection[str], start: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{start}{key}"
        if isinstance(value, dict) and value and name not in whole:
            yield from _dotted(value, whole, f"{name}.")
        else:
            yield name, value


def _resolved(value: Any, flat: Values) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(one, flat) for key, one in value.items()}
    for _ in range(_MOST_HOPS):
        match = _REFERENCE.search(value) if isinstance(value, str) and len(value) <= _LONGEST_REFERRING else None
        if match is None:
            return value
        if match.group(1) not in flat:
            return Unresolved(str(value), f"refers to {match.group(1)}, which the file does not set")
        target = flat[match.group(1)]
        value = target if match.group() == value else value.replace(match.group(), str(target))
    return value
