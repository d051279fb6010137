"""Read a BERT checkpoint of any format and write it in another.

    keras-bert-lab convert uncased_L-12_H-768_A-12 bert-base --to=keras_bert_lab --verify

SRC is a directory, or any file of a checkpoint; DST a new directory. Config and vocabulary travel along. --verify
reads the result back, compares tensors and outputs, and writes parity.json; if they differ, nothing is left.
"""

from __future__ import annotations

import sys

from absl import flags

from keras_bert_lab.tools import _flags

FLAGS = flags.FLAGS
WRITTEN = ["bert", "huggingface", "keras_nlp", "keras_bert_lab"]
flags.DEFINE_enum("to", "keras_bert_lab", WRITTEN, "The format to write.")
flags.DEFINE_list("ignore", [], "Patterns of names in the file to leave behind, such as 'my_head/*'.")
flags.DEFINE_bool("verify", False, "Prove that both sides are the same network; figures in DST/parity.json.")
_flags.adopt("from", "scope", "overwrite")


def main(argv: list[str]) -> None:
    src, dst = _flags.arguments(argv, "SRC", "DST")
    from keras_bert_lab.checkpoint import convert

    options = {"from_": FLAGS["from"].value, "scope": FLAGS.scope, "ignore": FLAGS.ignore}
    options |= {"verify": FLAGS.verify, "overwrite": FLAGS.overwrite}
    convert(src, dst, FLAGS.to, **options, say=print, tick=progress if sys.stderr.isatty() else None)
    print(f"written: {dst} ({FLAGS.to})")


def progress(done: int, total: int, name: str) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done / 1e6:8.0f} of {total / 1e6:.0f} MB  {name[-60:]:60}", end=end, file=sys.stderr, flush=True)
