"""How fast is the network itself? Forward and training step beside keras-nlp and Hugging Face torch, in one run.

    python -P benchmarks/encoder.py [--shapes mini,one,base] [--seconds 6] [--torch PYTHON] [--one_thread]

Every line is one shape and one kind of work. The candidates take turns, call by call, so that a busy machine is busy
for all of them; a figure is the median of the ratios "other's time / ours" over the turns: above 1.00 we are faster.
`GFLOP/s` counts the matrix products only (weights and attention; three times as many in training) over our best call;
the first line is what one large product reaches in the same run. The training step is loss, backward pass and all
gradients, dropout 0.1, without an optimizer. keras-nlp is `BertBackbone`; torch is `BertModel` of transformers, run by
`--torch`, a Python that has both, in a process of its own that waits while others run. A peer that is not installed
leaves its column empty. `--one_thread` counts processor time of one thread each instead: fit for a busy machine, where
threads that wait for each other (torch's above all) lose far more than their share.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHAPES = {  # hidden, layers, heads, intermediate, batch, length
    "mini": (384, 6, 12, 1536, 32, 24),
    "one": (384, 6, 12, 1536, 1, 32),
    "base": (768, 12, 12, 3072, 8, 128),
}
TITLES = {"mini": "MiniLM 6 x 384, 32 x 24", "one": "MiniLM 6 x 384, 1 x 32", "base": "BERT-base 12 x 768, 8 x 128"}
VOCABULARY = 30522
clock = time.perf_counter

TORCH = '''
import sys, time
import torch, transformers
hidden, layers, heads, inner, batch, length, vocabulary = map(int, sys.argv[2:9])
clock = time.perf_counter
if sys.argv[1] == "one":
    torch.set_num_threads(1)
    clock = time.process_time
config = transformers.BertConfig(vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers,
    num_attention_heads=heads, intermediate_size=inner)
model = transformers.BertModel(config)
torch.manual_seed(0)
ids = torch.randint(1, vocabulary, (batch, length))
mask = torch.ones_like(ids)
mask[0, -1] = 0
def forward():
    model.eval()
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask).pooler_output.sum().item()
def train():
    model.train()
    model.zero_grad(set_to_none=True)
    loss = model(input_ids=ids, attention_mask=mask).pooler_output.square().sum()
    loss.backward()
    return loss.item()
print("ready", flush=True)
for line in sys.stdin:
    run = {"forward": forward, "train": train}[line.strip()]
    start = clock(); run(); print(clock() - start, flush=True)
'''


def flops(hidden, layers, heads, inner, batch, length):
    """Of the matrix products of one forward pass; a training step takes three times as many."""
    return 2 * batch * length * layers * (4 * hidden * hidden + 2 * hidden * inner) + (
        4 * batch * length * length * hidden * layers
    )


def tensorflow_work(model, inputs):
    import tensorflow as tf

    variables = [variable.value for variable in model.trainable_variables]
    key = "pooled" if "pooled" in model.output else "pooled_output"

    @tf.function
    def forward(inputs):
        return tf.reduce_sum(model(inputs, training=False)[key])

    @tf.function
    def train(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(inputs, training=True)[key]))
        return [loss, *(g for g in tape.gradient(loss, variables) if g is not None)]

    def timed(run):
        start = clock()
        run()
        return clock() - start

    return {
        "forward": lambda: timed(lambda: forward(inputs).numpy()),
        "train": lambda: timed(lambda: train(inputs)[0].numpy()),
    }


def ours(hidden, layers, heads, inner, batch, length):
    import numpy as np
    import tensorflow as tf

    from keras_bert_lab.config import BertConfig
    from keras_bert_lab.encoder import encoder

    config = BertConfig(vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, hidden_act="gelu",
                        num_attention_heads=heads, intermediate_size=inner)  # fmt: skip
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (batch, length))
    ids[0, -1] = 0
    given = {"input_ids": ids, "attention_mask": ids != 0, "token_type_ids": ids * 0}
    given = {name: tf.constant(value, "int32") for name, value in given.items()}
    return tensorflow_work(encoder(config), given), given


def keras_nlp(given, hidden, layers, heads, inner):
    if importlib.util.find_spec("keras_nlp") is None:
        return None
    import keras_nlp

    backbone = keras_nlp.models.BertBackbone(VOCABULARY, layers, heads, hidden, inner, dropout=0.1)
    names = {"input_ids": "token_ids", "attention_mask": "padding_mask", "token_type_ids": "segment_ids"}
    return tensorflow_work(backbone, {names[name]: value for name, value in given.items()})


def torch(python, *shape):
    if python is None:
        return None
    process = subprocess.Popen(
        [python, "-c", TORCH, "all" if clock is time.perf_counter else "one", *map(str, shape), str(VOCABULARY)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    if process.stdout.readline() != "ready\n":
        return None

    def ask(what):
        process.stdin.write(what + "\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return {"forward": lambda: ask("forward"), "train": lambda: ask("train"), "close": process.stdin.close}


def peak():
    """GFLOP/s of one large float32 product."""
    import tensorflow as tf

    a = tf.random.normal([2048, 2048])
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(a, a)[0]))
    best = 1e9
    for _ in range(12):
        start = clock()
        product().numpy()
        best = min(best, clock() - start)
    return 2 * 2048**3 / best / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="mini,one,base", help=", ".join(SHAPES))
    parser.add_argument("--seconds", type=float, default=6, help="of measuring, for each line")
    here = sys.executable if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers") else None
    parser.add_argument("--torch", default=here, help="a Python with torch and transformers")
    parser.add_argument("--one_thread", action="store_true", help="processor time of one thread each")
    arguments = parser.parse_args()
    cores = f"{os.cpu_count()} cores"
    if arguments.one_thread:
        global clock
        clock, cores = time.process_time, "one thread, processor time"
        os.environ.update(TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", OMP_NUM_THREADS="1")

    print(f"one 2048 x 2048 product: {peak():.0f} GFLOP/s on {cores} (float32)\n")
    print(f"{'':29}{'':9}{'ours':>10}{'GFLOP/s':>9}{'keras-nlp':>11}{'torch':>8}{'turns':>7}")
    for name in arguments.shapes.split(","):
        shape = SHAPES[name]
        mine, given = ours(*shape)
        candidates = {"keras-nlp": keras_nlp(given, *shape[:4]), "torch": torch(arguments.torch, *shape)}
        candidates = {"ours": mine, **{peer: work for peer, work in candidates.items() if work}}
        for kind in ("forward", "train"):
            for work in candidates.values():
                work[kind](), work[kind]()
            times: dict[str, list[float]] = {peer: [] for peer in candidates}
            until = time.monotonic() + arguments.seconds
            while time.monotonic() < until or len(times["ours"]) < 5:
                for peer, work in candidates.items():
                    times[peer].append(work[kind]())
            rate = flops(*shape) * (3 if kind == "train" else 1) / min(times["ours"]) / 1e9
            cells = []
            for peer in ("keras-nlp", "torch"):
                found = times.get(peer)
                ratios = [other / own for other, own in zip(found, times["ours"], strict=True)] if found else None
                cells.append(f"{statistics.median(ratios):.2f}" if ratios else "-")
            own = statistics.median(times["ours"]) * 1e3
            line = f"{TITLES[name]:29}{kind:9}{own:7.1f} ms{rate:9.0f}{cells[0]:>11}{cells[1]:>8}"
            print(f"{line}{len(times['ours']):7}", flush=True)
        if "torch" in candidates:
            candidates["torch"]["close"]()


if __name__ == "__main__":
    main()
