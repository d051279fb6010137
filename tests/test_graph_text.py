import json
import random
import subprocess
import sys
import unicodedata
from functools import cache

import numpy as np
import pytest

pytest.importorskip("tensorflow_text")
import tensorflow as tf

from keras_bert_lab import graph_text
from keras_bert_lab.errors import UserError
from keras_bert_lab.graph_text import GraphTokenizer
from keras_bert_lab.windows import TRUNCATIONS, Pieces
from keras_bert_lab.wordpiece import CODE_POINTS, Tokenizer

VOCABS = ("uncased", "chinese", "cased", "multi_cased")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NASTY = [
    *"aAbZ19 .,'\"-[]()\t\n\r",
    *"\x00\x1c\x85\xa0\xad\u200b\u200d\u2028\u2029\u3000\ufeff\ufffd\ufffe\ue000\U0010ffff\U0001f600\ufe0f",
    *"ΑΣσς\u02b0\u2019\u00b7:\u0345ªⅠ\u0130ıIßẞﬁſK",
    *"\u0301\u0300\u034f\u302e\u302f\U0001d15e\U0001d160\U0001d165\U0001d16d\U00016ff0\U00016ff1",
    *"가각힣\u1100\u1161\u11abéế中国〇\uf900\ufa6c\U0002f800\u1fed\u2260\u037e\u1fef\u0958\u0390",
    *["[MASK]", "[SEP]", "[mask]", "[MASK", "word", "Straße", "ΟΔΟΣ", "naïve", "  "],
]
# What a process that only has the SavedModels does with the texts.
STRANGER = """
import json, pathlib, sys
import tensorflow as tf, tensorflow_text
here = pathlib.Path(sys.argv[1])
found = {}
for folder in sorted(here.glob("*.model")):
    serve = tf.saved_model.load(str(folder)).serve
    texts = json.loads((here / f"{folder.stem}.json").read_text())
    found[folder.stem] = [v.numpy().tolist() for v in serve(tf.constant(texts, tf.string))]
assert "keras_bert_lab" not in sys.modules
(here / "found.json").write_text(json.dumps(found))
"""


def tokenizer(entries, **options):
    return Tokenizer("\n".join([*SPECIALS, *entries]).encode(), **{"lower_case": True, **options})


def letters():
    """Entries for single characters of all kinds, so that ids tell how a text was spelled."""
    found = dict.fromkeys("".join(NASTY) + "abcdefghijklmnopqrstuvwxyz0123456789각ᆫ̀́ιυωα")
    found = [c for c in found if c.strip() and unicodedata.category(c) not in ("Cc", "Cf")]
    return [*found, *("##" + c for c in found), "word", "##or"]


@cache
def code_points():
    """(assigned, all) characters that UTF-8 can hold."""
    every = [chr(c) for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000]
    return [c for c in every if unicodedata.category(c) not in ("Cn", "Co")], every


def fuzz(count, seed):
    rng = random.Random(seed)
    assigned, every = code_points()
    make = {
        "n": lambda: rng.choice(NASTY),
        "a": lambda: rng.choice(assigned),
        "e": lambda: rng.choice(every),
        "p": lambda: chr(rng.randrange(32, 127)),
    }
    texts = []
    for _ in range(count):
        kinds = rng.choice(["n", "n", "na", "e", "p", "ppppn", "npea"])
        texts.append("".join(make[rng.choice(kinds)]() for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 13, 40]))))
    return texts


def assert_same(mine, theirs, texts):
    for row, text in enumerate(texts):
        for a, b in zip(mine[row], theirs[row], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=ascii(text))
    assert len(mine) == len(theirs) == len(texts)


def served(graph):
    """A module as an export makes it: strings in, flat ids, offsets and row splits out."""
    module = tf.Module()
    module.graph = graph

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(texts):
        ids, starts, ends = graph.tokenize(texts)
        return ids.values, starts.values, ends.values, ids.row_splits

    module.serve = serve
    return module


