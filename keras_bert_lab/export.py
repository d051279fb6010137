"""The task for serving: a SavedModel that takes raw text, proved equal to the task before it is there.

    export/  saved_model/      signatures serving_default (strings) and ids; needs tensorflow and tensorflow_text
             saved_model_ids/  signature ids only; needs nothing but tensorflow
             proof.json        largest difference to the task's own answers, as another process computed them
             README.md         what it needs and how to load it
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from . import checkpoint
from .errors import UserError
from .files import check_destination, new_directory
from .serving import PythonRun, Run
from .task import Task

FORMATS = ("saved_model",)
# How far an export may be from the task: largest difference of a float output, and the share of other values (labels,
# tokens) that may be others in half precision, where two of nearly equal probability can change places.
# The graph fuses products with what follows and so rounds in fewer places than Keras does op by op. Measured on
# probabilities, rows of 2 to 512 pieces, 1 to 8 a batch (neither makes it grow), float16 only to 64: a fine-tuned
# 6-layer MiniLM 9e-8 in float32, 6e-4 in bfloat16, 6e-5 in float16; with a classifier drawn from N(0, 1), where
# training begins at 0.02, on MiniLM and tiny models, at most 1.3e-6, 1.4e-2, 1.3e-3; 6 of 1956 labels were others in
# bfloat16. The limits of half precision are five units in its last place, 2^-8 and 2^-11.
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 2e-2, "mixed_float16": 2.5e-3}
TIES = 0.02

# Texts that break careless pipelines; every export answers them as the task does.
NASTY = (
    "", " ", "a", "Hello, world!", "naïve café Größe", "cafe\u0301 İstanbul ΟΔΟΣ", "中国的首都是北京。",
    "한국어 텍스트",
    "I \u2764\ufe0f it \U0001f600\U0001f1e9\U0001f1ea", "a [SEP] b [MASK] [CLS]", "tab\tline\nreturn\r end",
    "\ufeffbom \u200bzero\u200dwidth",
    "line\u2028separator\u2029paragraph", "nul\x00 and \x07bell \ufffd", "مرحبا שלום नमस्ते", "x" * 200, "x" * 201,
    "https://example.com/a/very/long/path?with=query&and=more#" + "z" * 60, "word " * 700, "\U000e0001\U0010ffff",
    "½ ⅷ ﬁ ＦＵＬＬ，",
)


def export(task: Task, path, format: str = "saved_model", *, texts: Sequence | None = None, overwrite: bool = False,
           tolerance: float | None = None) -> dict[str, Any]:
    """Writes ``task`` at ``path`` for serving and returns the proof that it gives the task's answers.

    The signature ``serving_default`` takes string tensors [batch] (any batch, 0 included) named like the head's
    texts and returns the head's answers; ``ids`` takes int32 [batch, length] ``input_ids``, ``attention_mask`` and
    ``token_type_ids``. The vocabulary is inside. After writing, a new process that imports only TensorFlow and
    tensorflow_text answers ``texts`` and nasty ones; where any float differs by more than ``tolerance`` from what
    the Python tokenizer and the Keras model give, or any other value at all (in half precision: more than ``TIES``
    of them), nothing is left behind.

    Args:
        task: a trained task.
        path: the directory to write.
        format: "saved_model".
        texts: texts (or pairs) to prove it on, besides the nasty ones.
        overwrite: replace what is there.
        tolerance: largest difference, absolute or as a share of an output's largest value, whichever is more (a
            head's numbers may be in any unit); default 1e-5 in float32, see ``TOLERANCE`` for half precision.

    Returns:
        The content of ``proof.json``.

    Raises:
        UserError: unknown format, tensorflow_text missing, or the proof failed.
    """
    if format not in FORMATS:
        raise UserError("format", f"{format!r} is unknown", f"choose from {', '.join(FORMATS)}")
    check_destination(path, overwrite)
    if task.text.graph is None:
        raise UserError("tensorflow_text", "is not installed here, and text cannot go into the graph without it",
                        "export where it has wheels: Linux on x86_64 or aarch64, macOS on Apple silicon")
    tolerance = TOLERANCE[task.precision] if tolerance is None else tolerance
    inputs = prove_on(task, texts or ())
    with new_directory(path, overwrite) as fresh:
        write_saved_model(task, fresh / "saved_model", fresh / "saved_model_ids")
        proof = prove(task, fresh, inputs, tolerance)
        (fresh / "proof.json").write_text(json.dumps(proof, indent=1) + "\n", "utf-8")
        (fresh / "README.md").write_text(_readme(task, Path(path).name, proof), "utf-8")
    return proof


# -- writing -----------------------------------------------------------------------------------------------------


class _Served(tf.Module):
    """What a SavedModel holds: the model's variables, each once. (The tokenizer's tables are constants.)"""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.weights = [v.value for v in checkpoint.variables(task.model)]


def write_saved_model(task: Task, with_text: Path, with_ids: Path) -> None:
    """Writes both SavedModels; on disk they share the bytes of the weights where the file system can."""
    from .graph_text import GraphTokenizer

    head, text = task.head, task.text

    @tf.function(input_signature=task.forward.input_signature)
    def ids(x):
        return head.answers(head.infer(task.model, _checked(task, x)))

    names = head.text_inputs

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name=name) for name in names])
    def serving_default(*texts):
        # Made inside the trace, its tables are constants of this graph, not objects that the checkpoint must know:
        # then both SavedModels have the same variables file.
        run = Run(GraphTokenizer(text.tokenizer), _caller(task), text.max_length, text.truncation)
        return head.serve(dict(zip(names, texts, strict=True)), run)

    tf.saved_model.save(_Served(task), str(with_ids), signatures={"serving_default": ids, "ids": ids})
    tf.saved_model.save(_Served(task), str(with_text), signatures={"serving_default": serving_default, "ids": ids})
    for file in (with_ids / "variables").iterdir():
        twin = with_text / "variables" / file.name
        if filecmp.cmp(file, twin, shallow=False):
            with contextlib.suppress(OSError):  # a file system without hard links keeps two copies
                os.link(file, f"{twin}.link")
                os.replace(f"{twin}.link", twin)


def _caller(task: Task) -> Callable[[dict], dict]:
    return lambda x: task.head.infer(task.model, x)


def _checked(task: Task, x: dict) -> dict:
    """In the graph: refuses ids and lengths that the tables do not have (a gather may return anything for them)."""
    config = task.config
    ids, types = (tf.concat([[0], tf.reshape(x[name], [-1])], 0) for name in ("input_ids", "token_type_ids"))
    limits = [
        (tf.shape(x["input_ids"])[1], config.max_position_embeddings + 1, "length of input_ids"),
        (tf.reduce_max(ids), config.vocab_size, "largest of input_ids"),
        (-tf.reduce_min(ids), 1, "minus the smallest of input_ids"),
        (tf.reduce_max(types), config.type_vocab_size, "largest of token_type_ids"),
    ]
    checks = [tf.debugging.assert_less(seen, most, f"{what} must be less than {most}") for seen, most, what in limits]
    with tf.control_dependencies([c for c in checks if c is not None]):
        return {name: tf.identity(value) for name, value in x.items()}


def text_ops(saved_model: Path) -> list[str]:
    """The ops of a SavedModel that TensorFlow alone does not have, sorted: what a server must register."""
    from tensorflow.core.protobuf import saved_model_pb2

    proto = saved_model_pb2.SavedModel.FromString((saved_model / "saved_model.pb").read_bytes())
    graphs = [meta.graph_def for meta in proto.meta_graphs]
    nodes = [n for g in graphs for f in (g, *g.library.function) for n in (f.node if f is g else f.node_def)]
    return sorted({n.op for n in nodes if not n.op.startswith("_") and not hasattr(tf.raw_ops, n.op)})


# -- proving -----------------------------------------------------------------------------------------------------


def prove_on(task: Task, texts: Sequence) -> list[list[str]]:
    """Columns of strings, one a text input: the given texts (at most 256) and the nasty ones."""
    examples = list(task.examples(list(texts)[:256], gold=False))
    columns = [[e.text for e in examples] + list(NASTY)]
    if len(task.head.text_inputs) > 1:
        columns.append([e.pair or "" for e in examples] + list(NASTY[::-1]))
    return columns


def expected(task: Task, columns: list[list[str]]) -> dict[str, np.ndarray]:
    """What the task's own route gives: the Python tokenizer and the Keras model, one window at a time padded anew."""

    text = task.text
    run = PythonRun(text.tokenizer, _caller(task), text.max_length, text.truncation)
    texts = {name: tf.constant(column) for name, column in zip(task.head.text_inputs, columns, strict=True)}
    return {name: value.numpy() for name, value in task.head.serve(texts, run).items()}


