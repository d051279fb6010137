"""Which rows make up which batch, what they are filled up with, and that it is fast enough."""

import time

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import UserError, batching
from keras_bert_lab.head import Features
from keras_bert_lab.windows import Windows


def features(lengths, tokens=False, **more):
    lengths = np.asarray(lengths, np.int64)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n, rows = int(splits[-1]), len(lengths)
    ids = np.repeat(np.arange(rows), lengths).astype(np.int32) * 1000 + 7  # every piece tells its row
    windows = Windows(
        ids,
        np.ones(n, np.int32),
        ids,
        ids,
        splits,
        example=np.arange(rows, dtype=np.int32),
        dropped=np.zeros(rows, np.int32),
        begin=np.zeros(rows, np.int64),
        pad_id=99,
    )
    y, w = {"label": np.arange(rows, dtype=np.int32)}, {"label": np.full(rows, 0.5, np.float32)}
    if tokens:
        y["tag"], w["tag"] = np.arange(n, dtype=np.int32), np.full(n, 2, np.float32)
    return Features(windows, {**y, **more}, w)


def lengths(rows, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(2.7, 0.6, rows).astype(int) + 2, 3, 120)


@pytest.mark.parametrize("multiple", [1, 8])
def test_every_row_once_in_batches_of_like_length(multiple):
    long = lengths(10_000)
    plan = batching.plan(long, 32, shuffle=True, seed=3, multiple=multiple)
    assert len(plan) == 313 and sorted(plan.rows) == list(range(10_000))
    assert np.diff(plan.splits).tolist() == [32] * 312 + [16]
    for rows, padded, tokens in zip(plan, plan.padded, plan.tokens, strict=True):
        assert padded % multiple == 0 and padded - multiple < long[rows].max() <= padded
        assert tokens == long[rows].sum()
    fixed, random_order = (
        1 - long.mean() / 120,
        1 - long.mean() / np.mean([long[i : i + 32].max() for i in range(0, 10_000, 32)]),
    )
    print(
        f"padding: {plan.padding_share:.1%} in buckets, {random_order:.1%} in random batches, {fixed:.1%} at length 120"
    )
    assert batching.padding_share(plan) == plan.padding_share < (0.1 if multiple == 1 else 0.25) < random_order
    assert plan.padding_share == pytest.approx(1 - long.sum() / (plan.padded * 32).sum())


def test_order_is_random_and_reproducible():
    long = lengths(1000)
    orders = {(s, e): batching.plan(long, 8, shuffle=True, seed=s, epoch=e).rows for s in (0, 1) for e in (0, 1)}
    assert len({tuple(o) for o in orders.values()}) == 4
    assert (batching.plan(long, 8, shuffle=True, seed=1, epoch=1).rows == orders[1, 1]).all()
    padded = batching.plan(long, 8, shuffle=True).padded
    assert abs(np.corrcoef(padded, np.arange(len(padded)))[0, 1]) < 0.3  # no march from long to short


def test_plan_without_shuffling_and_for_prediction():
    long = lengths(777)
    plain = batching.plan(long, 10)
    assert (np.diff(long[plain.rows]) <= 0).all() and len(plain) == 78
    windows = features(long).windows
    plan = batching.ordered(windows, batch_tokens=512, most=20)
    sizes = np.diff(plan.splits)
    assert ((plan.padded * sizes <= 512) | (sizes == 1)).all() and sizes.max() == 20
    assert (plan.rows[plan.inverse] == np.arange(777)).all()
    assert [len(rows) for rows in plan] == sizes.tolist()
    assert len(batching.ordered(features([]).windows)) == 0


