"""One rank of `benchmarks.matrix`. It runs a cell for each line of standard input: the group's port, and the run's folder."""

import os
import sys
import traceback
from pathlib import Path

from training.config.run_config import RunConfig
from training.ranks.stopping import die_with_parent


def main() -> None:
    die_with_parent()
    rank = int(os.environ.get("RANK", "0"))
    for line in sys.stdin:
        os.environ["MASTER_PORT"], place = line.strip().split(" ", 1)
        folder = Path(place)
        outcome = _run(folder, rank)
        part = folder / f"outcome-{rank}.part"
        part.write_text(outcome)
        part.rename(folder / f"outcome-{rank}")


def _run(folder: Path, rank: int) -> str:
    from training.ranks.stopping import StopSignal
    from training.reports.report import Report
    from training.train import train

    config = RunConfig.model_validate_json((folder / "config.json").read_text())
    try:
        train(config, folder, Report(folder, rank), StopSignal())
        return "worked"
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        _forget()


def _forget() -> None:
    """Resets the process: no process group, no settings of accelerate or DeepSpeed."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from training.ranks import distributed

    distributed.destroy_process_group()
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()
    if "deepspeed" in sys.modules:
        import deepspeed.comm.comm as communication
        from deepspeed.runtime.sequence_parallel import parallel_state_sp
        from deepspeed.utils import groups

        communication.cdb = None
        for module in (groups, parallel_state_sp):
            for name, value in vars(module).items():
                if name.endswith(("_GROUP", "_RANKS")) or name == "mesh_device":
                    setattr(module, name, {} if isinstance(value, dict) else None)


if __name__ == "__main__":
    main()
