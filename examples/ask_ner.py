"""Ask an exported finder of names with nothing but TensorFlow and its text ops; texts may be of any length.

    python examples/ask_ner.py my-task/export/saved_model "a text" "another text"
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the ops that the model's tokenizer uses)

if len(sys.argv) < 3:
    sys.exit(__doc__)
directory, *texts = sys.argv[1:]
serve = tf.saved_model.load(directory).signatures["serving_default"]
found = {name: value.numpy() for name, value in serve(text=tf.constant(texts)).items()}

if "keras_bert_lab" in sys.modules:
    sys.exit("keras_bert_lab was imported, so this proved nothing")
for row, text in enumerate(texts):
    print(text if len(text) < 100 else text[:97] + "...")
    for n in range(found["count"][row]):
        kind, name, start, end, score = (found[k][row, n] for k in ("type", "text", "start", "end", "score"))
        print(f"  {kind.decode():5} {score:.2f}  {name.decode()!r}, characters {start} to {end}")