# Run by a new process that has never heard of this package.
_PROVE = """
import json, sys
import numpy as np
import tensorflow as tf
folder, job, out = sys.argv[1:]
signature = job.split("/")[-1]
if signature == "text":
    import tensorflow_text
with open(folder + "/inputs.json") as f:
    columns = json.load(f)
model = tf.saved_model.load(columns["model"][signature])
call = model.signatures[columns["signature"][signature]]
answers = {}
for batch, feed in enumerate(columns["feeds"][signature]):
    dtype, shape = tf.string if signature == "text" else tf.int32, columns["shapes"][signature][batch]
    given = {k: tf.constant(v, dtype, shape=shape) for k, v in feed.items()}
    for name, value in call(**given).items():
        answers[f"{batch}:{name}"] = value.numpy()
loaded = [m for m in ("keras_bert_lab", "keras_nlp", "tensorflow_text") if m in sys.modules]
strings = {k: [v.shape, [x.decode() for x in v.ravel()]] for k, v in answers.items() if v.dtype == object}
np.savez(out, **{k: v for k, v in answers.items() if v.dtype != object})
print(json.dumps({"loaded": loaded, "strings": strings}))
"""


def prove(task: Task, folder: Path, columns: list[list[str]], tolerance: float) -> dict[str, Any]:
    """Asks both SavedModels in a new process and compares with the task; raises ``UserError`` where they differ."""
    began = time.perf_counter()
    rows, folder = len(columns[0]), folder.resolve()  # the new process stands elsewhere
    cuts = [slice(0, 0), slice(0, 1), slice(1, 4), slice(4, rows)]  # batches of 0, 1, 3 and the rest
    names = task.head.text_inputs
    windows = task.text.tokenizer.windows(*columns, max_length=task.text.max_length, truncation=task.text.truncation)
    ids = [{k: v.tolist() for k, v in windows.pad(np.arange(len(windows))[cut]).items()} for cut in cuts[1:]]
    job = {
        "model": {"text": str(folder / "saved_model"), "ids": str(folder / "saved_model_ids")},
        "signature": {"text": "serving_default", "ids": "ids"},
        "feeds": {"text": [dict(zip(names, [c[cut] for c in columns], strict=True)) for cut in cuts], "ids": ids},
        "shapes": {"text": [[len(columns[0][cut])] for cut in cuts], 
                   "ids": [list(np.shape(b["input_ids"])) for b in ids]},
    }
    fed = [{k: tf.constant(v, tf.int32) for k, v in b.items()} for b in ids]
    right = {"text": [expected(task, [c[cut] for c in columns]) for cut in cuts[1:]],
             "ids": [_numpy(task.head.answers(task.head.infer(task.model, x))) for x in fed]}
    with ThreadPoolExecutor(2) as pool:  # both processes spend their time importing TensorFlow
        said = dict(zip(right, pool.map(lambda signature: _ask(job, signature), right), strict=True))
    said["text"] = said["text"][1:]  # the batch of 0 need only answer
    differences = compare(said, right, tolerance, 0 if task.precision == "float32" else TIES)
    return {"format": "saved_model", "rows": rows, "batches": [c.stop - c.start for c in cuts], "tolerance": tolerance,
            "differences": differences, "text_ops": text_ops(folder / "saved_model"),
            "seconds": round(time.perf_counter() - began, 1), "tensorflow": tf.__version__}


