"""The results of an ended run on this machine; merged and GGUF models, and adapters of checkpoints, are created on demand."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from training.config.choices import Method
from training.errors import Problem, UserError
from training.files import locked
from training.rules.outputs import can_merge
from training.run_folder import paths
from training.run_folder.derived import ADAPTER_GGUF_FILE, GGUF_TYPES, GgufType
from training.units import byte_size
from worker.machine import programs
from worker.machine.programs import Program, ProgramError, ProgramKilled, ProgramRefused
from worker.machine.sizes import size_of
from worker.results import fetching
from worker.results.packing import missing_bytes, pack
from worker.settings import PREFIX, ROOT, get_settings, hub_token
from worker.store import database, runs
from worker.store.tables import Run

MERGED, GGUF_ADAPTER = "merged", "gguf-adapter"
GGUF_FORMS = {kind.form: kind for kind in GGUF_TYPES}
_FILES = (
    {MERGED: paths.MERGED_FILE}
    | ({GGUF_ADAPTER: ADAPTER_GGUF_FILE} if GGUF_FORMS else {})
    | {form: kind.file for form, kind in GGUF_FORMS.items()}
)
"""The forms of a result that are made on request, besides checkpoint-N, and the file that is the download of each."""

_LAST_LINES = 3
_FIX = "Check that the base model is on this machine and that its disk has space, then try again."


class NoResult(UserError):  # noqa: N818
    """The run does not have this result."""


def find(run: Run) -> Path:
    """The folder of the run's adapter or model.

    Raises:
        NoResult: there is none.
        NotFetched: it is on another machine and cannot be downloaded.
    """
    run_dir = get_settings().runs_dir / run.id
    fetching.fetch(run)
    result = paths.saved_result(run_dir)
    if not run.has_result or result is None:
        raise _missing(run, run_dir)
    return result


def file_of(form: str) -> str:
    """The name of the file in a run's folder that is the download of a form: merged, gguf, gguf-TYPE, gguf-adapter, checkpoint-N.

    Raises:
        NoResult: there is no such form.
    """
    if form not in _FILES and paths.checkpoint_step(Path(form)) is None:
        raise NoResult("form", form, "is not a form of a result.", f"Give one of {', '.join(_FILES)}, or checkpoint-N.")
    return _FILES.get(form, f"{form}.zip")


def check(run: Run, form: str) -> None:
    """Whether a form can be made of the run's result; whether it is on this machine is not looked at.

    Raises:
        NoResult: it cannot.
    """
    file_of(form)
    if not (run.has_result or (run.status.ended and paths.checkpoint_step(Path(form)) is not None)):
        raise _missing(run, get_settings().runs_dir / run.id)
    config = run.asked
    method, full = config.method.value, not config.method.adapts
    if form == MERGED and full:
        raise NoResult("run", run.id, "is a full fine-tuning: there is nothing to merge.", "Omit --merged.")
    if (form == MERGED or (form in GGUF_FORMS and not full)) and not can_merge(config.method):
        fix = "Load the base model and add the adapter with PEFT."
        raise NoResult("method", method, "adapters of this method have no weights that can be merged.", fix)
    if form in (*GGUF_FORMS, GGUF_ADAPTER) and not config.task.traits.generates:
        raise NoResult("task", config.task.value, "generates no text, so llama.cpp has no use for it.", "Take the zip.")
    if form == GGUF_ADAPTER and full:
        raise NoResult("run", run.id, "is a full fine-tuning: there is no adapter.", "Omit --adapter.")
    if form == GGUF_ADAPTER and not config.method.is_lora:
        raise NoResult(
            "method", method, "is no kind of LoRA, and llama.cpp has no other adapters.", "Convert the model."
        )


@dataclass(frozen=True)
class Builder:
    """Makes forms of a run's result that are not here yet, in processes beside this one, which `mark` marks.

    `tell` receives sentences about a file that was made, `progress` what is being done, and how much of how much is.
    """

    run: Run
    tell: Callable[[str], object] = lambda _note: None
    progress: Callable[[str, int, int], object] = lambda _phase, _done, _total: None
    mark: str = ""

    def build(self, form: str) -> Path:
        """The file that is the download of a form, in the run's folder. Raises NoResult if it cannot be made."""
        check(self.run, form)
        try:
            if form in GGUF_FORMS:
                return self.gguf(GGUF_FORMS[form])
            if form == GGUF_ADAPTER:
                return self.gguf_adapter()
            if form == MERGED:
                folder = self.merged()
                return self._made(paths.MERGED_FILE, lambda target: self._pack(folder, target))
            step = paths.checkpoint_step(Path(form))
            return self._made(f"{form}.zip", lambda file: self._pack(self.gather(file.with_suffix(""), step), file))
        except OSError as error:
            raise NoResult("run", self.run.id, f"the result could not be created: {error}.", _FIX) from None

    def merged(self) -> Path:
        """The folder of the adapter merged into its base model.

        Raises:
            NoResult: there is none, and it cannot be created.
        """
        run_dir = find(self.run).parent
        check(self.run, MERGED)
        return self._made(paths.MERGED_FOLDER, lambda target: self._run(programs.MERGING, str(run_dir), str(target)))

    def gguf(self, kind: GgufType) -> Path:
        """The model as one GGUF file, with an adapter merged into its base. Raises as `merged`."""
        result = find(self.run)
        if (target := result.parent / kind.file).is_file():
            return target
        if kind.by_llama_cpp and find_spec("llama_cpp") is None:  # told before a large model is merged
            fix = "Install it (pip install 'lathe-workbench[llama]' compiles it with g++ and cmake), or choose Q8_0."
            raise NoResult("type", kind.value, "needs llama.cpp, which is not installed.", fix)
        folder = result if self.run.config.get("method") == Method.FULL else self.merged()
        return self._made(kind.file, lambda target: self._run(programs.GGUF, str(folder), str(target), kind.value))

    def gguf_adapter(self) -> Path:
        """The LoRA adapter as a GGUF file for llama.cpp. Raises as `merged`."""
        run_dir = find(self.run).parent
        check(self.run, GGUF_ADAPTER)
        return self._made(ADAPTER_GGUF_FILE, lambda target: self._run(programs.GGUF_ADAPTER, str(run_dir), str(target)))

    def gather(self, target: Path, step: int | None = None) -> Path:
        """Writes the adapter or model of a checkpoint to the folder `target`, and returns it.

        Raises:
            NoResult: the run has no such checkpoint here (default: the newest), or its weights cannot be gathered.
        """
        steps = [] if step is None else [str(step)]
        self._run(programs.GATHERING, str(_folder(self.run)), str(target), *steps)
        return target

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        """The file or folder `name` in the run's folder. If it is missing, `make` writes it to the path that it is given."""
        target = get_settings().runs_dir / self.run.id / name
        if target.exists():
            return target
        with _alone(self.run) as folder:
            if not target.exists():  # made by another process meanwhile
                make(folder / name)
                self._place(folder / name, target)
        return target

    def _place(self, made: Path, target: Path) -> None:
        """Moves what was made into the run's folder, while the run's row is locked: Resume needs the same lock."""
        with database.write() as session:
            run = runs.locked(session=session, run_id=self.run.id)
            if (run.status, run.attempt) != (self.run.status, self.run.attempt):
                fix = f"Build it again when the run has ended: lathe show {run.id}"
                raise NoResult("run", run.id, f"was resumed while {target.name} was made.", fix)
            made.rename(target)

    def _pack(self, folder: Path, target: Path) -> None:
        total = size_of(folder).bytes
        if missing := missing_bytes(folder):
            raise OSError(errno.ENOSPC, f"{byte_size(missing)} more of disk space needed to pack it")
        pack(folder, target, lambda packed: self.progress("packing", packed, total))

    def _run(self, program: Program, *arguments: str) -> None:
        """Runs a program of `training` that makes a result of the run, and tells its progress and notes."""
        self.progress("loading", 0, 0)
        try:
            with closing(printed(program, *arguments, mark=self.mark)) as lines:
                for line in lines:
                    self._report(line)
        except ProgramError as error:
            fix = (error.problem.fix if isinstance(error, ProgramRefused) else "") or _FIX
            reason = error.problem.sentence if isinstance(error, ProgramRefused) else str(error)
            raise NoResult("run", self.run.id, f"the result could not be created: {reason}", fix) from error

    def _report(self, line: dict[str, Any]) -> None:
        """Tells a note of the program, or its progress."""
        if note := line.get("note"):
            self.tell(note)
        else:
            self.progress(line["phase"], line["done"], line["total"])


