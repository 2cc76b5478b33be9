"""One change to many runs: what was done, and what was refused with the reason."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from training.errors import UserError


@dataclass
class Outcome:
    """The runs that were changed, and the refusals by run."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """The outcome as `--json` prints it."""
        return {"done": self.done, "refused": self.refused}


def each(run_ids: Iterable[str], change: Callable[[str], object]) -> Outcome:
    """Makes the change to each run; a refusal does not keep the others from being changed."""
    outcome = Outcome()
    for run_id in dict.fromkeys(run_ids):
        try:
            change(run_id)
        except UserError as error:
            outcome.refused[run_id] = f"{error.message} {error.fix}".strip()
        else:
            outcome.done.append(run_id)
    return outcome
