"""What a run shows and leaves behind: a progress bar, the losses line by line, and their picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Losses:
    """The losses of a run: one JSON object a step, in a file that outlives the process."""

    def __init__(self, path: Path, step: int) -> None:
        """Keep what an earlier run wrote for the steps before this one."""
        self.rows: list[dict[str, float]] = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                # The last line of a killed run may be cut off.
                row: dict[str, float] = json.loads(line) if line.endswith("}") else {}
                if row and row["step"] < step:
                    self.rows.append(row)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in self.rows), encoding="utf-8")
        self._file: TextIO = path.open("a", encoding="utf-8")

    def add(self, **row: float) -> None:
        """Add a step."""
        self.rows.append(row)
        self._file.write(f"{json.dumps(row)}\n")
        self._file.flush()


class Bar:
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self, title: str, done: int, steps: int, every: int) -> None:
        """Start at a step."""
        self._every = every
        self._console = Console(file=sys.stdout)
        self._progress = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=steps, completed=done, loss="", speed="")
        self._steps = steps

    def __enter__(self) -> Bar:
        """Show it."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it is."""
        self._progress.stop()

    def step(self, step: int, loss: float, speed: float) -> None:
        """Show a step that is done."""
        tokens = f"{speed:,.0f} tokens/s"
        self._progress.update(self._task, completed=step + 1, loss=f"{loss:.4f}", speed=tokens)
        if not self._console.is_terminal and (step % self._every == 0 or step + 1 == self._steps):
            print(f"step {step + 1}/{self._steps}  loss {loss:.4f}  {tokens}", flush=True)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, highlight=False)


def draw(rows: list[dict[str, float]], path: Path, title: str) -> None:
    """Draw the losses of the training steps, and of the text held out, over the steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure: Any
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(
        [r["step"] for r in rows], [r["loss"] for r in rows], label="batches", color="C0", lw=1
    )
    held = [row for row in rows if "held_out" in row]
    if held:
        where = [row["step"] for row in held]
        axes.plot(
            where, [r["held_out"] for r in held], "o-", label="text held out", color="C1", ms=4
        )
        axes.legend(frameon=False)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a byte")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
