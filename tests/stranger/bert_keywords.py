"""Keywords of a text and their number: two outputs, one per piece and one per text, and nothing like a class
label.

Data are JSONL: ``{"text": "the film was dull", "keywords": ["film", "dull"]}``. Answers are
``{"keywords": ["film", "dull"], "count": 2.1}``: the keywords as they stand in the text, and a regression of
how many there are. It is written as a stranger would, from docs/heads.md alone.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features, Head
from keras_bert_lab.losses import F1, SparseCategoricalCrossentropy


@dataclass(frozen=True, kw_only=True)
class Keywords(Head):
    main_metric: ClassVar[str] = "f1"

    min_probability: float = 0.5
    mean_count: float | None = None  # learned: the regression predicts the difference from it

    def __post_init__(self):
        if not 0 < self.min_probability < 1:
            raise UserError("min_probability", f"is {self.min_probability!r}", "give a number between 0 and 1")

    # data

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            for line, row in enumerate(map(json.loads, file), 1):
                yield Example(row["text"], gold=row.get("keywords"), where=f"{path}:{line}", fields=row)

    def problem(self, example):
        if example.gold is None:
            return "no keywords"
        if absent := [word for word in example.gold if word not in example.text]:
            return f"{absent[0]!r} does not stand in the text"
        return None if example.text.strip() else "the text is empty"

    def fit(self, examples):
        counts = [len(example.gold) for example in self.usable(examples)]
        return dataclasses.replace(self, mean_count=sum(counts) / len(counts))

    @property
    def fitted(self):
        return self.mean_count is not None

    def features(self, examples, text):
        windows = text([example.text for example in examples])
        keyword = np.full(len(windows.input_ids), -100, np.int32)
        for row, i in enumerate(windows.example):
            part = slice(windows.splits[row], windows.splits[row + 1])
            example = examples[i]
            if example.gold is None:
                continue
            starts, ends = windows.starts[part], windows.ends[part]
            inside = np.zeros(len(starts), np.int32)
            for first, last in _places(example):
                inside |= (starts >= first) & (ends <= last)
            keyword[part] = np.where(starts < 0, -100, inside)
        golds = [example.gold for example in examples]
        known = np.array([gold is not None for gold in golds], bool)[windows.example]
        count = np.array([len(gold or ()) for gold in golds], np.float32)[windows.example]
        return Features(
            windows,
            y={"keyword": keyword, "count": (count - self.mean_count)[:, None].astype(np.float32)},
            w={"keyword": (keyword >= 0).astype(np.float32), "count": known.astype(np.float32)},
        )

    # network

    def outputs(self, encoded):
        keyword = keras.layers.Dense(2, dtype="float32", name="keyword")(encoded.sequence)
        # target and answers see no mask: what they must not take for a keyword is settled here
        never = ops.convert_to_tensor([10.0, -10.0])
        keyword = ops.where(ops.expand_dims(encoded.mask, -1), keyword, never)
        return {"keyword": keyword, "count": keras.layers.Dense(1, dtype="float32", name="count")(encoded.pooled)}

    def losses(self):
        return {"keyword": SparseCategoricalCrossentropy(), "count": keras.losses.Huber()}

    def metrics(self):
        return {"keyword": [F1(2, over=[1])]}

    def target(self, logits, chosen=None):
        margin = logits["keyword"][..., 1] - logits["keyword"][..., 0]
        decides = (chosen or logits)["keyword"]
        best = tf.argmax(decides[..., 1] - decides[..., 0], -1)
        return tf.gather(margin, best, batch_dims=1)

    # answers

    def decode(self, examples, windows, logits):
        found = [[] for _ in examples]
        counts = [0.0] * len(examples)
        for row, (keyword, count) in enumerate(zip(logits["keyword"], logits["count"], strict=True)):
            i, begin = int(windows.example[row]), windows.splits[row]
            counts[i] = float(count[0]) + self.mean_count
            chosen = _probability(np.asarray(keyword)) >= self.min_probability
            last = None
            for k in np.flatnonzero(chosen & (windows.starts[begin : begin + len(chosen)] >= 0)):
                start, end = int(windows.starts[begin + k]), int(windows.ends[begin + k])
                if last is not None and start == found[i][-1][1]:
                    found[i][-1] = (found[i][-1][0], end)
                else:
                    found[i].append((start, end))
                last = k
        return [
            {"keywords": list(dict.fromkeys(example.text[a:b] for a, b in spans)), "count": count}
            for example, spans, count in zip(examples, found, counts, strict=True)
        ]

    def score(self, examples, answers):
        both = said = there = 0
        error = n = 0.0
        for example, answer in zip(examples, answers, strict=True):
            gold, guess = set(example.gold), set(answer["keywords"])
            both, said, there = both + len(gold & guess), said + len(guess), there + len(gold)
            error, n = error + abs(len(gold) - answer["count"]), n + 1
        return {"f1": 2 * both / max(said + there, 1), "count_error": error / max(n, 1)}

    def answers(self, logits):
        return {
            "probability": tf.nn.softmax(logits["keyword"], -1)[..., 1],  # [B, L], of each piece
            "count": logits["count"][:, 0] + self.mean_count,  # [B]
        }


def _places(example):
    for word in example.gold:
        at = example.text.find(word)
        while at >= 0 and word:
            yield at, at + len(word)
            at = example.text.find(word, at + 1)


def _probability(logits):
    return 1 / (1 + np.exp(np.clip(logits[:, 0] - logits[:, 1], -50, 50)))