def compare(
    said: dict[str, list[dict[str, np.ndarray]]],
    right: dict[str, list[dict[str, np.ndarray]]],
    tolerance: float,
    ties: float = 0,
) -> dict[str, float]:
    """Compares answers, by signature and batch, output by output; ``UserError`` where they differ too much.

    Args:
        said, right: what the export answered, and what it should have.
        tolerance: see `export`.
        ties: share of the values of an output that are no floats (labels, strings, offsets) which may be others,
            rounded up.

    Returns:
        "signature:output" -> the largest difference of floats, the number of other values that differ.
    """
    differences: dict[str, float] = {}
    counts: dict[str, tuple[int, int]] = {}
    for signature, batches in right.items():
        for batch, (one, other) in enumerate(zip(said[signature], batches, strict=True)):
            for name, value in other.items():
                where, found = f"{signature}:{name}", one.get(name)
                if found is None or found.shape != value.shape:
                    shape = None if found is None else found.shape
                    raise UserError(where, f"batch {batch} has shape {shape}, the task {value.shape}",
                                    "nothing was exported; report this")
                if value.dtype.kind != "f":
                    unlike, values = counts.get(where, (0, 0))
                    counts[where] = unlike + int(np.sum(found != value)), values + value.size
                    continue
                gap = float(np.max(np.abs(found - value), initial=0.0))
                limit = tolerance * max(1.0, float(np.abs(value).max(initial=0)))
                if not gap <= limit:
                    raise UserError(where, f"differs from the task by {gap:.3g} (allowed {limit:.3g})",
                                    "nothing was exported; report this with the text")
                differences[where] = max(gap, differences.get(where, 0.0))
    for where, (unlike, values) in counts.items():
        if unlike > math.ceil(ties * values):
            raise UserError(where, f"{unlike} of {values} values differ from the task's "
                            f"(allowed {math.ceil(ties * values)})", "nothing was exported; report this with the text")
        differences[where] = unlike
    return differences


