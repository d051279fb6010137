"""Ask an exported question answerer about a text of any length, with nothing but TensorFlow and its text ops.

    python examples/ask_qa.py my-task/export/saved_model a-text.txt "a question" "another question"
"""

import sys
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the ops that the model's tokenizer uses)

if len(sys.argv) < 4:
    sys.exit(__doc__)
directory, file, *questions = sys.argv[1:]
context = Path(file).read_text("utf-8")
serve = tf.saved_model.load(directory).signatures["serving_default"]
found = serve(question=tf.constant(questions), context=tf.constant([context] * len(questions)))

if "keras_bert_lab" in sys.modules:
    sys.exit("keras_bert_lab was imported, so this proved nothing")
answers = zip(*(found[name].numpy() for name in ("text", "start", "end", "no_answer_probability")), strict=True)
for question, (text, start, end, none) in zip(questions, answers, strict=True):
    said = f"{text.decode()!r}, characters {start} to {end}" if start >= 0 else "no answer"
    print(f"{question}\n  {said} (no answer: {none:.2f})")
