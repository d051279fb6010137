"""Write a saved task for serving, proved equal to it.

    keras-bert-lab export --task=my-task --output=my-task/export

Writes SavedModels that take raw strings, or ids where there is no tensorflow_text; README.md beside them says how to
load them. A new process answers nasty texts, and those of --data, before anything is left at --output.
"""

from __future__ import annotations

import itertools

from absl import flags

from keras_bert_lab.tools import _flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("format", "saved_model", ["saved_model"], "What to write.")
_flags.adopt("task", "data", "output", "overwrite")


def main(argv: list[str]) -> None:
    _flags.arguments(argv, required=("task",))
    from keras_bert_lab.artifact import load
    from keras_bert_lab.files import check_destination

    output = FLAGS.output or f"{FLAGS.task}/export"
    check_destination(output, FLAGS.overwrite, "--overwrite")
    task = load(FLAGS.task)
    texts = list(itertools.islice(task.examples(FLAGS.data, gold=False), 256)) if FLAGS.data else ()
    proof = task.export(output, FLAGS.format, texts=texts, overwrite=FLAGS.overwrite)
    print(f"proved on {proof['rows']} texts in batches of {proof['batches']}, in a process of its own:")
    for name, gap in proof["differences"].items():
        print(f"  {name:32} largest difference {gap:.2g}")
    print(f"needs at serving: tensorflow, tensorflow_text ({', '.join(proof['text_ops']) or 'no text ops'})")
    print(f"written: {output}; its README.md shows how to load it")
