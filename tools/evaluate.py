"""Score a saved task on labelled examples.

    keras-bert-lab evaluate --task=my-task --data=test.tsv [--json=scores.json]
"""

from __future__ import annotations

import json
from pathlib import Path

from absl import flags

from keras_bert_lab.tools import _flags

FLAGS = flags.FLAGS
flags.DEFINE_string("json", None, "Write all scores, the confusion matrix among them, to this file.")
_flags.adopt("task", "data")


def main(argv: list[str]) -> None:
    _flags.arguments(argv, required=("task", "data"))
    from keras_bert_lab.artifact import load

    task = load(FLAGS.task)
    scores = task.evaluate(FLAGS.data)
    _flags.print_scores(scores)
    _flags.say_cut(task)
    if FLAGS.json:
        Path(FLAGS.json).write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n", "utf-8")