@pytest.mark.parametrize("rows", [1, 3, 7, 8, 9])
def test_last_batch_is_filled_with_copies_of_weight_0(rows):
    data = features(range(3, 3 + rows), tokens=True)
    seen, labelled = [], 0
    for x, y, w in batching.dataset(data, 4, shuffle=True):
        assert {len(a) for part in (x, y, w) for a in part.values()} == {4}
        real = w["label"].numpy() > 0
        mask = x["attention_mask"].numpy()
        assert (mask[:, 0] == 1).all()  # filler rows are as real as others
        assert (x["input_ids"].numpy()[~real] == x["input_ids"].numpy()[:1]).all()
        assert (w["tag"].numpy() == 2.0 * mask * real[:, None]).all()
        assert (x["input_ids"].numpy()[mask == 0] == 99).all() and (x["token_type_ids"].numpy() == mask).all()
        for row, label in enumerate(y["label"].numpy()):
            assert (x["input_ids"].numpy()[row][mask[row] == 1] == label * 1000 + 7).all()
            begin = data.windows.splits[label]
            assert (y["tag"].numpy()[row][mask[row] == 1] == begin + np.arange(mask[row].sum())).all()
        assert (y["tag"].numpy()[mask == 0] == 0).all()
        seen += y["label"].numpy()[real].tolist()
        labelled += int((w["tag"].numpy() > 0).sum())
    assert sorted(seen) == list(range(rows)) and labelled == len(data.windows.input_ids)


def test_dataset_counts_epochs_and_batches():
    data = batching.dataset(features(lengths(100), box=np.ones((100, 4), np.float32)), 8, shuffle=True, seed=5)
    assert int(data.cardinality()) == 13 == batching.steps(features(lengths(100)), 8)
    x, y, w = data.element_spec
    assert x["input_ids"].shape.as_list() == [None, None] and y["label"].shape.as_list() == [None]
    assert y["box"].shape.as_list() == [None, 4] and w["box"].shape.as_list() == [None]
    epochs = [np.concatenate([y["label"] for _, y, _ in data]) for _ in range(3)]
    for epoch, labels in enumerate(epochs):
        assert (labels[:100] == data.plan(epoch).rows).all()
    later = batching.dataset(features(lengths(100)), 8, shuffle=True, seed=5, epoch=2)
    assert (np.concatenate([y["label"] for _, y, _ in later]) == epochs[2]).all()


def test_says_what_it_did():
    assert batching.describe(features([5, 9, 17]), 2, 128).startswith(
        "3 rows of 5 to 17 tokens (mean 10.3) in 2 batches of 2; "
    )
    assert batching.describe(features([]), 2, 128) == "no rows"


def test_refuses():
    with pytest.raises(UserError, match="batch_size"):
        batching.dataset(features([3]), 0)
    with pytest.raises(UserError, match="targets of 'odd'"):
        batching.batch(features([3, 4], odd=np.zeros(3)), np.array([0]), 8)
    with pytest.raises(UserError, match="row 1: has 9 tokens"):
        batching.batch(features([3, 9]), np.array([0, 1]), 8)


def test_split_is_stratified():
    examples = [("a", i) for i in range(80)] + [("b", i) for i in range(19)] + [("c", 0)]
    rest, held = batching.split(examples, 0.1, seed=4, stratum=lambda e: e[0])
    assert sorted(rest + held) == sorted(examples) and len(held) == 10
    assert [sum(e[0] == s for e in held) for s in "abc"] == [8, 2, 0]
    assert rest == [e for e in examples if e in set(rest)]
    assert batching.split(examples, 0.1, 4, lambda e: e[0]) == (rest, held)
    assert batching.split(examples, 0.1, 5, lambda e: e[0]) != (rest, held)
    assert batching.split(examples, 0.0, 4) == (examples, [])


def test_never_starves_the_device():
    """At least 20,000 short examples a second from cached tokens, best of three epochs on whatever else runs."""
    data = batching.dataset(features(lengths(20_000)), 32, shuffle=True)
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in data:
            pass
        rates.append(20_000 / (time.perf_counter() - began))
    print(f"{max(rates):,.0f} examples/s")
    assert max(rates) > 20_000


def test_one_trace_for_all_lengths():
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return tf.reduce_sum(next(iterator)[0]["attention_mask"])

    data = batching.dataset(features(lengths(500)), 16, shuffle=True)
    iterator = iter(data)  # what Keras gives its step function
    assert sum(int(step(iterator)) for _ in range(len(data))) >= lengths(500).sum() and len(traces) == 1
