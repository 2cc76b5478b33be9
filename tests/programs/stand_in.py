"""A stand-in for the training program and its launcher, for tests of what surrounds them: it trains nothing, but reports,
saves, obeys, crashes, hangs and disobeys as the run's setting `model` says, for example `{"steps": 5, "crash_at": 3}`. With
`"hold": 3` it waits before step 3, with `"hold": "exit"` after its end, until the test says `go`; with a phase rank 0 waits there
after it has saved the result, and the other ranks end.

`python tests/programs/stand_in.py supervise RUN_ID ATTEMPT` is a supervisor with this program in place of the real one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.like_torchrun import wait_for_ranks
from training.ranks.stopping import die_with_parent
from training.run_folder import events
from training.run_folder.paths import PAUSE_VARIABLE
from training.run_folder.stages import MOST_KILLS, UNDONE, Saved

GRACES = "STAND_IN_GRACES"
GO_FILE = "go"


def main() -> int:
    match sys.argv[1]:
        case "supervise":
            return supervise(sys.argv[2:])
        case "launch":
            return launch(Path(sys.argv[2]), json.loads(sys.argv[3]))
        case _:
            return Rank(int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])).run()


def supervise(arguments: list[str]) -> int:
    from worker.supervision import lease, supervisor
    from worker.supervision.launcher import Launch
    from worker.supervision.training_process import Graces

    # No test waits for what a supervisor looks at now and then.
    supervisor._LOOK_SECONDS = supervisor._EARLY_LOOK_SECONDS = lease._ASK_SECONDS = lease._RETRY_SECONDS = 0.05

    def command(config: Any, run_dir: Path, devices: list[str], cpu_count: int) -> Launch:
        return Launch([sys.executable, __file__, "launch", str(run_dir), config.model], {})

    graces = Graces(**json.loads(os.environ.get(GRACES, "{}")))
    return supervisor.main(arguments, launch=command, graces=graces)


def launch(run_dir: Path, behaviour: dict[str, Any]) -> int:
    """As torchrun: each rank has its own session; when one fails, the others are asked to stop and waited for."""
    time.sleep(behaviour.get("slow_launch", 0))
    numbers = range(behaviour.get("ranks", 1))
    arguments = [[sys.executable, __file__, "rank", str(n), str(run_dir), json.dumps(behaviour)] for n in numbers]
    ranks = [subprocess.Popen(words, start_new_session=True) for words in arguments]
    return wait_for_ranks(ranks)


class Rank:
    def __init__(self, number: int, run_dir: Path, behaviour: dict[str, Any]) -> None:
        die_with_parent()
        self.number, self.run_dir, self.behaviour = number, run_dir, behaviour
        self.asked = False
        self.writer = events.EventWriter(run_dir / "events.jsonl")
        signal.signal(signal.SIGTERM, self.on_terminate)

    def on_terminate(self, *_: object) -> None:
        self.asked = not self.behaviour.get("deaf", False)

    def run(self) -> int:
        status = self.train()
        self.writer.write(events.RankLeft(rank=self.number))
        return status

    def train(self) -> int:
        self.writer.write(events.RankStarted(rank=self.number, pid=os.getpid(), device="cpu"))
        saved = Saved.read(self.run_dir)
        if saved and saved.resumes:
            return self.finish(saved)
        first = self.last_checkpoint()
        for phase in ("loading data", "loading model"):
            self.enter(phase)
            if self.asked:
                self.say(events.Finished(outcome="stopped", step=0, summary={}))
                return 0
        plan = {"train_rows": 1, "eval_rows": 0, "skipped_rows": 0, "truncated_rows": 0, "precision": "fp32"}
        plan |= {"trainable_parameters": 1, "total_parameters": 1, "target_modules": []}
        steps = self.behaviour.get("steps", 3)
        plan |= {"engine": "None", "zero_stage": None, "world_size": 1}
        self.say(events.Planned(total_steps=steps, start_step=first, **plan))
        if first:
            self.say(events.Resumed(step=first, path=f"checkpoint-{first}", rejected=[]))
        self.enter("training")
        for step in range(first + 1, steps + 1):
            self.step(step)
            if self.asked or step == int(os.environ.get(PAUSE_VARIABLE, "0")) < steps:
                self.save(step)
                outcome = "stopped" if self.asked else events.PAUSED
                self.say(events.Finished(outcome=outcome, step=step, summary={}))
                return 0
        self.enter("saving")
        adapter = self.run_dir / "adapter"
        adapter.mkdir(exist_ok=True)
        (adapter / "adapter_model.safetensors").write_bytes(bytes(self.behaviour.get("adapter_bytes", 1000)))
        saved = Saved(events.FINISHED, {"steps": steps})
        if self.number == 0:
            saved.write(self.run_dir)
        return self.finish(saved)

    def finish(self, saved: Saved) -> int:
        """What follows the training, as training/results/finishing.py does it."""
        if self.number:
            return 0
        self.say(events.ResultSaved(step=saved.summary["steps"]))
        if isinstance(phase := self.behaviour.get("hold"), str) and phase != "exit":
            self.enter(phase)
            self.hold(phase)
        if saved.kills.get("describing", 0) < MOST_KILLS:
            self.enter("describing")
            saved.done.append("describing")
        undone = {} if saved.done else {UNDONE: {"describing": "It was killed too often."}}
        saved.write(self.run_dir)
        steps = saved.summary["steps"]
        self.say(events.Finished(outcome=events.FINISHED, step=steps, summary=saved.summary | undone))
        self.hold("exit")
        return 0

    def hold(self, place: int | str) -> None:
        while self.behaviour.get("hold") == place and not (self.run_dir / GO_FILE).exists():
            time.sleep(0.01)

    def step(self, step: int) -> None:
        self.hold(step)
        if self.number and step == self.behaviour.get("crash_at"):
            self.meet(step)
        self.misbehave("crash_at", step)
        for line in self.behaviour.get("prints", []):
            print(line * self.behaviour.get("times", 1), end="", flush=True)
        time.sleep(self.behaviour.get("pause", 0.01))
        self.say(events.Metrics(step=step, values={"loss": 1 / step}))
        if step == self.behaviour.get("save_at"):
            self.save(step)

    def meet(self, step: int) -> None:
        """Waits until rank 0 is at this step, as the ranks of a training do."""
        while step > 1 and f'"step":{step - 1},"values"' not in (self.run_dir / "events.jsonl").read_text():
            time.sleep(0.01)

    def misbehave(self, what: str, where: object) -> None:
        """Crashes once in a run, unless told to do so `always`."""
        done = self.run_dir / "crashed"
        if self.behaviour.get(what) != where or (done.exists() and not self.behaviour.get("always")):
            return
        if self.number != self.behaviour.get("crash_rank", 0):
            return
        done.touch()
        how = self.behaviour.get("how", "SIGKILL")
        if how in ("expected", "unexpected"):
            said = {"error": "ValueError", "message": f"It cannot go on at {where}.", "fix": "Mend it."}
            self.writer.write(events.Failed(rank=self.number, phase="training", expected=how == "expected", **said))
            while self.behaviour.get("lingers"):
                time.sleep(0.01)
            os._exit(1)
        if how == "out of memory":
            told = {
                "device": "cpu",
                "phase": "training",
                "policy": "step_down",
                "part": "forward",
                "step": 3,
                "micro_step": 1,
            }
            self.writer.write(events.OutOfMemory(rank=self.number, **told, step_down=self.behaviour.get("step_down")))
            os._exit(1)
        if how == "eat":
            self.eaten = b"x" * 2**30
        if how in ("exit", "vanish"):
            os._exit(3 if how == "exit" else 0)
        os.kill(os.getpid(), signal.Signals[how])

    def enter(self, phase: str) -> None:
        self.say(events.PhaseStarted(phase=phase))
        self.misbehave("crash_in", phase)
        if phase == self.behaviour.get("slow"):
            while not self.asked:
                time.sleep(0.01)
            time.sleep(self.behaviour.get("late", 0))

    def save(self, step: int) -> None:
        self.enter("saving")
        if self.number == 0:
            (self.run_dir / f"checkpoint-{step}").touch()
        self.say(events.CheckpointSaved(step=step, path=f"checkpoint-{step}", bytes=1))
        self.say(events.PhaseStarted(phase="training"))

    def last_checkpoint(self) -> int:
        return max((int(path.name.split("-")[1]) for path in self.run_dir.glob("checkpoint-*")), default=0)

    def say(self, event: Any) -> None:
        if self.number == 0:
            self.writer.write(event)


if __name__ == "__main__":
    sys.exit(main())
