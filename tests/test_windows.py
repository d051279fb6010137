import json

import numpy as np
import pytest

from keras_bert_lab.errors import UserError
from keras_bert_lab.windows import Pieces, pack

CLS, SEP, PAD = 101, 102, 0


def pieces(lengths, seed=0):
    rng = np.random.default_rng(seed)
    n = int(np.sum(lengths))
    starts = rng.integers(0, 1000, n, dtype=np.int32)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Pieces(rng.integers(5, 99, n, dtype=np.int32), starts, starts + 2, splits)


def cut_longest_first(a, b, room):
    """The loop of the paper's code, on lists."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


def test_longest_first_is_the_loop_of_the_original_for_all_small_lengths():
    grid = [(i, j) for i in range(12) for j in range(12)]
    first, second = pieces([i for i, _ in grid], 1), pieces([j for _, j in grid], 2)
    for max_length in range(4, 28):
        w = pack(first, second, cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=max_length)
        for r in range(len(grid)):
            a, b = cut_longest_first(first[r][0], second[r][0], max_length - 3)
            part = slice(w.splits[r], w.splits[r + 1])
            assert w.input_ids[part].tolist() == [CLS, *a, SEP, *b, SEP]
            assert w.token_type_ids[part].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
            assert w.dropped[r] == sum(grid[r]) - len(a) - len(b)


def test_kept_lengths_of_the_oracle(shared):
    """Pretraining's own truncate_seq_pair cuts at a random end, but as much from each text."""
    cases = json.loads(shared("oracle/masking.json").read_text())["truncate_seq_pair"]
    assert len(cases) == 25
    for case in cases:
        first, second = pieces([len(case["tokens_a"])]), pieces([len(case["tokens_b"])])
        w = pack(first, second, cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=case["max_num_tokens"] + 3)
        kept = len(case["out_a"]) + 2, len(case["out_b"]) + 1
        assert ((w.token_type_ids == 0).sum(), (w.token_type_ids == 1).sum()) == kept


def test_only_second_leaves_the_first_alone_while_it_fits():
    w = pack(
        pieces([4, 9]), pieces([9, 9]), cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=10, truncation="only_second"
    )
    assert w.lengths.tolist() == [10, 10]
    assert (w.token_type_ids == 0).sum() == (4 + 2) + (7 + 2)  # the second row's first text has 9, room is 7
    assert w.dropped.tolist() == [6, 11]
    assert w.input_ids[w.splits[1:] - 1].tolist() == [SEP, SEP]


def test_a_long_text_keeps_cls_and_sep_and_says_what_was_dropped():
    w = pack(pieces([100]), cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=64)
    assert w.lengths.tolist() == [64] and w.dropped.tolist() == [38]
    assert (w.input_ids[0], w.input_ids[-1]) == (CLS, SEP)


def test_offsets_travel_and_are_minus_one_at_special_tokens():
    first, second = pieces([2, 0], 3), pieces([1, 2], 4)
    w = pack(first, second, cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=20)
    a, b = first[0], second[0]
    assert w.starts[:6].tolist() == [-1, *a[1], -1, *b[1], -1]
    assert w.ends[:6].tolist() == [-1, *a[2], -1, *b[2], -1]
    assert w.example.tolist() == [0, 1] and w.example.dtype == w.dropped.dtype == w.input_ids.dtype == np.int32


def test_pad_and_take():
    w = pack(pieces([3, 0, 5]), cls_id=CLS, sep_id=SEP, pad_id=7, max_length=20)
    batch = w.pad([2, 1], multiple=4)
    assert {k: v.shape for k, v in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), (2, 8)
    )
    assert all(v.dtype == np.int32 for v in batch.values())
    assert batch["input_ids"][1].tolist() == [CLS, SEP] + [7] * 6
    assert batch["attention_mask"].sum(1).tolist() == [7, 2]
    taken = w.take([2, 1])
    assert taken.example.tolist() == [2, 1]
    np.testing.assert_array_equal(taken.pad(length=8)["input_ids"], batch["input_ids"])
    assert w.take([]).pad()["input_ids"].shape == (0, 0)
    assert len(w.take([])) == 0


def test_pieces_take_concat_and_index():
    p = pieces([3, 0, 5])
    q = Pieces.concat([p.take([2, 0]), p.take([1]), p.take([])])
    assert len(q) == 3 and q.lengths.tolist() == [5, 3, 0]
    for mine, theirs in ((0, 2), (1, 0), (-1, 1)):
        for x, y in zip(q[mine], p[theirs], strict=True):
            np.testing.assert_array_equal(x, y)
    with pytest.raises(IndexError):
        p[3]
    assert len(Pieces.concat([])) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"truncation": "longest"}, "longest_first, only_second, error"),
        ({"max_length": 3}, "max_length=3"),
        ({"truncation": "error", "max_length": 8}, "row 1: has 8 pieces, there is room for 5"),
        ({"second": pieces([1])}, "2 first texts but 1 second"),
    ],
)
def test_requests_that_cannot_be_met(change, said):
    request = {"first": pieces([2, 4]), "second": pieces([1, 4]), "max_length": 10}
    with pytest.raises(UserError, match=said):
        pack(**{**request, **change}, cls_id=CLS, sep_id=SEP, pad_id=PAD)


def test_padding_to_less_than_a_row_is_refused():
    with pytest.raises(UserError, match="row 1: has 6 pieces, padded to 5"):
        pack(pieces([1, 4]), cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=10).pad(length=5)
