"""Fine-tune a checkpoint on a file of examples and save the task.

    keras-bert-lab train --checkpoint=uncased_L-12_H-768_A-12 --train=train.tsv --dev=dev.tsv --output=my-task

The head reads the file: --head names it, --head_options holds its options as JSON, for instance
--head_options='{"text_column": "sentence", "pooling": "mean"}'. Without --dev, a tenth of the training data is held
out. The best epoch on the dev data is what is saved; its scores are printed.
"""

from __future__ import annotations

from absl import flags

from keras_bert_lab.errors import UserError
from keras_bert_lab.tools import _flags

FLAGS = flags.FLAGS
flags.DEFINE_string("checkpoint", None, "The encoder to start from: a directory or file that convert reads.")
flags.DEFINE_string("train", None, "Training examples.")
flags.DEFINE_string("dev", None, "Examples to choose the best epoch by. Default: a part of --train, stratified.")
flags.DEFINE_string("head", "classification", "The head, by its entry-point name.")
flags.DEFINE_string("head_options", "{}", "The head's options, a JSON object.")
flags.DEFINE_integer("max_length", 128, "Word pieces in a row, [CLS] and [SEP] included; longer texts are cut.")
flags.DEFINE_enum("truncation", "longest_first", ["longest_first", "only_second", "error"],
                  "How a text that is too long is cut.")
flags.DEFINE_bool("lower_case", None, "Lower-case the text. Default: as the files beside the vocabulary say.")
flags.DEFINE_enum("precision", "float32", ["float32", "mixed_bfloat16", "mixed_float16"], "Keras dtype policy.")
_flags.define_recipe()
_flags.adopt("output", "overwrite")


def main(argv: list[str]) -> None:
    _flags.arguments(argv, required=("checkpoint", "train", "output"))
    options = _flags.json_object(FLAGS.head_options, "head_options")
    recipe = _flags.recipe()
    clash = {"max_length", "truncation", "lower_case", "precision"} & set(options)
    if clash:
        found = f"holds {', '.join(sorted(clash))}, which are no head's"
        raise UserError("--head_options", found, "give them as flags")
    from keras_bert_lab import artifact
    from keras_bert_lab.task import Task

    artifact.check(FLAGS.output, FLAGS.overwrite, "--overwrite")
    task = Task.from_checkpoint(
        FLAGS.checkpoint, FLAGS.head, max_length=FLAGS.max_length, truncation=FLAGS.truncation,
        lower_case=FLAGS.lower_case, precision=FLAGS.precision, **options)
    task.fit(FLAGS.train, FLAGS.dev, recipe=recipe, log_dir=f"{FLAGS.output}/train")
    task.save(FLAGS.output, overwrite=True)
    if task.scores:
        print("\ndev scores of the epoch that was kept:")
        _flags.print_scores(task.scores)
    print(f"\nsaved {FLAGS.output}; next: keras-bert-lab predict --task={FLAGS.output} --data=FILE")
