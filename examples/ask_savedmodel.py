"""Ask an exported classifier with nothing but TensorFlow and its text ops: vocabulary and labels are inside.

    python examples/ask_savedmodel.py my-task/export/saved_model "a text" "another text"
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the ops that the model's tokenizer uses)

if len(sys.argv) < 3:
    sys.exit(__doc__)
directory, *texts = sys.argv[1:]
serve = tf.saved_model.load(directory).signatures["serving_default"]
answers = serve(text=tf.constant(texts))

if "keras_bert_lab" in sys.modules:
    sys.exit("keras_bert_lab was imported, so this proved nothing")
for text, label, probabilities in zip(texts, answers["label"].numpy(), answers["probabilities"].numpy(), strict=True):
    print(f"{label.decode():9} {probabilities.max():.3f}  {text}")