def _ask(job: dict, signature: str) -> list[dict[str, np.ndarray]]:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "inputs.json").write_text(json.dumps(job), "utf-8")
        out = os.path.join(place, "out.npz")
        done = subprocess.run([sys.executable, "-c", _PROVE, place, signature, out], capture_output=True, text=True,
                              cwd=place, check=False, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})
        if done.returncode:
            raise UserError(f"the exported {signature} model",
                            f"does not run in a new process: {done.stderr.strip()[-600:]}",
                            "nothing was exported; report this")
        said = json.loads(done.stdout.strip().splitlines()[-1])
        forbidden = {"keras_bert_lab", "keras_nlp"} | ({"tensorflow_text"} if signature == "ids" else set())
        if loaded := sorted(forbidden & set(said["loaded"])):
            raise UserError(f"the exported {signature} model", f"loaded {loaded}", "report this")
        answers: list[dict[str, np.ndarray]] = [{} for _ in job["feeds"][signature]]
        with np.load(out) as numbers:
            for key in numbers.files:
                batch, name = key.split(":", 1)
                answers[int(batch)][name] = numbers[key]
        for key, (shape, values) in said["strings"].items():
            batch, name = key.split(":", 1)
            answers[int(batch)][name] = np.array([v.encode() for v in values], object).reshape(shape)
        return answers


def _numpy(tensors: dict) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in tensors.items()}


def _readme(task: Task, name: str, proof: dict) -> str:
    names = task.head.text_inputs
    call = ", ".join(f'{n}=tf.constant(["a text"])' for n in names)
    ops = ", ".join(proof["text_ops"]) or "none"
    return f"""# {name}

A SavedModel of a {task.name} task, proved equal to it: see `proof.json` (largest difference of each output).
Serving needs `tensorflow` {proof['tensorflow']} or newer of the same minor version and the matching `tensorflow_text`
(text ops: {ops}). It does not need keras_bert_lab, and no file outside this folder.

```python
import tensorflow as tf, tensorflow_text
model = tf.saved_model.load("saved_model")
print(model.signatures["serving_default"]({call}))
```

Where there is no `tensorflow_text`, load `saved_model_ids` (only `tensorflow`) and feed its signature `ids` with int32
[batch, length] `input_ids`, `attention_mask` and `token_type_ids`, at most {task.config.max_position_embeddings} long.
"""