def test_every_row_of_the_oracle_here_and_from_the_saved_model(tokenization, vocabulary, tmp_path):
    kept = {}
    for name in VOCABS:
        for lower in (True, False):
            mine = tokenization(name, lower)
            texts = [row["text"] for row in mine]
            t = Tokenizer.from_vocab(vocabulary(name), lower_case=lower)
            module = served(GraphTokenizer(t))
            pieces = Pieces(*(v.numpy() for v in module.serve(tf.constant(texts))))
            for i, row in enumerate(mine):
                assert pieces[i][0].tolist() == row["ids"], (name, lower, ascii(row["text"]))
                assert [t.tokens[k] for k in pieces[i][0]] == row["wordpieces"]
            assert_same(pieces, t.pieces(texts), texts)
            stem = f"{name}-{lower}"
            tf.saved_model.save(module, tmp_path / f"{stem}.model")
            (tmp_path / f"{stem}.json").write_text(json.dumps(texts))
            kept[stem] = pieces
            size = sum(f.stat().st_size for f in (tmp_path / f"{stem}.model").rglob("*") if f.is_file())
            print(f"{stem}: {len(mine)} rows equal; SavedModel {size / 1e6:.1f} MB of {len(t.vocab_bytes) / 1e6:.1f}")
            assert size < 10 * len(t.vocab_bytes) + 2e6
    subprocess.run([sys.executable, "-c", STRANGER, tmp_path], cwd=tmp_path, check=True, capture_output=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == set(kept)
    for stem, pieces in kept.items():
        for a, b in zip(found[stem], (pieces.ids, pieces.starts, pieces.ends, pieces.splits), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=stem)
    assert sum(len(p) for p in kept.values()) > 5600  # of 5644: Python 3.10's Unicode data lack a few characters


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("strip", [False, True])
def test_any_text_gives_what_python_gives(lower, strip, special):
    t = tokenizer(letters(), lower_case=lower, strip_accents=strip, special_tokens=special)
    graph = GraphTokenizer(t)
    texts = fuzz(1500, seed=lower * 4 + strip * 2 + special)
    expected = t.pieces(texts)
    assert (expected.ids != t.unk_id).mean() > 0.3
    assert_same(graph.pieces(texts), expected, texts)
    for i in range(100):  # branches are taken for a whole batch: alone, a text goes other ways
        assert_same(graph.pieces(texts[i : i + 1]), expected.take([i]), texts[i : i + 1])


def test_every_assigned_code_point():
    t = tokenizer(letters())
    graph = GraphTokenizer(t)
    assigned, every = code_points()
    uniform = range(0x3410, 0x9FF0), range(0x17010, 0x18CD0), range(0x20010, 0x31340)  # Chinese and Tangut
    points = [c for c in assigned if not any(ord(c) in block for block in uniform)] + every[::100]
    rng = random.Random(1)
    rng.shuffle(points)
    texts = ["a".join(points[i : i + 500]) for i in range(0, len(points), 500)]
    assert_same(graph.pieces(texts), t.pieces(texts), texts)


def test_bytes_that_are_not_utf8_are_left_out():
    t = tokenizer(letters())
    graph = GraphTokenizer(t)
    rng = random.Random(2)
    parts = [
        b"a",
        b" ",
        b"\xc3",
        b"\xa9",
        b"\xe4",
        b"\xb8",
        b"\xad",
        b"\xf0",
        b"\x9f",
        b"\x98",
        b"\x80",
        b"\xed",
        b"\xa0",
    ]
    parts += [b"\xff", b"\xc0", b"\xf4", b"\x90", b"\x00", b"\xef", b"\xbb", b"\xbf", "é".encode(), "中".encode()]
    texts = [b"".join(rng.choice(parts) for _ in range(rng.randrange(14))) for _ in range(8000)]
    ids, starts, ends = graph.tokenize(texts)
    expected = t.pieces([x.decode("utf-8", "ignore") for x in texts])
    for a, b in zip((ids, starts, ends), (expected.ids, expected.starts, expected.ends), strict=True):
        np.testing.assert_array_equal(a.values, b)
    np.testing.assert_array_equal(ids.row_splits, expected.splits)


def test_half_a_surrogate_pair_in_a_python_string():
    t = tokenizer(letters())
    texts = ["a\ud800b c", "\udfff", "\ud83d\ude00", "plain"]
    assert_same(GraphTokenizer(t).pieces(texts), t.pieces(texts), texts)


@pytest.mark.parametrize("count", [1, 100, 101, 200, 201, 1000])
def test_words_of_up_to_200_characters(count):
    t = tokenizer(["a", "##a", "é", "##é", "👍", "##👍"], lower_case=False)
    texts = ["a" * count, "é" * count + " a", "x" + "👍" * count, "👍" * count]
    assert_same(GraphTokenizer(t).pieces(texts), t.pieces(texts), texts)


def test_odd_vocabularies(tmp_path):
    lines = [
        *SPECIALS,
        "",
        "hello",
        "##s",
        "\u2028",
        "##",
        "world",
        "##s",
        "a b",
        "##\u2028",
        "[unused1]",
        "don't",
        "###",
    ]
    for end in ("\n", "\r\n", " \n"):
        t = Tokenizer("\ufeff".encode() + end.join(lines).encode(), lower_case=True)
        texts = ["hellos world", "\u2028 ## don't a b ### #", " 5 hello", " 9"]
        assert t.encode(texts[0])[0] == [6, 11, 10]
        assert_same(GraphTokenizer(t).pieces(texts), t.pieces(texts), texts)


def test_special_tokens_switch():
    off = tokenizer(["[", "]", "mask", "hello", "world", "sep", "a", "b", "ς", "σ", "α", "##ς", "##σ"])
    on = off.with_options(special_tokens=True)
    texts = [
        "hello [MASK] world",
        "a [SEP] b",
        "[mask] [MA\x00SK] [[MASK]]",
        "ΑΣ[MASK] [SEP]ΑΣΑ",
        "[MASK",
        "[PAD][UNK]",
        "",
    ]
    graphs = {t: GraphTokenizer(t) for t in (off, on)}
    for t, graph in graphs.items():
        assert_same(graph.pieces(texts), t.pieces(texts), texts)
        assert (graph.pieces(texts, offsets=False).ids == t.pieces(texts).ids).all()
    assert graphs[on].pieces(texts).ids.tolist().count(on.mask_id) == 3
    assert off.mask_id not in graphs[off].pieces(texts).ids
    batch, _ = graphs[off].pack(texts, max_length=20)
    assert (batch["input_ids"].numpy() == off.sep_id).sum(1).tolist() == [1] * len(texts)


def test_pack_is_windows_pack():
    t = tokenizer(list("abcdefgh"))
    graph = GraphTokenizer(t)
    rng = random.Random(3)
    first, second = ([" ".join(rng.choices("abcdefgh", k=rng.randrange(12))) for _ in range(300)] for _ in range(2))
    for max_length in (4, 5, 8, 9, 13, 14, 40):
        for truncation in TRUNCATIONS:
            for pair in (None, second):
                if truncation == "error" and max_length < 40:
                    continue
                batch, dropped = graph.pack(first, pair, max_length=max_length, truncation=truncation)
                windows = t.windows(first, pair, max_length=max_length, truncation=truncation)
                for name, values in windows.pad().items():
                    np.testing.assert_array_equal(batch[name], values)
                    assert batch[name].dtype == tf.int32
                np.testing.assert_array_equal(dropped, windows.dropped)


def test_pack_of_a_long_text_and_of_nothing():
    t = tokenizer(["a"])
    graph = GraphTokenizer(t)
    batch, dropped = graph.pack(["a " * 100], max_length=64)
    assert batch["input_ids"].shape == (1, 64) and batch["input_ids"][0, -1] == t.sep_id and dropped.numpy() == [38]
    nothing = tf.zeros([0], tf.string)
    pack = tf.function(lambda a, b: graph.pack(a, b, max_length=9), autograph=False)
    batch, dropped = pack(nothing, nothing)
    assert [v.shape.as_list() for v in batch.values()] == [[0, 2]] * 3 and dropped.shape == [0]
    assert graph.pack(nothing, max_length=9)[0]["input_ids"].shape[0] == 0
    assert graph.pack([""], [""], max_length=9)[0]["input_ids"].numpy().tolist() == [[t.cls_id, t.sep_id, t.sep_id]]
    ids = graph.tokenize(["a a", ""])[0]
    assert graph.pack(ids, max_length=9)[0]["attention_mask"].numpy().sum(1).tolist() == [4, 2]
    assert len(graph.pieces([])) == 0 and graph.tokenize(nothing)[0].shape[0] == 0


def test_pack_that_cannot_be():
    graph = GraphTokenizer(tokenizer(["a"]))
    with pytest.raises(UserError, match="max_length=2"):
        graph.pack(["a"], max_length=2)
    with pytest.raises(UserError, match="truncation='first'"):
        graph.pack(["a"], max_length=9, truncation="first")
    with pytest.raises(tf.errors.InvalidArgumentError, match="more pieces than the 3 that max_length 5"):
        graph.pack(["a a a a"], max_length=5, truncation="error")


def test_the_exported_pack_needs_no_text_operations_but_the_tokenizers():
    """TensorFlow Serving bundles an old TF-Text; only WordPiece itself may come from it."""
    graph = GraphTokenizer(tokenizer(["a"]))
    spec = tf.TensorSpec([None], tf.string)
    serve = tf.function(lambda a, b: graph.pack(a, b, max_length=9), autograph=False).get_concrete_function(spec, spec)
    definition = serve.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    assert {n.op for n in nodes if n.op.startswith(("TFText", "Fast"))} == {"FastWordpieceTokenizeWithOffsets"}


def test_inside_tf_data_with_unknown_batch():
    t = tokenizer(letters())
    graph = GraphTokenizer(t)
    texts = fuzz(300, seed=5)
    data = tf.data.Dataset.from_tensor_slices(texts).batch(64).map(lambda x: graph.tokenize(x)[0], tf.data.AUTOTUNE)
    found = [row for batch in data for row in batch.to_list()]
    assert found == [ids.tolist() for ids, _, _ in t.pieces(texts)]


def test_without_tensorflow_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(UserError, match=r"tensorflow_text: cannot be imported .*pip install 'tensorflow-text=="):
        GraphTokenizer(tokenizer([]))


def test_what_is_no_text():
    graph = GraphTokenizer(tokenizer([]))
    with pytest.raises(UserError, match="text 1: is NoneType"):
        graph.pieces(["a", None])
    with pytest.raises(UserError, match="one string"):
        graph.pieces("a")


def test_table_entries_fit_their_bits():
    assert graph_text.RARE + 5000 < 2**31 and CODE_POINTS + len(SPECIALS) < graph_text.LOW
