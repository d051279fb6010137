"""List what a checkpoint of any format holds, without loading it.

    keras-bert-lab describe uncased_L-12_H-768_A-12

Prints the format, every tensor (our name, shape in our layout, dtype, name in the file), what loading would skip or
refuse, the config and the vocabulary.
"""

from __future__ import annotations

from absl import flags

from keras_bert_lab.tools import _flags

FLAGS = flags.FLAGS
_flags.adopt("from", "scope")


def main(argv: list[str]) -> None:
    (path,) = _flags.arguments(argv, "CHECKPOINT")
    from keras_bert_lab.source import open_checkpoint

    print(open_checkpoint(path, FLAGS["from"].value, FLAGS.scope).listing())
