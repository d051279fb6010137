"""Sentences a second of four BERT tokenizers on the same text, in one run, and how many rows each gets other than ours.

    python benchmarks/tokenizing.py
    python benchmarks/tokenizing.py --text=reviews.tsv --vocab=vocab.txt

Without --text: the SST-2 training sentences and, with the Chinese vocabulary, encyclopedia paragraphs from the folder
../shared beside the repository where it is laid, else a small built-in text. Needs the package `tokenizers`.
"""

import argparse
import importlib.metadata
import os
import platform
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["TOKENIZERS_PARALLELISM"] = "true"
SHARED = Path(os.environ.get("KERAS_BERT_LAB_SHARED", Path(__file__).resolve().parents[2] / "shared"))
BUILT_IN = [
    "The café on the corner closed early, so we walked home in the rain.",
    "A warm , funny and surprisingly wise little film .",
    "Nobody told me that the second half would be twice as long as the first!",
    "It isn't cheap ($49.99), but it's the best one I've owned so far.",
]


def texts_of(path: Path) -> list[str]:
    """The lines of a file; of a .tsv, the longest cell of each line."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [max(line.split("\t"), key=len) if path.suffix == ".tsv" else line for line in lines if line.strip()]


def rounds(ways: dict, count: int) -> dict[str, float]:
    """Best seconds of each way over interleaved rounds, so that a busy machine treats them alike."""
    best = dict.fromkeys(ways, float("inf"))
    for number in range(count + 1):  # the first round only warms up
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            if number:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def compare(title: str, vocab: Path, texts: list[str], lower_case: bool | None, batch: int, count: int) -> None:
    import tensorflow as tf
    import tensorflow_text
    import tokenizers

    from keras_bert_lab.graph_text import GraphTokenizer
    from keras_bert_lab.wordpiece import Tokenizer

    ours = Tokenizer.from_vocab(vocab, lower_case=lower_case)
    graph = GraphTokenizer(ours)
    rust = tokenizers.BertWordPieceTokenizer(str(vocab), lowercase=ours.lower_case)
    # FastBertTokenizer refuses blank and repeated entries; it gets stand-ins, which no text matches.
    entries = [t if t and ours.ids[t] == i else f"[none{i}]" for i, t in enumerate(ours.tokens)]
    fast = tensorflow_text.FastBertTokenizer(
        entries,
        lower_case_nfd_strip_accents=ours.lower_case,
        token_out_type=tf.int32,
        support_detokenization=False,
    )
    held = tf.constant(texts)

    def dataset(tokenize):
        steps = tf.data.Dataset.range(0, len(texts), batch)
        return steps.map(lambda i: tokenize(held[i : i + batch]), tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def through(tokenize):
        data = dataset(tokenize)
        return lambda: [v for v in data.as_numpy_iterator()]

    def cold():
        Tokenizer(ours.vocab_bytes, **ours.settings()).pieces(texts)

    ways = {
        "ours, in the graph, ids": through(lambda x: graph.tokenize(x, offsets=False)[0].values),
        "ours, in the graph, ids and offsets": through(lambda x: [v.values for v in graph.tokenize(x)]),
        "ours, in the graph, .pieces()": lambda: graph.pieces(texts),
        "ours, Python, words seen before": lambda: ours.pieces(texts),
        "ours, Python, new tokenizer": cold,
        "Rust tokenizers, encode_batch": lambda: rust.encode_batch(texts, add_special_tokens=False),
        "tensorflow_text.FastBertTokenizer": through(lambda x: fast.tokenize(x).values),
    }
    seconds = rounds(ways, count)
    pieces = ours.pieces(texts)
    expected = [ids.tolist() for ids, _, _ in pieces]
    found = graph.pieces(texts)
    ids = {
        "ours, in the graph, ids": [found[i][0].tolist() for i in range(len(found))],
        "Rust tokenizers, encode_batch": [e.ids for e in rust.encode_batch(texts, add_special_tokens=False)],
        "tensorflow_text.FastBertTokenizer": [r for b in dataset(fast.tokenize) for r in b.to_list()],
    }
    mean = sum(map(len, texts)) / len(texts)
    print(f"\n{title}: {len(texts)} texts, {mean:.0f} characters and {pieces.ids.size / len(texts):.0f} pieces each")
    print(f"{'':38}{'texts/s':>10}{'x Rust':>8}  rows unlike ours")
    base = seconds["Rust tokenizers, encode_batch"]
    for name, value in seconds.items():
        other = ids.get(name)
        unlike = (
            "" if other is None else f"{sum(a != b for a, b in zip(other, expected, strict=True)) / len(texts):8.2%}"
        )
        print(f"{name:38}{len(texts) / value:10,.0f}{base / value:8.2f}  {unlike}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="file with one text a line (of a .tsv, the longest cell counts)")
    parser.add_argument("--vocab", type=Path, default=SHARED / "oracle/tiny_en/vocab.txt", help="vocab.txt")
    parser.add_argument("--lower_case", choices=["true", "false"], help="default: as the vocabulary says")
    parser.add_argument("--batch", type=int, default=512, help="texts a step of tf.data")
    parser.add_argument("--repeat", type=int, default=4, help="times that the text is taken, for every way alike")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds; the best of each way counts")
    args = parser.parse_args()
    if not args.vocab.is_file():
        parser.error(f"{args.vocab}: no such file; give --vocab")
    lower = None if args.lower_case is None else args.lower_case == "true"
    names = ("tensorflow", "tensorflow-text", "tokenizers")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, ", end="")
    print(", ".join(f"{n} {importlib.metadata.version(n)}" for n in names))
    print(f"best of {args.rounds} rounds, interleaved; tf.data in batches of {args.batch}; text taken {args.repeat} x")
    settings = {"lower_case": lower, "batch": args.batch, "count": args.rounds}
    if args.text:
        compare(args.text.name, args.vocab, texts_of(args.text) * args.repeat, **settings)
        return
    english, chinese = SHARED / "data/sst2/train.tsv", SHARED / "data/text/zh_wikipedia_cmrc2018_contexts.txt"
    if english.is_file():
        compare("English, SST-2", args.vocab, texts_of(english) * args.repeat, **settings)
    else:
        compare("built-in text", args.vocab, BUILT_IN * 2000 * args.repeat, **settings)
    vocab = SHARED / "oracle/tiny_zh/vocab.txt"
    if chinese.is_file() and vocab.is_file():
        compare("Chinese, encyclopedia", vocab, texts_of(chinese) * args.repeat, **settings)


if __name__ == "__main__":
    main()
