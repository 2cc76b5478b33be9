"""The settings of an installation about engines; worker/settings.py has the others."""

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from training.config import slurm_options
from training.config.choices import EngineName
from training.errors import Problem
from training.parts import is_here


class EngineSettings(BaseSettings):
    """What may place runs on machines, and how."""

    engines: str = Field(
        "local",
        description="What may place runs on machines: local, slurm or both; the first is the default of new runs.",
    )
    slurm_options: str = Field(
        "",
        description="Options of Slurm jobs, such as partition=gpu, account=lab, time=24:00:00. A run may override each.",
    )
    slurm_lines: str = Field(
        "", description="Further lines of the job's script before the training starts, such as module load cuda."
    )
    slurm_container: str = Field(
        "", description="Container image of Slurm jobs, for srun --container-image (pyxis). Default: no container."
    )
    slurm_gres: str = Field(
        "gpu", description="GRES name of a GPU, such as gpu or gpu:h100; cpu for nodes without GPUs."
    )
    slurm_grace_seconds: int = Field(
        120, ge=10, description="How long before its time limit a Slurm job saves a checkpoint and queues itself again."
    )

    put_aside_hours: float = Field(
        24,
        ge=0,
        description="A machine that ended two attempts of runs on several machines within this many hours is put aside; 0: never.",
    )

    @field_validator("engines")
    @classmethod
    def _known_engines(cls, value: str) -> str:
        names = [part.strip() for part in value.split(",") if part.strip()]
        known = [engine.value for engine in EngineName if is_here(f"worker.engines.{engine}")]
        if not names or set(names) - set(known):
            raise ValueError(f"must be one or several of {', '.join(known)}, separated by commas")
        return ",".join(names)

    @field_validator("slurm_options")
    @classmethod
    def _known_options(cls, value: str) -> str:
        return slurm_options.canonical(value) or ""

    @field_validator("slurm_grace_seconds")
    @classmethod
    def _leaves_time_to_train(cls, value: int, given: ValidationInfo) -> int:
        if problem := _short(slurm_options.parse(given.data.get("slurm_options")), value):
            raise ValueError(f"does not fit LATHE_SLURM_OPTIONS: {problem.value} {problem.message} {problem.fix}")
        return value

    def time_problem(self, options: str | None) -> Problem | None:
        """What is wrong with the time limit of a job with a run's `options`."""
        chosen = slurm_options.parse(self.slurm_options) | slurm_options.parse(options)
        return _short(chosen, self.slurm_grace_seconds)

    @property
    def engine_names(self) -> list[EngineName]:
        """The engines of this installation, the default one first."""
        return [EngineName(name) for name in self.engines.split(",")]

    def chosen_engine(self, engine: EngineName) -> EngineName:
        """The engine that a run's setting means."""
        return self.engine_names[0] if engine is EngineName.AUTO else engine


def _short(options: dict[str, str], grace: int) -> Problem | None:
    limit = slurm_options.seconds(options.get("time", ""))
    if limit is None or limit > grace:
        return None
    message = (
        f"is no longer than LATHE_SLURM_GRACE_SECONDS ({grace}): the job would be told to save as soon as it starts."
    )
    return Problem(
        "slurm_options", f"time={options['time']}", message, "Give a longer time, or lower LATHE_SLURM_GRACE_SECONDS."
    )
