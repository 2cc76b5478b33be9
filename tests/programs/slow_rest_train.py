"""The training program; rank 0 waits in each stage after the training until the test says so: `go-STAGE` in the run's folder.

`python tests/programs/slow_rest_train.py supervise RUN_ID ATTEMPT OTHERS` is a supervisor with this program in place of the real
one, which has no patience: it waits neither for a dead rank nor for one that does not exit. OTHERS says what the other ranks do
after the training: they have `left`, they are `frozen` before they leave, or `slow` to leave, so that the test can kill them.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OTHERS = "SLOW_REST_OTHERS"
LEFT, FROZEN, SLOW = "left", "frozen", "slow"


def go_file(run_dir: Path, phase: str) -> Path:
    return run_dir / f"go-{phase}"


def supervise(run_id: str, attempt: str, others: str) -> int:
    from worker.supervision import launcher, supervisor
    from worker.supervision.launcher import Launch
    from worker.supervision.training_process import Graces

    def command(config: Any, run_dir: Path, devices: list[str], cpu_count: int) -> Launch:
        real = launcher.launch(config, run_dir, devices, cpu_count)
        place = real.argv.index("--module")
        return Launch([*real.argv[:place], __file__, *real.argv[place + 2 :]], real.env | {OTHERS: others})

    return supervisor.main([run_id, attempt], launch=command, graces=Graces(rank_died=0.0, exiting=0.0))


def train() -> None:
    from training import train as program
    from training.results import finishing

    leave = program.leave

    def held(phase: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def wait(self: Any) -> Any:
            while not go_file(self.run_dir, phase).exists():
                time.sleep(0.01)
            return work(self)

        return wait

    def late(report: Any) -> None:
        if report.rank and os.environ[OTHERS] == FROZEN:
            os.kill(os.getpid(), signal.SIGSTOP)
        while report.rank and os.environ[OTHERS] == SLOW:
            time.sleep(0.01)
        leave(report)

    finishing.WORK.update({phase: held(phase, work) for phase, work in finishing.WORK.items()})
    program.leave = late
    program.main()


if __name__ == "__main__":
    sys.exit(supervise(*sys.argv[2:]) if sys.argv[1] == "supervise" else train())
