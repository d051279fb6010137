"""What is said, written and decided while a training runs: progress, logs, the best epoch, the stop at NaN."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import keras

from .errors import UserError

if TYPE_CHECKING:
    from .batching import Plan
    from .training import History

__all__ = ["JsonLog", "Progress", "Record", "StopOnNaN", "tensorboard"]


def _numbers(logs: dict | None) -> dict[str, float]:
    return {k: float(v) for k, v in (logs or {}).items() if not isinstance(v, dict | list | str)}


def _clock(seconds: float) -> str:
    """65 -> "1:05"; hours only where there are any."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class StopOnNaN(keras.callbacks.Callback):
    """Ends training with a UserError at the step whose loss is NaN or infinite; the weights are then lost."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.step += 1
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            raise UserError(
                f"training step {self.step} (batch {batch + 1} of its epoch)",
                f"the loss is {loss}",
                "lower the learning rate, lengthen the warm-up or clip; with mixed_float16 try "
                "mixed_bfloat16; look for such numbers in targets and weights",
            )


class Record(keras.callbacks.Callback):
    """Keeps each epoch's numbers, scores it on the dev set, stops early, and ends with the best epoch's weights.

    The dev scores join the epoch's logs as ``dev_NAME``, so that callbacks after this one see them.

    Args:
        history: is filled in.
        judge: scores the model as it is now; None: no dev set.
        main_metric: the score that decides; larger is better, the first of equals wins.
        patience: epochs without a better score after which training stops; 0: never.
    """

    def __init__(
        self, history: History, judge: Callable[[], dict[str, Any]] | None, main_metric: str, patience: int = 0
    ) -> None:
        super().__init__()
        self.history, self.judge, self.main_metric, self.patience = history, judge, main_metric, patience
        self.value = -math.inf
        self.weights: list[Any] | None = None

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        logs = {} if logs is None else logs
        if self.judge is not None:
            scores = self.judge()
            if self.main_metric not in scores:
                raise UserError(
                    f"dev scores: {self.main_metric!r}",
                    f"absent, there are {', '.join(scores)}",
                    "name one of these as the main metric",
                )
            logs.update({f"dev_{k}": v for k, v in _numbers(scores).items()})
            value = float(scores[self.main_metric])
            if value > self.value or self.weights is None:
                self.value = value if not math.isnan(value) else -math.inf
                self.weights = [w.numpy() for w in self.model.weights]
                self.history.best, self.history.best_epoch = scores, epoch + 1
            elif self.patience and epoch + 1 - self.history.best_epoch >= self.patience:
                self.model.stop_training = True
                self.history.stopped = (
                    f"no better dev {self.main_metric} than {self.value:.4f} "
                    f"(epoch {self.history.best_epoch}) in {self.patience} epochs"
                )
        for name, value in _numbers(logs).items():
            self.history.epochs.setdefault(name, []).append(value)

    def on_train_end(self, logs: dict | None = None) -> None:
        if self.weights is not None:
            for variable, value in zip(self.model.weights, self.weights, strict=True):
                variable.assign(value)
            self.weights = None


class Progress(keras.callbacks.Callback):
    """One line that moves, with the time left for the whole training, and one that stays for every epoch.

    Args:
        epochs, steps: epochs in all and steps in each.
        out: where to write; the moving line only shows on a terminal.
    """

    def __init__(self, epochs: int, steps: int, out: TextIO | None = None) -> None:
        super().__init__()
        self.epochs, self.steps, self.out = epochs, steps, out or sys.stdout
        self.moving, self.shown, self.width = self.out.isatty(), 0.0, 0

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.began, self.done = time.perf_counter(), 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.epoch, self.epoch_began = epoch, time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.done += 1
        now = time.perf_counter()
        if not self.moving or now - self.shown < 0.2:
            return
        self.shown = now
        left = (now - self.began) / self.done * (self.epochs * self.steps - self.done)
        numbers = ", ".join(f"{k} {v:.4f}" for k, v in _numbers(logs).items())
        self._write(
            f"epoch {self.epoch + 1}/{self.epochs}, step {batch + 1}/{self.steps}, {_clock(left)} left, {numbers}", "\r"
        )

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        now = time.perf_counter()
        left = (now - self.began) / max(self.done, 1) * (self.epochs * self.steps - self.done)
        numbers = ", ".join(f"{k} {v:.4f}" for k, v in _numbers(logs).items())
        rest = f"; {_clock(left)} left" if epoch + 1 < self.epochs and not self.model.stop_training else ""
        self._write(f"epoch {epoch + 1}/{self.epochs}: {numbers} ({_clock(now - self.epoch_began)}{rest})", "\n")

    def _write(self, line: str, end: str) -> None:
        padding = " " * max(0, self.width - len(line)) if self.moving else ""
        self.width = len(line) if end == "\r" else 0
        self.out.write(line + padding + end)
        self.out.flush()


class JsonLog(keras.callbacks.Callback):
    """A JSON object a line for every step and every epoch, appended to a file.

    A step: ``{"step", "epoch", "loss" (this batch's), "learning_rate", "seconds" (since training began),
    "examples_per_s", "tokens_per_s" (real tokens, this step)}``; an epoch: ``{"epoch", "steps", "seconds", and the
    epoch's losses, metrics and dev scores}``. NaN and infinity are written as null.

    Args:
        path: the file; its folder is made.
        plan: epoch (from 0) -> ``batching.Plan``, for the rates; without it they are left out.
    """

    def __init__(self, path: str | Path, plan: Callable[[int], Plan] | None = None) -> None:
        super().__init__()
        self.path, self.plan, self.step = Path(path), plan, 0

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.began = self.last = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.epoch, self.last = epoch, time.perf_counter()
        planned = self.plan(epoch) if self.plan else None
        self.sizes = None if planned is None else (planned.splits[1:] - planned.splits[:-1], planned.tokens)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        loss = getattr(self.model, "last_loss", None)
        loss = float((logs or {}).get("loss", math.nan)) if loss is None else loss  # reading it waits for the step
        now = time.perf_counter()
        self.step += 1
        line = {
            "step": self.step,
            "epoch": self.epoch + 1,
            "loss": loss,
            "learning_rate": self._rate(),
            "seconds": now - self.began,
        }
        if self.sizes is not None and batch < len(self.sizes[0]):
            examples, tokens = (int(s[batch]) for s in self.sizes)
            line |= {"examples_per_s": examples / (now - self.last), "tokens_per_s": tokens / (now - self.last)}
        self.last = now
        self._write(line)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._write(
            {"epoch": epoch + 1, "steps": self.step, "seconds": time.perf_counter() - self.began} | _numbers(logs)
        )

    def _rate(self) -> float:
        """The rate that this step was taken with: the schedule at the count before it."""
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        schedule = getattr(optimizer, "_learning_rate", None)
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return float(schedule(keras.ops.convert_to_tensor(optimizer.iterations) - 1))
        return float(keras.ops.convert_to_tensor(optimizer.learning_rate))

    def _write(self, line: dict) -> None:
        def plain(value: Any) -> Any:
            if isinstance(value, float):
                return None if not math.isfinite(value) else float(f"{value:.7g}")
            return value

        with self.path.open("a", encoding="utf-8") as file:  # anew each time: no line is lost, whatever happens next
            file.write(json.dumps({k: plain(v) for k, v in line.items()}) + "\n")


def tensorboard(log_dir: str | Path) -> keras.callbacks.Callback:
    """Keras' TensorBoard callback for ``log_dir``.

    Raises:
        UserError: the package tensorboard is not installed (TensorFlow no longer brings it).
    """
    if importlib.util.find_spec("tensorboard") is None:
        found = "are not written, the package tensorboard is not installed"
        raise UserError("TensorBoard files", found, "pip install 'keras_bert_lab[tensorboard]'")
    return keras.callbacks.TensorBoard(str(log_dir), write_graph=False)
