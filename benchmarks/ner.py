"""Named entities, side by side: ours and Hugging Face on torch. One run, one table.

    make bench                                              everything, hours on two cores
    python benchmarks/ner.py --seeds=1 --epochs=1 --limit=640 --contenders=ours,torch
    python benchmarks/ner.py --data=FOLDER --files=train.tsv,devel.tsv,test.tsv         other columns, e.g. NCBI disease

The data are CoNLL columns, by default CoNLL-2003; the last column holds the tags. Every contender starts from the same
pretrained MiniLM encoder (see sst2.py; it is uncased, which costs some points of F1 with names) and follows one recipe:
AdamW with decay 0.01 on kernels and embeddings, peak 1e-4, linear warm-up over 10 % of the steps and linear decay to 0,
gradient norm clipped at 1.0, dropout 0.1, batches of 32 sentences, 3 epochs, the last epoch's weights. A word's first
piece is labelled; sentences longer than 128 pieces are windows in ours and cut in theirs (their lost words are outside,
as everywhere). Theirs are padded to the longest row of a batch.

F1, precision and recall are those of entities, strict, computed by `tags.Scorer` from either's tags. `ours_free` is
ours without the scheme's rules in decoding, which is what theirs does; `ours_crf` has a CRF.

What is timed: *training* from lists of words to the trained weights, tokenization and graph tracing included, the
loading of the model not; *prediction* from lists of words to tags, the model warm, the best of three passes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sst2 import CLIP, DECAY, SHARED, WARM_UP, machine, minilm, set_threads

from keras_bert_lab import conll, tags
from keras_bert_lab.sentences import Sentence

BATCH, PEAK, LENGTH = 32, 1e-4, 128
CONTENDERS = {
    "ours": "keras_bert_lab, float32",
    "ours_free": "the same, tags chosen one by one",
    "ours_crf": "the same with a CRF",
    "ours_bfloat16": "keras_bert_lab, mixed_bfloat16",
    "torch": "Hugging Face `BertForTokenClassification`, torch, dynamic padding",
    "torch_bfloat16": "the same under torch's bfloat16 autocast",
}
PEERS = ("torch",)


@dataclass
class Contender:
    """A loaded model: ``train(sentences, epochs, seed)``, ``predict(sentences) -> tags of every sentence``."""

    train: Callable[[list[Sentence], int, int], None]
    predict: Callable[[list[Sentence]], list[list[str]]]


def read(path: Path, limit: int | None = None) -> list[Sentence]:
    sentences = list(conll.read(path))
    if limit:
        random.Random(0).shuffle(sentences)
        sentences = sentences[:limit]
    return sentences


# -- ours --------------------------------------------------------------------------------------------------------


def ours(weights: Path, seed: int, scheme: str, types: list[str], precision: str = "float32", **options) -> Contender:
    import keras_bert_lab as kbl
    from keras_bert_lab.heads.ner import Tagged

    task = kbl.Task.from_checkpoint(weights, head="ner", max_length=LENGTH, precision=precision, scheme=scheme,
                                    types=types, **options)  # fmt: skip
    _ = task.model

    def train(sentences, epochs, seed):
        recipe = {"epochs": epochs, "batch_size": BATCH, "learning_rate": PEAK, "seed": seed}
        task.fit([Tagged.from_sentence(s) for s in sentences], dev_fraction=0.0, verbose=0, **recipe)

    def predict(sentences):
        return [answer["tags"] for answer in task.predict([Tagged.from_sentence(s) for s in sentences])]

    return Contender(train, predict)


# -- Hugging Face on torch ---------------------------------------------------------------------------------------


def hugging_face(weights: Path, seed: int, scheme: str, types: list[str], bfloat16: bool = False) -> Contender:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    names = tags.labels(types, scheme)
    number = {name: i for i, name in enumerate(names)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.BertForTokenClassification.from_pretrained(weights, num_labels=len(names))

    def tokenized(sentences):
        return tokenizer([list(s.tokens) for s in sentences], is_split_into_words=True, truncation=True,
                         max_length=LENGTH)  # fmt: skip

    def firsts(ids, row):
        """(place of the first piece, word) of every word that has one."""
        words = ids.word_ids(row)
        return [(i, w) for i, w in enumerate(words) if w is not None and (i == 0 or words[i - 1] != w)]

    def batches(ids, order):
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            part = {name: [values[row] for row in rows] for name, values in ids.items()}
            yield rows, tokenizer.pad(part, return_tensors="pt")

    def train(sentences, epochs, seed):
        torch.manual_seed(seed)
        rng = random.Random(seed)
        plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
        others = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
        groups = [{"params": others, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=PEAK, eps=1e-6, fused=True)
        steps = epochs * -(-len(sentences) // BATCH)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARM_UP * steps), steps)
        model.train()
        ids = tokenized(sentences)
        gold = []
        for row, sentence in enumerate(sentences):
            labels = [-100] * len(ids["input_ids"][row])
            for place, word in firsts(ids, row):
                labels[place] = number[sentence.tags[word]]
            gold.append(labels)
        for _ in range(epochs):
            order = list(range(len(sentences)))
            rng.shuffle(order)
            for rows, inputs in batches(ids, order):
                width = inputs["input_ids"].shape[1]
                labels = torch.tensor([gold[row] + [-100] * (width - len(gold[row])) for row in rows])
                with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                    loss = model(**inputs, labels=labels).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)

    def predict(sentences):
        model.eval()
        found = [["O"] * len(s.tokens) for s in sentences]
        ids = tokenized(sentences)
        order = sorted(range(len(sentences)), key=lambda row: len(ids["input_ids"][row]))
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            for rows, inputs in batches(ids, order):
                for row, best in zip(rows, model(**inputs).logits.argmax(-1).tolist(), strict=True):
                    for place, word in firsts(ids, row):
                        found[row][word] = names[best[place]]
        return found

    return Contender(train, predict)


LOADERS: dict[str, Callable[..., Contender]] = {
    "ours": ours,
    "ours_free": lambda *given: ours(*given, constrained=False),
    "ours_crf": lambda *given: ours(*given, crf=True),
    "ours_bfloat16": lambda *given: ours(*given, precision="mixed_bfloat16"),
    "torch": hugging_face,
    "torch_bfloat16": lambda *given: hugging_face(*given, bfloat16=True),
}


# -- measuring ---------------------------------------------------------------------------------------------------


def measure(name: str, args: argparse.Namespace) -> dict:
    """One contender, in this process: a dict of what was measured."""
    set_threads(name, args.threads)
    train_file, _, test_file = (args.data / file for file in args.files)
    train, test = read(train_file, args.limit), read(test_file, args.limit)
    scheme = tags.detect(s.tags for s in train)
    types = sorted({kind for s in train for prefix, kind in map(tags.split, s.tags) if prefix != tags.OUTSIDE})
    found: dict = {"name": name, "scheme": scheme, "sentences": [len(train), len(test)]}
    found |= {key: [] for key in ("f1", "precision", "recall", "train_seconds", "train_rate")}
    for seed in args.seeds:
        contender = LOADERS[name](args.weights, seed, scheme, types)
        began = time.perf_counter()
        contender.train(train, args.epochs, seed)
        found["train_seconds"].append(time.perf_counter() - began)
        found["train_rate"].append(args.epochs * len(train) / found["train_seconds"][-1])
        scorer = tags.Scorer(scheme, "strict")
        for sentence, said in zip(test, contender.predict(test), strict=True):
            scorer.add(sentence.tags, said)
        result = scorer.result()
        for key in ("f1", "precision", "recall"):
            found[key].append(100 * result[key])
        print(f"  {name}, seed {seed}: {found['train_rate'][-1]:.1f} sentences/s, F1 {found['f1'][-1]:.2f}", flush=True)
    passes = []
    for _ in range(3):
        began = time.perf_counter()
        contender.predict(test)
        passes.append(len(test) / (time.perf_counter() - began))
    return found | {"predict_rate": max(passes)}


def table(results: list[dict], args: argparse.Namespace) -> str:
    """The Markdown table, with ratios to the fastest float32 peer of this very run."""
    peers = [result for result in results if result["name"] in PEERS]

    def rate(result, key):
        return statistics.median(result[key]) if isinstance(result[key], list) else result[key]

    best = {key: max((rate(p, key) for p in peers), default=None) for key in ("train_rate", "predict_rate")}
    lines = [
        f"| | test F1, mean (least to most of {len(args.seeds)} seeds) | precision | recall | training, sentences/s "
        "| ratio | prediction, sentences/s | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        f1 = result["f1"]
        cells = [CONTENDERS[result["name"]], f"{statistics.mean(f1):.2f} ({min(f1):.2f} to {max(f1):.2f})"]
        cells += [f"{statistics.mean(result[key]):.2f}" for key in ("precision", "recall")]
        for key in ("train_rate", "predict_rate"):
            value = rate(result, key)
            cells += [f"{value:.{1 if value < 20 else 0}f}", f"{value / best[key]:.2f}" if best[key] else ""]
        lines.append("| " + " | ".join(cells) + " |")
    versions = {}
    for name in ("tensorflow", "keras", "torch", "transformers", "tokenizers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    train, test = results[0]["sentences"]
    notes = [
        f"{args.data.name}: {train} sentences to train on, {test} to test on, {results[0]['scheme']}, strict; "
        f"{args.epochs} epochs, batch {BATCH}, peak {PEAK:g}, seeds {', '.join(map(str, args.seeds))}.",
        f"{machine(args.threads)}; Python {platform.python_version()}, "
        + ", ".join(f"{n} {v}" for n, v in versions.items()) + ".",
    ]  # fmt: skip
    return "\n".join([*lines, "", *notes])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, default=SHARED / "data" / "conll2003", help="a directory of CoNLL columns")
    flags.add_argument("--files", default="train.txt,valid.txt,test.txt", help="training, dev and test file in it")
    flags.add_argument("--weights", type=Path, help="a checkpoint's directory; default: MiniLM from its package")
    flags.add_argument("--contenders", default="ours,ours_free,ours_crf,ours_bfloat16,torch",
                       help=f"comma-separated, of {', '.join(CONTENDERS)}")  # fmt: skip
    flags.add_argument("--seeds", default="1,2,3", help="comma-separated")
    flags.add_argument("--epochs", type=int, default=3)
    flags.add_argument("--limit", type=int, help="use only so many training and test sentences")
    flags.add_argument("--threads", type=int, default=os.cpu_count())
    flags.add_argument("--json", type=Path, help="write everything measured to this file")
    flags.add_argument("--one", help=argparse.SUPPRESS)  # run this contender here and write --json
    args = flags.parse_args()
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    args.files = args.files.split(",")
    args.weights = args.weights or minilm()
    if args.one:
        args.json.write_text(json.dumps(measure(args.one, args)))
        return
    results = []
    for name in args.contenders.split(","):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            given = [f"--one={name}", f"--json={file.name}", f"--data={args.data}", f"--weights={args.weights}",
                     f"--files={','.join(args.files)}", f"--seeds={','.join(map(str, args.seeds))}",
                     f"--epochs={args.epochs}", f"--threads={args.threads}"]  # fmt: skip
            given += [f"--limit={args.limit}"] if args.limit else []
            quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
            subprocess.run([sys.executable, __file__, *given], check=True, env=quiet)
            results.append(json.loads(Path(file.name).read_text()))
    print(table(results, args))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
