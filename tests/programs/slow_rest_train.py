"""The training program; rank 0 waits before each stage after the training until the file `go` is in the run's folder.

`python tests/programs/slow_rest_train.py supervise RUN_ID ATTEMPT` is a supervisor with this program in place of the real one,
which waits for no dead rank.
"""

import sys
import time
from pathlib import Path
from typing import Any

GO_FILE = "go"


def supervise(arguments: list[str]) -> int:
    from worker.supervision import launcher, supervisor
    from worker.supervision.launcher import Launch
    from worker.supervision.training_process import Graces

    def command(config: Any, run_dir: Path, devices: list[str], cpu_count: int) -> Launch:
        real = launcher.launch(config, run_dir, devices, cpu_count)
        place = real.argv.index("--module")
        return Launch([*real.argv[:place], __file__, *real.argv[place + 2 :]], real.env)

    return supervisor.main(arguments, launch=command, graces=Graces(rank_died=0.0))


def train() -> None:
    from training import train as program
    from training.results.finishing import Finishing

    do = Finishing._do

    def slow(self: Finishing, stage: Any) -> None:
        while not (self.run_dir / GO_FILE).exists():
            time.sleep(0.01)
        do(self, stage)

    Finishing._do = slow  # type: ignore[method-assign]
    program.main()


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[2:]) if sys.argv[1] == "supervise" else train())
