"""What a run shows and leaves behind: a progress bar, the losses line by line, and their picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Row = dict[str, float]


class Losses:
    """The losses of a run: one JSON object a step, in a file that outlives the process."""

    def __init__(self, path: Path, step: int) -> None:
        """Keep what an earlier run wrote for the steps before this one."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        # The last line of a killed run may be cut off.
        rows: list[Row] = [json.loads(line) for line in lines if line.endswith("}")]
        self.rows = [row for row in rows if row["step"] < step]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in self.rows), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: Row) -> None:
        """Add a step."""
        self.rows.append(row)
        self._file.write(f"{json.dumps(row)}\n")
        self._file.flush()


class Bar:
    """A progress bar on a terminal, and a line now and then elsewhere."""

    def __init__(self, done: int, steps: int, every: int) -> None:
        """Start at a step."""
        self._steps, self._every = steps, every
        self._console = Console(file=sys.stdout, highlight=False)
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=steps, completed=done, said="")
        self._progress.start()

    def step(self, row: Row, speed: float) -> None:
        """Show a step that is done."""
        done = int(row["step"]) + 1
        said = f"loss {row['loss']:.4f}  {speed:,.0f} tokens/s"
        self._progress.update(self._task, completed=done, said=said)
        if not self._console.is_terminal and ("held_out" in row or done == self._steps):
            held = f"  held out {row['held_out']:.4f}" if "held_out" in row else ""
            print(f"step {done}/{self._steps}  {said}{held}", flush=True)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class Report:
    """All of it; of several processes, one shows it."""

    def __init__(self, folder: Path, title: str, start: int, steps: int, every: int) -> None:
        """Begin at a step."""
        self._folder, self._title = folder, title
        self._losses = Losses(folder / "losses.jsonl", start)
        self._bar = Bar(start, steps, every)
        self._bar.say(title)
        if start:
            self._bar.say(f"going on from the checkpoint of step {start}")

    def step(self, row: Row, speed: float) -> None:
        """Show a step, with its tokens a second."""
        self._losses.add(row)
        self._bar.step(row, speed)

    def close(self) -> None:
        """Draw the curve."""
        self._bar.close()
        draw(self._losses.rows, self._folder / "loss.png", self._title)
        print(f"the curve: {self._folder / 'loss.png'}")


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw the losses of the batches, and of the text held out, over the steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure: Any
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    steps = [row["step"] + 1 for row in rows]
    axes.plot(steps, [row["loss"] for row in rows], color="C0", lw=1, label="batches")
    held = [row for row in rows if "held_out" in row]
    where = [row["step"] + 1 for row in held]
    losses = [row["held_out"] for row in held]
    axes.plot(where, losses, "o-", color="C1", ms=4, label="text held out")
    axes.legend(frameon=False)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a byte)")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
