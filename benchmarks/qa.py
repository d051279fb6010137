"""Extractive question answering, side by side: ours and Hugging Face on torch. One run, one table.

    make bench                                                            everything, hours on two cores
    python benchmarks/qa.py --seeds=1 --epochs=1 --limit=256 --eval_limit=200 --contenders=ours,torch

The data at hand are 11 articles of SQuAD 2.0's dev set. The last three are held out (1,143 questions); training is on
the other eight but for the paragraphs that are also in XQuAD (English), on which the models are asked as well: there
every question has an answer, though the model may say that it has none. It is a fiftieth of SQuAD's training set: the
figures compare programs, they are not what BERT can do.

Every contender starts from the same pretrained MiniLM encoder (see sst2.py) and follows one recipe: windows of 384
pieces, one every 128, questions cut to 64; AdamW with decay 0.01 on kernels and embeddings, peak 1e-4, linear warm-up
over 10 % of the steps and linear decay to 0, gradient norm clipped at 1.0, dropout as in the checkpoint, batches of 16
rows, 3 epochs, the last epoch's weights; answers of at most 30 pieces, no answer if [CLS] scores higher than the best
span. The windows are the same rows. Theirs are padded to the longest row of a batch, too, and answers are found as in
the library's example for question answering. EM and F1 are the official script's, computed by `squad_scores` from
either's answers.

What is timed: *training* from questions and contexts as strings to the trained weights; *prediction* from strings to
answers, the model warm; both include everything but the loading of the model.
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
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sst2 import CLIP, DECAY, SHARED, WARM_UP, machine, minilm, set_threads

from keras_bert_lab import squad, squad_scores
from keras_bert_lab.squad import Question

BATCH, PEAK, LENGTH, STRIDE, QUERY, ANSWER, N_BEST = 16, 1e-4, 384, 128, 64, 30, 20
HELD_OUT = 3  # articles
CONTENDERS = {
    "ours": "keras_bert_lab, float32",
    "ours_bfloat16": "keras_bert_lab, mixed_bfloat16",
    "torch": "Hugging Face `BertForQuestionAnswering`, torch, dynamic padding",
    "torch_bfloat16": "the same under torch's bfloat16 autocast",
}
PEERS = ("torch",)


@dataclass
class Data:
    """Questions to learn from, of held-out articles, and of XQuAD."""

    train: list[Question]
    held: list[Question]
    xquad: list[Question]

    @classmethod
    def read(cls, folder: Path, limit: int | None, eval_limit: int | None) -> Data:
        path = folder / "squad2_dev_visible_articles.json"
        asked, xquad = list(squad.read(path)), list(squad.read(folder / "xquad.en.json"))
        articles = json.loads(path.read_text("utf-8"))["data"]
        last = {p["context"] for article in articles[-HELD_OUT:] for p in article["paragraphs"]}
        known = {q.context for q in xquad}
        train = [q for q in asked if q.context not in last | known]
        held = [q for q in asked if q.context in last]
        chance = random.Random(0)
        for part, most in ((train, limit), (held, eval_limit), (xquad, eval_limit)):
            if most:
                chance.shuffle(part)
                del part[most:]
        return cls(train, held, xquad)


@dataclass
class Contender:
    """A loaded model: ``train(questions, epochs, seed)``, ``predict(questions) -> {id: answer}``."""

    train: Callable[[list[Question], int, int], None]
    predict: Callable[[list[Question]], dict[str, str]]


# -- ours --------------------------------------------------------------------------------------------------------


def ours(weights: Path, seed: int, precision: str = "float32") -> Contender:
    import keras_bert_lab as kbl
    from keras_bert_lab.head import Example

    task = kbl.Task.from_checkpoint(
        weights, head="qa_span", max_length=LENGTH, precision=precision, doc_stride=STRIDE, max_query_length=QUERY,
        max_answer_length=ANSWER, n_best=N_BEST, impossible=True)  # fmt: skip
    _ = task.model

    def examples(questions):
        return [Example(q.question, q.context, q.answers, q.where, fields={"id": q.id}) for q in questions]

    def train(questions, epochs, seed):
        recipe = {"epochs": epochs, "batch_size": BATCH, "learning_rate": PEAK, "seed": seed}
        task.fit(examples(questions), dev_fraction=0.0, verbose=0, **recipe)

    return Contender(train, lambda asked: {a["id"]: a["text"] for a in task.predict(examples(asked))})


# -- Hugging Face on torch ---------------------------------------------------------------------------------------


def hugging_face(weights: Path, seed: int, bfloat16: bool = False) -> Contender:
    import numpy as np
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    model = transformers.BertForQuestionAnswering.from_pretrained(weights)

    def rows(questions):
        """All windows: (inputs, offsets, which pieces are context, number of the question). Their stride overlaps."""
        asked = [tokenizer.encode(q.question, add_special_tokens=False)[:QUERY] for q in questions]
        by_length = defaultdict(list)
        for number, ids in enumerate(asked):
            by_length[len(ids)].append(number)
        found = []
        for length, numbers in by_length.items():
            room = LENGTH - length - 3
            part = tokenizer([tokenizer.decode(asked[n]) if len(asked[n]) == QUERY else questions[n].question
                              for n in numbers], [questions[n].context for n in numbers], truncation="only_second",
                             max_length=LENGTH, stride=max(room - STRIDE, 0), return_overflowing_tokens=True,
                             return_offsets_mapping=True)  # fmt: skip
            for i, which in enumerate(part["overflow_to_sample_mapping"]):
                context = [kind == 1 for kind in part.sequence_ids(i)]
                row = {name: part[name][i] for name in ("input_ids", "token_type_ids", "attention_mask")}
                found.append((row, part["offset_mapping"][i], context, numbers[which]))
        return found

    def target(row, question):
        _, offsets, context, _ = row
        if question.span is None:
            return 0, 0
        first, last = question.span
        inside = [i for i, real in enumerate(context) if real]
        if not inside or offsets[inside[0]][0] > first or offsets[inside[-1]][1] < last:
            return 0, 0
        start = max(i for i in inside if offsets[i][0] <= first)
        return start, max(start, min(i for i in inside if offsets[i][1] >= last))

    def padded(part):
        return tokenizer.pad([row for row, *_ in part], return_tensors="pt")

    def train(questions, epochs, seed):
        torch.manual_seed(seed)
        rng, cut = random.Random(seed), rows(questions)
        gold = torch.tensor([target(row, questions[row[3]]) for row in cut])
        plain = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
        others = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
        groups = [{"params": others, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=PEAK, eps=1e-6, fused=True)
        steps = epochs * -(-len(cut) // BATCH)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARM_UP * steps), steps)
        model.train()
        for _ in range(epochs):
            order = list(range(len(cut)))
            rng.shuffle(order)
            for at in range(0, len(order), BATCH):
                which = order[at : at + BATCH]
                with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                    loss = model(**padded([cut[i] for i in which]), start_positions=gold[which, 0],
                                 end_positions=gold[which, 1]).loss  # fmt: skip
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)

    def predict(questions):
        model.eval()
        cut = sorted(rows(questions), key=lambda row: len(row[0]["input_ids"]))
        best, null = {}, {}
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            for at in range(0, len(cut), BATCH):
                part = cut[at : at + BATCH]
                out = model(**padded(part))
                logits = zip(part, out.start_logits.float().numpy(), out.end_logits.float().numpy(), strict=True)
                for (_, offsets, context, n), start, end in logits:
                    null[n] = min(null.get(n, np.inf), start[0] + end[0])
                    for s in np.argsort(start)[-1 : -N_BEST - 1 : -1]:
                        for e in np.argsort(end)[-1 : -N_BEST - 1 : -1]:
                            if s <= e < min(s + ANSWER, len(context)) and context[s] and context[e]:
                                score = start[s] + end[e]
                                if score > best.get(n, (-np.inf,))[0]:
                                    best[n] = score, offsets[s][0], offsets[e][1]
        found = {}
        for n, q in enumerate(questions):
            score, first, last = best.get(n, (-np.inf, 0, 0))
            found[q.id] = "" if null[n] > score else q.context[first:last]
        return found

    return Contender(train, predict)


LOADERS: dict[str, Callable[[Path, int], Contender]] = {
    "ours": ours,
    "ours_bfloat16": lambda weights, seed: ours(weights, seed, "mixed_bfloat16"),
    "torch": hugging_face,
    "torch_bfloat16": lambda weights, seed: hugging_face(weights, seed, True),
}


# -- measuring ---------------------------------------------------------------------------------------------------


def measure(name: str, args: argparse.Namespace) -> dict:
    """One contender with one seed, in this process: a dict of what was measured."""
    set_threads(name, args.threads)
    data, seed = Data.read(args.data, args.limit, args.eval_limit), args.seeds[0]
    contender = LOADERS[name](args.weights, seed)
    began = time.perf_counter()
    contender.train(data.train, args.epochs, seed)
    found: dict = {"name": name, "seed": seed, "questions": len(data.train), "asked": len(data.held)}
    found["train_rate"] = args.epochs * len(data.train) / (time.perf_counter() - began)
    contender.predict(data.held[:32])  # warm
    began = time.perf_counter()
    answers = contender.predict(data.held)
    found["predict_rate"] = len(data.held) / (time.perf_counter() - began)
    for part, asked, said in (("held", data.held, answers), ("xquad", data.xquad, contender.predict(data.xquad))):
        scores = squad_scores.evaluate(asked, said, "squad2")
        found[part] = scores["exact"], scores["f1"]
    shown = ", ".join(f"{part} EM {found[part][0]:.2f} F1 {found[part][1]:.2f}" for part in ("held", "xquad"))
    rates = f"training {found['train_rate']:.1f}, prediction {found['predict_rate']:.1f} questions/s"
    print(f"  seed {seed}, {name}: {rates}; {shown}", flush=True)
    return found


def table(results: list[dict], args: argparse.Namespace) -> str:
    """The Markdown table, with ratios to the fastest float32 peer of this very run."""
    peers = [result for result in results if result["name"] in PEERS]
    rates = ("train_rate", "predict_rate")
    best = {key: max((statistics.median(p[key]) for p in peers), default=None) for key in rates}
    lines = [
        "| | held-out articles: EM, F1 | XQuAD en: EM, F1 | training, questions/s | ratio "
        "| prediction, questions/s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = [CONTENDERS[result["name"]]]
        for part in ("held", "xquad"):
            em, f1 = zip(*result[part], strict=True)
            cells.append(f"{statistics.mean(em):.2f}, {statistics.mean(f1):.2f} ({min(f1):.2f} to {max(f1):.2f})")
        for key in rates:
            value = statistics.median(result[key])
            cells += [f"{value:.1f}", f"{value / best[key]:.2f}" if best[key] else ""]
        lines.append("| " + " | ".join(cells) + " |")
    versions = {}
    for name in ("tensorflow", "keras", "torch", "transformers", "tokenizers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    seeds = ", ".join(map(str, args.seeds))
    notes = [
        f"{results[0]['questions'][0]} training questions, {args.epochs} epochs, batch {BATCH}, peak {PEAK:g}, "
        f"seeds {seeds}; {results[0]['asked'][0]} held-out questions. Scores are means (F1: least to most).",
        f"{machine(args.threads)}; Python {platform.python_version()}, "
        + ", ".join(f"{n} {v}" for n, v in versions.items()) + ".",
    ]  # fmt: skip
    return "\n".join([*lines, "", *notes])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, default=SHARED / "data" / "squad",
                       help="a directory of squad2_dev_visible_articles.json and xquad.en.json")  # fmt: skip
    flags.add_argument("--weights", type=Path, help="a Hugging Face directory; default: MiniLM from its package")
    flags.add_argument("--contenders", default="ours,torch", help=f"comma-separated, of {', '.join(CONTENDERS)}")
    flags.add_argument("--seeds", default="1,2,3", help="comma-separated")
    flags.add_argument("--epochs", type=int, default=3)
    flags.add_argument("--limit", type=int, help="learn from so many questions only")
    flags.add_argument("--eval_limit", type=int, help="ask so many questions only, of each set")
    flags.add_argument("--threads", type=int, default=os.cpu_count())
    flags.add_argument("--json", type=Path, help="write everything measured to this file")
    flags.add_argument("--one", help=argparse.SUPPRESS)  # run this contender here and write --json
    args = flags.parse_args()
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    args.weights = args.weights or minilm()
    if args.one:
        args.json.write_text(json.dumps(measure(args.one, args)))
        return
    if not (args.data / "xquad.en.json").exists():
        sys.exit(f"no {args.data / 'xquad.en.json'}: say --data=DIRECTORY")
    names = args.contenders.split(",")
    if unknown := set(names) - set(CONTENDERS):
        sys.exit(f"no such contender: {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    # Seed by seed, so that a machine whose speed drifts drifts for all alike; each contender in a process of its own.
    parts: dict[str, list[dict]] = {name: [] for name in names}
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for name in names:
                path = Path(folder) / f"{name}.json"
                command = [sys.executable, __file__, f"--one={name}", f"--json={path}", f"--data={args.data}",
                           f"--weights={args.weights}", f"--seeds={seed}", f"--epochs={args.epochs}",
                           f"--threads={args.threads}", *([f"--limit={args.limit}"] if args.limit else []),
                           *([f"--eval_limit={args.eval_limit}"] if args.eval_limit else [])]  # fmt: skip
                subprocess.run(command, check=True, env=environment)
                parts[name].append(json.loads(path.read_text()))
    results = [{"name": name} | {key: [one[key] for one in found] for key in found[0] if key != "name"}
               for name, found in parts.items()]  # fmt: skip
    if args.json:
        said = {"machine": machine(args.threads), "epochs": args.epochs, "limit": args.limit, "results": results}
        args.json.write_text(json.dumps(said, indent=1) + "\n")
    print("\n" + table(results, args))


if __name__ == "__main__":
    main()
