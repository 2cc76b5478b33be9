"""The closed formula for the same parameters. Pure.

J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (Future Generation Computer Systems 22,
2006): with failures every M seconds on average, a checkpoint that costs C after each T seconds of steps, and R seconds to restart,
S seconds of steps take  M exp(R/M) (exp((T+C)/M) - 1) S/T  seconds.
Its minimum is near J. W. Young's T = sqrt(2 C M) (CACM 17, 1974).
"""

import math

from benchmarks.scale.cluster.parameters import Parameters


def mean_seconds(parameters: Parameters, nodes: int) -> float:
    """Mean time between two failures of a run on so many nodes; infinite without failures."""
    rate = parameters.failures_a_second * nodes
    return 1 / rate if rate else math.inf


def restart_seconds(parameters: Parameters, nodes: int) -> float:
    """From a failure to the next step, on average, while the run holds nodes; and what is written late is trained again.

    After a silent failure the nodes are held until the lease has expired, if the lost node is the first one, else until Slurm
    counts the node as lost.
    """
    first = 1 / nodes
    until_noticed = (
        first * min(parameters.lease_seconds, parameters.detection_seconds) + (1 - first) * parameters.detection_seconds
    )
    return parameters.silent * until_noticed + parameters.load_seconds + parameters.write_seconds


def share(parameters: Parameters, nodes: int, steps_seconds: float) -> float:
    """Expected effective training time of a run with so many seconds of steps, as a share of the time that it holds nodes."""
    mean, restart = mean_seconds(parameters, nodes), restart_seconds(parameters, nodes)
    interval, stall = parameters.interval, parameters.stall_seconds
    if math.isinf(mean):
        slowdown = (interval + stall) / interval
    else:
        slowdown = mean * math.exp(restart / mean) * math.expm1((interval + stall) / mean) / interval
    once = parameters.load_seconds + parameters.write_seconds
    return steps_seconds / (steps_seconds * slowdown + once)


def best_interval(parameters: Parameters, nodes: int) -> float:
    """Young's optimum: seconds of steps between two checkpoints."""
    return math.sqrt(2 * parameters.stall_seconds * mean_seconds(parameters, nodes))
