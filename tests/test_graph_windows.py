"""Windows in the graph are those of `windows.sliding` and `windows.cut`; their logits are the rows' own."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import graph_windows, windows
from keras_bert_lab.graph_windows import Cuts
from keras_bert_lab.windows import Pieces


class Echo:
    """Stands in for a `run`: a piece's logits are its id and place, a row's the sum of its ids."""

    cls_id, sep_id, pad_id, max_length = 2, 3, 0, 30

    def __init__(self):
        self.shapes = []

    def model(self, input_ids, attention_mask, token_type_ids):
        tf.py_function(lambda x: self.shapes.append(tuple(x.shape)), [input_ids], [])
        ids, types = tf.cast(input_ids, tf.float32), tf.cast(token_type_ids, tf.float32)
        place = tf.zeros_like(ids) + tf.cast(tf.range(tf.shape(ids)[1]), tf.float32)
        real = tf.cast(attention_mask, tf.float32)
        return {"piece": tf.stack([ids, place, types], -1), "row": tf.reduce_sum(ids * real, 1)}


def random_pieces(random, texts, longest):
    lengths = random.integers(0, longest + 1, texts)
    ids = random.integers(5, 99, lengths.sum()).astype(np.int32)
    return Pieces(ids, ids, ids, np.concatenate([[0], np.cumsum(lengths)]))


def ragged(pieces):
    return tf.RaggedTensor.from_row_splits(pieces.ids, pieces.splits)


def in_graph(cuts):
    return Cuts(*(tf.constant(array, tf.int32) for array in (cuts.example, cuts.begin, cuts.length)))


@pytest.mark.parametrize("seed", range(12))
def test_sliding_is_that_of_windows(seed):
    random = np.random.default_rng(seed)
    texts, room = random.integers(0, 9), random.integers(1, 12)
    lengths, stride = random.integers(0, 40, texts), random.integers(1, room + 1)
    want = windows.sliding(lengths, room, stride)
    got = graph_windows.sliding(*(tf.fill([texts], int(v)) if np.ndim(v) == 0 else tf.constant(v, tf.int32)
                                  for v in (lengths, room, stride)))  # fmt: skip
    for name in ("example", "begin", "length"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), name)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("seed", "places"), [(0, 4096), (1, 50), (2, 1), (3, 64), (4, 17)])
def test_logits_of_stretches_are_those_of_the_rows(seed, places, paired):
    random = np.random.default_rng(seed)
    texts = random_pieces(random, 7, 60)
    first = random_pieces(random, 7, 6) if paired else None
    cuts = windows.sliding(texts.lengths, room=20, stride=int(random.integers(1, 21)))
    want = windows.cut(texts, cuts, first, cls_id=2, sep_id=3)
    echo = Echo()

    def served(texts, first, cuts):
        return graph_windows.logits(echo, texts, Cuts(*cuts), first, places)

    served = tf.function(served) if seed else served  # eagerly as well
    got, lengths = served(ragged(texts), None if first is None else ragged(first), tuple(in_graph(cuts)))
    np.testing.assert_array_equal(lengths, want.lengths)
    np.testing.assert_array_equal(got["piece"].row_splits, want.splits)
    np.testing.assert_array_equal(got["piece"].values[:, 0], want.input_ids)
    np.testing.assert_array_equal(got["piece"].values[:, 2], want.token_type_ids)
    np.testing.assert_array_equal(got["piece"].values[:, 1], windows.spread(np.zeros(len(want)), want.lengths))
    np.testing.assert_array_equal(got["row"], np.add.reduceat(want.input_ids, want.splits[:-1]))
    assert all(rows * length <= places or rows == 1 for rows, length in echo.shapes)


def test_no_text_gives_no_rows():
    none = ragged(Pieces(*(np.zeros(0, np.int32),) * 3, splits=np.zeros(1, np.int64)))
    cuts = graph_windows.sliding(*(tf.zeros([0], tf.int32),) * 3)
    got, lengths = graph_windows.logits(Echo(), none, cuts, none)
    assert got["row"].shape == lengths.shape == (0,) and got["piece"].shape[0] == 0


@pytest.mark.parametrize("seed", range(12))
def test_every_piece_is_owned_once_where_it_has_most_context(seed):
    random = np.random.default_rng(seed)
    lengths, room = random.integers(0, 40, random.integers(1, 6)), int(random.integers(1, 15))
    cuts = windows.sliding(lengths, room, int(random.integers(1, room + 1)))
    got = graph_windows.most_context(in_graph(cuts), tf.constant(lengths, tf.int32)).to_list()
    best: dict[tuple[int, int], tuple[float, int]] = {}
    for row, (example, begin, length) in enumerate(zip(cuts.example, cuts.begin, cuts.length, strict=True)):
        for i in range(length):
            score = min(i, length - 1 - i) + 0.01 * length
            if score > best.get((example, begin + i), (-1.0, 0))[0]:
                best[example, begin + i] = score, row
    want = [[best[e, b + i][1] == row for i in range(n)]
            for row, (e, b, n) in enumerate(zip(cuts.example, cuts.begin, cuts.length, strict=True))]  # fmt: skip
    assert got == want


def test_the_example_of_the_case_book():
    """12 pieces, room 5, step 3: owners 0 0 0 0 1 1 1 2 2 2 3 3 (CASES O16)."""
    cuts = graph_windows.sliding(tf.constant([12]), tf.constant([5]), tf.constant([3]))
    mine = graph_windows.most_context(cuts, tf.constant([12]))
    owners = {b + i: row for row, (b, flags) in enumerate(zip(cuts.begin.numpy().tolist(), mine.to_list(), strict=True))
              for i, flag in enumerate(flags) if flag}  # fmt: skip
    assert [owners[i] for i in range(12)] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


def test_windows_at_word_borders_are_those_of_python():
    random = np.random.default_rng(0)
    call = tf.function(
        lambda first, lengths, room, stride: (
            cuts := graph_windows.by_words(first, lengths, room, stride),
            graph_windows.most_context(cuts, lengths, by_length=0.0).values,
        ),
        input_signature=[tf.TensorSpec([None], tf.bool), *(tf.TensorSpec(s, tf.int32) for s in ([None], [], []))],
    )
    for _ in range(60):
        lengths = random.integers(0, 30, random.integers(0, 6))
        first = random.random(lengths.sum()) < random.choice([0.1, 0.5, 1.0])
        first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        room = int(random.integers(1, 12))
        stride = int(random.integers(1, room + 1))
        wanted = windows.by_words(first, lengths, room, stride)
        found, owner = call(first, lengths.astype(np.int32), room, stride)
        for name in ("example", "begin", "length"):
            assert getattr(found, name).numpy().tolist() == getattr(wanted, name).tolist()
        assert owner.numpy().tolist() == windows.most_context(wanted, lengths).tolist()
