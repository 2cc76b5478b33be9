"""The report of benchmarks.chaos: faults by kind, and by phase, kind of run and ranks; attempts; damage."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.chaos.findings import Findings, attempts
from benchmarks.chaos.injector import Strike
from benchmarks.chaos.kinds import LIGHT
from worker.store import database
from worker.store.tables import Build, Evaluation, Run, ServedModel


def document(
    seed: int, seconds: float, strikes: Sequence[Strike], missed: int, findings: Findings, most_at_once: int
) -> dict[str, Any]:
    """Returns the report as JSON. `missed` faults had no target, `most_at_once` runs were active at once."""
    ended = attempts()
    two = [strike for strike in strikes if strike.ranks == 2 and strike.kind != LIGHT]
    return {
        "seed": seed,
        "minutes": round(seconds / 60, 1),
        **_rows(),
        "most_runs_at_once": most_at_once,
        "attempts": sum(ended.values()),
        "attempts_ended": ended,
        "faults": len(strikes),
        "faults_by_kind": _counted(strike.fault.kind for strike in strikes),
        "faults_by_phase": _counted(_where(strike) for strike in strikes if strike.run_id),
        "faults_of_two_ranks": len(two),
        "faults_of_two_ranks_after_the_last_step": sum(strike.late for strike in two),
        "faults_after_the_last_step": sum(strike.late for strike in strikes),
        "faults_without_victim": missed,
        **{name: len(messages) for name, messages in findings.damage.items()},
        "found": [f"{name}: {message}" for name, messages in findings.damage.items() for message in messages],
        "effective_training_percent": findings.effective_percent,
        "clean": findings.clean,
    }


def _rows() -> dict[str, int]:
    tables = {"runs": Run, "evaluations": Evaluation, "builds": Build, "served_models": ServedModel}
    with database.read() as session:
        return {name: session.query(table).count() for name, table in tables.items()}


def _where(strike: Strike) -> str:
    return f"{strike.phase}, {strike.kind} on {strike.ranks}"


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def in_words(report: dict[str, Any]) -> str:
    """Returns the report as text."""

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{number} {name}" for name, number in counts.items())

    work = f"{report['evaluations']} evaluations, {report['builds']} builds, {report['served_models']} served models"
    lines = [
        f"engine {report['engine']}, {report['database']} and {report['broker']}, seed {report['seed']}, "
        f"{report['minutes']} minutes of faults",
        f"runs        {report['runs']}, at most {report['most_runs_at_once']} at once; {work}",
        f"attempts    {report['attempts']}: {listed(report['attempts_ended'])}",
        f"faults      {report['faults']}, {report['faults_after_the_last_step']} after a run's last step; in runs on two ranks "
        f"{report['faults_of_two_ranks']}, {report['faults_of_two_ranks_after_the_last_step']} of them after the last step",
        f"            {listed(report['faults_by_kind'])}",
        *(f"            {number:4} {where}" for where, number in report["faults_by_phase"].items()),
        f"not struck  {', '.join(report['phases_not_struck']) or 'no phase'}",
        f"answers     {listed(report['answers_of_served_models'])}",
        *(f"{name:12}{report[name]}" for name in Findings().damage),
        f"effective training time {report['effective_training_percent']}%",
    ]
    return "\n".join([*lines, *(f"  {sentence}" for sentence in report["found"])])
