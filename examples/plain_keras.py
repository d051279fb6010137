"""The same classifier for those who want plain Keras: a functional model, a tf.data set, their own compile and fit.

    python examples/plain_keras.py uncased_L-12_H-768_A-12
"""

import argparse
from pathlib import Path

import keras

import keras_bert_lab as kbl

REVIEWS = Path(__file__).parent / "reviews"

flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
flags.add_argument("checkpoint", help="an original BERT checkpoint, or any other that `convert` reads")
flags.add_argument("--epochs", type=int, default=2)
args = flags.parse_args()

keras.utils.set_random_seed(0)
task = kbl.Task.from_checkpoint(args.checkpoint, head="classification")
train = task.dataset(REVIEWS / "train.tsv", batch_size=16, shuffle=True)  # the head learns its labels here
dev = task.dataset(REVIEWS / "dev.tsv", batch_size=16)

model = task.model  # a keras.Model: ids in, {"label": logits [batch, labels]} out
model.compile(
    optimizer=keras.optimizers.Adam(5e-5, global_clipnorm=1.0),
    loss=task.head.losses(),
    weighted_metrics=task.head.metrics(),  # weighted: the rows that fill up the last batch weigh nothing
)
model.fit(train, validation_data=dev, epochs=args.epochs, callbacks=[keras.callbacks.TerminateOnNaN()])

for text in ("I would buy it again tomorrow.", "It broke before I had read the manual."):
    answer = task.predict([text])[0]
    print(f"{answer['label']:9} {answer['probability']:.3f}  {text}")
