"""Answer every row of a file with a saved task: a row out for every row in, in order.

    keras-bert-lab predict --task=my-task --data=texts.tsv --output=answers.tsv

--output ends in .tsv, .csv or .jsonl, or as files of the head's own formats do; without it, answers go to standard
output as JSON lines. Files are streamed.
"""

from __future__ import annotations

import sys
import time

from absl import flags

from keras_bert_lab.tools import _flags

FLAGS = flags.FLAGS
_flags.adopt("task", "data", "output")


def main(argv: list[str]) -> None:
    _flags.arguments(argv, required=("task", "data"))
    from keras_bert_lab.artifact import load

    task, began, rows = load(FLAGS.task), time.perf_counter(), 0

    def counted():
        nonlocal rows
        for pair in task.stream(FLAGS.data):
            yield pair
            rows += 1
            if FLAGS.output and rows % 4096 == 0:
                print(f"\r{rows} rows, {rows / (time.perf_counter() - began):.0f} a second", end="", file=sys.stderr)

    task.head.write(FLAGS.output or sys.stdout, counted())
    _flags.say_cut(task)
    if FLAGS.output:
        print(f"\r{rows} rows written to {FLAGS.output} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
