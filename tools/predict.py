"""Answer every row of a file with a saved task: a row out for every row in, in order.

    keras-bert-lab predict --task=my-task --data=texts.tsv --output=answers.tsv

--output ends in .tsv, .csv or .jsonl; without it, answers go to standard output as JSON lines. Files are streamed.
"""

from __future__ import annotations

import contextlib
import sys
import time

from absl import flags

from keras_bert_lab.tools import _flags

FLAGS = flags.FLAGS
_flags.adopt("task", "data", "output")


def main(argv: list[str]) -> None:
    _flags.arguments(argv, required=("task", "data"))
    from keras_bert_lab.artifact import load
    from keras_bert_lab.tables import writer

    began, rows = time.perf_counter(), 0
    with contextlib.ExitStack() as stack:
        write = stack.enter_context(writer(FLAGS.output or sys.stdout))
        task = load(FLAGS.task)
        for _, answer in task.stream(FLAGS.data):
            write(answer)
            rows += 1
            if FLAGS.output and rows % 4096 == 0:
                print(f"\r{rows} rows, {rows / (time.perf_counter() - began):.0f} a second", end="", file=sys.stderr)
    _flags.say_cut(task)
    if FLAGS.output:
        print(f"\r{rows} rows written to {FLAGS.output} in {time.perf_counter() - began:.1f} s", file=sys.stderr)
