"""The installation that is measured, and the pages that show it."""

from dataclasses import dataclass

from benchmarks.pages import fill


@dataclass(frozen=True)
class Installation:
    """The ids of what the pages show: ended runs by their number of ranks, a live run, a data set and a sweep."""

    steps: int
    ended: dict[int, str]
    live: str
    dataset: str
    sweep: str

    @classmethod
    def filled(cls, steps: int, ranks: list[int]) -> "Installation":
        """Stores an ended run of `steps` steps for each number of ranks, and the rest."""
        ended = {count: fill.long_run(steps, count) for count in ranks}
        dataset = fill.dataset()
        return cls(steps, ended, fill.live_run(), dataset, fill.sweep(dataset))

    def pages(self) -> dict[str, tuple[str, str]]:
        """The address of each page but Runs, and the selector of its useful content."""
        ended = {
            f"Run, {self.steps:,} steps, {ranks} rank{'s' if ranks > 1 else ''}": (
                f"/run?id={run}",
                ".standing .live-facts",
            )
            for ranks, run in self.ended.items()
        }
        return ended | {
            "Run, live": (f"/run?id={self.live}", ".standing .live-facts"),
            "Run, live: first plot": (f"/run?id={self.live}", ".plots canvas"),
            "Compare": (f"/compare?runs={','.join([*self.ended.values(), self.live])}", ".compared-runs table td"),
            "New run": ("/new", "#first-data, #setting-data input"),
            "Data sets": ("/datasets", "table.sets"),
            "Data set": (f"/dataset?id={self.dataset}", ".rows, table"),
            "Diagnose": ("/diagnose", "textarea"),
            "Sweeps": ("/sweeps", ".empty, table"),
            "Sweep": (f"/sweep?id={self.sweep}", "table"),
            "Playground": ("/playground", ".playground select, #playground-empty:not([hidden])"),
            "System": ("/system", "section.panel table"),
            "Settings": ("/settings", "section.panel, .card"),
            "Tour": ("/start", "section.step"),
        }
