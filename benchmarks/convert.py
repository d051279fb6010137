"""How long and how much memory converting takes, at the size of BERT-base (fabricated weights, 110 M parameters).

With and without the certificate (``verify``), which runs both networks and needs TensorFlow.

    python benchmarks/convert.py [DIRECTORY]

Each conversion runs in a process of its own; its peak resident memory counts everything, Python
included. Beside it: processes that only import what converting and verifying need, and a plain copy of the file.
About 1.5 GB of disk are used below DIRECTORY (default: a temporary one) and freed again.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

CHAIN = (("keras_bert_lab", "ours"), ("huggingface", "hf"), ("bert", "tf1"))


def fabricate(folder: Path) -> None:
    """Random weights under the names and shapes of uncased_L-12_H-768_A-12, as TF1 stores them."""
    import numpy as np

    from keras_bert_lab import bundles, names
    from keras_bert_lab.config import BertConfig

    config, random = BertConfig(vocab_size=30522), np.random.default_rng(0)
    folder.mkdir(parents=True)
    (folder / "bert_config.json").write_text(json.dumps(config.to_dict("bert")))
    theirs = names.foreign_names("bert", 12)
    shapes = {theirs[name]: s for name, s in names.shapes(config).items() if not name.startswith("cls/squad/")}
    tensors = {name: (shape, lambda s=shape: random.random(s, np.float32) - 0.5) for name, shape in shapes.items()}
    bundles.write(folder / "bert_model.ckpt", tensors)


def child(*arguments: str) -> tuple[float, int]:
    """Seconds and peak resident bytes of this script run with these arguments."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    seconds, peak = done.stdout.split()[-2:]
    return float(seconds), int(peak)


def weights(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir() if ".data-" in p.name or p.suffix == ".safetensors")


def main() -> None:
    base = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    work = base / "convert-benchmark"
    try:
        child("fabricate", str(work / "src"))
        size = weights(work / "src")
        print(f"weights: {size / 1e6:.0f} MB")
        print(f"{'':34} {'seconds':>8} {'peak MB':>8} {'x file':>7}")

        def line(name: str, seconds: float, peak: int) -> None:
            print(f"{name:34} {seconds:8.2f} {peak / 1e6:8.0f} {peak / size:7.2f}")

        _, idle = child("idle", str(work / "src"))
        line("imports only", 0.0, idle)
        _, idle = child("tensorflow", str(work / "src"))
        line("imports only, with TensorFlow", 0.0, idle)
        at = work / "src"
        for to, name in CHAIN:
            line(f"{at.name} -> {name} ({to})", *child("convert", str(at), str(work / name), to))
            shutil.rmtree(work / name)
            line("  with verify", *child("verify", str(at), str(work / name), to))
            if at.name != "src":
                shutil.rmtree(at)
            at = work / name
        line("src -> keras_nlp, with verify", *child("verify", str(work / "src"), str(work / "nlp"), "keras_nlp"))
        start = time.perf_counter()
        for path in (work / "src").iterdir():
            with open(path, "rb") as there, open(work / f"copy-{path.name}", "wb") as here:
                shutil.copyfileobj(there, here, 1 << 20)
                os.fsync(here.fileno())
        print(f"{'plain copy, flushed to disk':34} {time.perf_counter() - start:8.2f}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if len(sys.argv) < 2:
            base.rmdir()


def peak() -> int:
    """Most bytes that this process has held. (Linux' VmHWM: ru_maxrss counts the parent that it was forked from.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run(task: str, *arguments: str) -> None:
    from keras_bert_lab.checkpoint import convert, open_checkpoint

    start = time.perf_counter()
    if task == "fabricate":
        fabricate(Path(arguments[0]))
    elif task in ("idle", "tensorflow"):
        open_checkpoint(arguments[0])
        if task == "tensorflow":
            from keras_bert_lab import encoder  # noqa: F401
    else:
        convert(*arguments, verify=task == "verify")
    print(time.perf_counter() - start, peak())


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("fabricate", "idle", "tensorflow", "convert", "verify"):
        run(*sys.argv[1:])
    else:
        main()
