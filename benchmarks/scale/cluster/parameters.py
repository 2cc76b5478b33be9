"""What is simulated, and where its rates come from."""

from dataclasses import dataclass, field

DAY = 86400.0

RATES: dict[str, tuple[float, str]] = {
    "rsc-1": (
        6.50,
        "Kokolis et al. 2024, Revisiting Reliability in Large-Scale ML Research Clusters (arXiv:2410.21680), RSC-1",
    ),
    "rsc-2": (2.34, "the same, RSC-2"),
    "llama3": (
        419 / 54 / 2048 * 1000,
        "Llama Team 2024, The Llama 3 Herd of Models (arXiv:2407.21783): 419 unexpected interruptions in 54 days on 16,384 GPUs,"
        " nodes of 8",
    ),
}
"""Failures per 1,000 node-days, with the source."""


@dataclass(frozen=True)
class RunClass:
    """Runs of one size: `count` of them at once, each with `days` of steps on `nodes` nodes."""

    nodes: int
    count: int
    days: float


MIX = (RunClass(128, 3, 5.0), RunClass(64, 4, 3.0), RunClass(32, 4, 1.5), RunClass(16, 8, 0.5), RunClass(4, 16, 1.0))
"""Takes 960 of 1,000 nodes; the rest is spare. The largest have 1,024 GPUs, as many as a run may have."""


def scaled(nodes: int) -> tuple[RunClass, ...]:
    """The mix for a cluster of `nodes` nodes: sizes and their shares of the nodes in proportion."""
    if nodes == 1000:
        return MIX
    sizes = [(max(1, round(kind.nodes * nodes / 1000)), kind) for kind in MIX]
    return tuple(
        RunClass(size, max(1, int(kind.nodes * kind.count * nodes / 1000 / size)), kind.days) for size, kind in sizes
    )


@dataclass(frozen=True)
class Parameters:
    """A simulated cluster. Times are in seconds.

    `failures` are per 1,000 node-days, exponential. After the share `silent` of them the node stops answering at once; after the
    others a rank reports the error to its supervisor. Either way the site takes the node out for `repair_seconds` (a mean).
    `stall_seconds` is how long a checkpoint stops training, `write_seconds` how long it is then written in the background.
    Runs are queued again as others of their class end, for `days`; then the simulation goes on until all have ended.
    """

    nodes: int = 1000
    days: float = 7.0
    seed: int = 1
    failures: float = RATES["rsc-1"][0]
    silent: float = 0.5
    repair_seconds: float = 6 * 3600.0
    detection_seconds: float = 300.0
    step_seconds: float = 10.0
    save_steps: int = 180
    stall_seconds: float = 10.0
    write_seconds: float = 60.0
    load_seconds: float = 300.0
    lease_seconds: float = 150.0
    max_attempts: int = 3
    mix: tuple[RunClass, ...] = field(default=())

    @property
    def classes(self) -> tuple[RunClass, ...]:
        return self.mix or scaled(self.nodes)

    @property
    def interval(self) -> float:
        """Seconds of steps between two checkpoints."""
        return self.save_steps * self.step_seconds

    @property
    def failures_a_second(self) -> float:
        """Of one node."""
        return self.failures / 1000 / DAY