def printed(program: Program, *arguments: str, mark: str = "") -> Generator[dict[str, Any], None, None]:
    """The JSON objects that a program of `training` prints which loads a run's model; `mark` marks its processes.

    It is killed if it is closed before the end: it may write nothing more once its caller has given up.

    Raises:
        ProgramRefused: it said what is wrong.
        ProgramError: it failed otherwise; with its last lines on standard error.
    """
    command = [sys.executable, "-m", program.module, *arguments]
    env = environment() | {paths.SUPERVISOR_VARIABLE: str(os.getpid())} | ({paths.RUN_VARIABLE: mark} if mark else {})
    with TemporaryFile("w+", errors="replace") as errors, subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:  # fmt: skip
        assert process.stdout
        try:
            for line in process.stdout:
                if not line.startswith("{"):  # a warning that a library prints
                    continue
                if problem := (told := json.loads(line)).get("problem"):
                    raise ProgramRefused(Problem(**problem))
                yield told
        except GeneratorExit:
            process.kill()
            raise
        code = process.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()[-_LAST_LINES:]
    if code == -signal.SIGKILL:
        raise ProgramKilled
    if code:
        raise ProgramError(" ".join(lines) or f"{program.module} ended with exit code {code}")


def _missing(run: Run, run_dir: Path) -> NoResult:
    if not run.status.ended:
        message, fix = f"is {run.status.value}: its result is saved at the end.", f"Wait for it: lathe show {run.id}"
        return NoResult("run", run.id, message, fix)
    if not run.has_result:
        message, fix = f"is {run.status.value}: it has no result.", f"Resume it: lathe resume {run.id}"
        return NoResult("run", run.id, message, fix)
    fix = "Export it on the machine that trained it, or set LATHE_DATA_DIR to the folder that both machines share."
    return NoResult("run", run.id, f"has no result in {run_dir}.", fix)


def _folder(run: Run) -> Path:
    folder = get_settings().runs_dir / run.id
    if not folder.is_dir():
        raise NoResult("run", run.id, f"has no folder {folder}.", "Build it on the machine that trained it.")
    return folder


@contextmanager
def _alone(run: Run) -> Iterator[Path]:
    """An empty folder for what is made of the run, which one process at a time has. What a killed one has left is deleted."""
    unfinished = _folder(run) / paths.UNFINISHED_FOLDER
    with locked(unfinished.parent / ".building"):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            yield unfinished
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def environment() -> dict[str, str]:
    """The environment of programs that load a run's model, which may be a gated one: with the hub's token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    secret = hub_token()
    return kept | {"PYTHONPATH": str(ROOT)} | ({"HF_TOKEN": secret} if secret else {})
