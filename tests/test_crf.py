"""The CRF against enumeration of all sequences, its gradient against differences, and what breaks other CRFs."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import crf
from keras_bert_lab.losses import Accuracy, SparseCategoricalCrossentropy
from keras_bert_lab.tags import broken, labels, legal

log_likelihood, viterbi = tf.function(crf.log_likelihood), tf.function(crf.viterbi)
log_probabilities = tf.function(crf.log_probabilities)


def random_crf(rng, batch, length, classes, scale=1.0, rows=False):
    """emissions, tags, mask, transitions, start, end; with ``rows`` every row has scores of its own."""

    def draw(*shape):
        return tf.constant(rng.normal(0, scale, shape), tf.float32)

    lead = (batch,) if rows else ()
    mask = rng.random((batch, length)) < 0.6
    tags = rng.integers(0, classes, (batch, length))
    scores = draw(*lead, classes, classes), draw(*lead, classes), draw(*lead, classes)
    return draw(batch, length, classes), tf.constant(tags), tf.constant(mask), *scores


def enumerated(emissions, mask, transitions, start, end):
    """{sequence: score} of one row, over all sequences, in float64."""
    at = np.flatnonzero(mask)
    e, t, s, f = (np.asarray(v, np.float64) for v in (emissions, transitions, start, end))
    if not len(at):
        return {(): 0.0}


    def score(y):
        steps = sum(e[p, k] for p, k in zip(at, y, strict=True)) + sum(t[i, j] for i, j in itertools.pairwise(y))
        return s[y[0]] + f[y[-1]] + steps

    return {y: score(y) for y in itertools.product(range(e.shape[1]), repeat=len(at))}


def log_sum(scores):
    return np.logaddexp.reduce(list(scores))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_likelihood_and_best_sequence_are_those_of_enumeration(seed, rows):
    rng = np.random.default_rng(seed)
    e, tags, mask, t, s, f = random_crf(rng, 7, 6, 3, scale=3.0, rows=rows)
    mask = mask.numpy()
    mask[0], mask[1], mask[2] = False, True, [0, 0, 1, 0, 1, 0]  # none, all, gaps before, between and behind
    found = log_likelihood(e, tags, mask, t, s, f).numpy()
    best, score = (v.numpy() for v in viterbi(e, mask, t, s, f))
    marginal, conditional = (v.numpy() for v in log_probabilities(e, tags, mask, t, s, f))
    for b in range(len(mask)):
        own = [v[b] if rows else v for v in (t, s, f)]
        all_scores = enumerated(e[b], mask[b], *own)
        y = tuple(tags.numpy()[b][mask[b]])
        assert found[b] == pytest.approx(all_scores[y] - log_sum(all_scores.values()), abs=2e-5)
        assert tuple(best[b][mask[b]]) == max(all_scores, key=all_scores.get)
        assert score[b] == pytest.approx(max(all_scores.values()), abs=2e-5)
        assert not best[b][~mask[b]].any() and not marginal[b][~mask[b]].any()
        assert conditional[b].sum() == pytest.approx(found[b], abs=2e-5)  # the chain rule
        for place, p in enumerate(np.flatnonzero(mask[b])):
            same = log_sum(v for k, v in all_scores.items() if k[place] == y[place])
            assert marginal[b, p] == pytest.approx(same - log_sum(all_scores.values()), abs=2e-5)
            if place:
                both = log_sum(v for k, v in all_scores.items() if k[place - 1 : place + 1] == y[place - 1 : place + 1])
                one = log_sum(v for k, v in all_scores.items() if k[place - 1] == y[place - 1])
                assert conditional[b, p] == pytest.approx(both - one, abs=2e-5)


@pytest.mark.parametrize("rows", [False, True])
def test_the_gradient_is_exact(rows):
    """The expected counts by hand, and automatic differentiation of the enumeration."""
    rng = np.random.default_rng(5)
    e, tags, mask, *scores = random_crf(rng, 4, 5, 3, rows=rows)
    mask = mask.numpy()
    mask[0] = False
    weights = tf.constant([3.0, 1.0, 0.0, 2.0])

    @tf.function
    def ours(e, t, s, f):
        with tf.GradientTape() as tape:
            tape.watch([e, t, s, f])
            loss = -tf.reduce_sum(weights * crf.log_likelihood(e, tags, mask, t, s, f))
        return loss, tape.gradient(loss, [e, t, s, f])

    def plain(e, t, s, f):
        loss = 0.0
        for b in range(4):
            at = np.flatnonzero(mask[b])
            if not len(at):
                continue
            tb, sb, fb = (v[b] if rows else v for v in (t, s, f))
            total = {}
            for y in itertools.product(range(3), repeat=len(at)):
                score = sb[y[0]] + fb[y[-1]] + tf.add_n([e[b, p, k] for p, k in zip(at, y, strict=True)])
                total[y] = score + sum((tb[i, j] for i, j in itertools.pairwise(y)), tf.constant(0.0, e.dtype))
            loss -= tf.cast(weights[b], e.dtype) * (
                total[tuple(tags.numpy()[b][mask[b]])] - tf.reduce_logsumexp(list(total.values()))
            )
        return loss

    doubles = [tf.cast(v, tf.float64) for v in (e, *scores)]
    with tf.GradientTape() as tape:
        tape.watch(doubles)
        wanted = plain(*doubles)
    loss, gradients = ours(e, *scores)
    assert float(loss) == pytest.approx(float(wanted), abs=1e-4)
    for a, b in zip(gradients, tape.gradient(wanted, doubles), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_gaps_are_as_if_they_were_not_there():
    rng = np.random.default_rng(1)
    e, tags, mask, *scores = random_crf(rng, 5, 40, 4)
    keep = mask.numpy()
    for b in range(5):
        at = np.flatnonzero(keep[b])
        e_b, tags_b, all_ = tf.gather(e[b], at)[None], tf.gather(tags[b], at)[None], np.ones((1, len(at)), bool)
        alone = crf.log_likelihood(e_b, tags_b, all_, *scores)
        assert float(alone[0]) == pytest.approx(float(log_likelihood(e, tags, mask, *scores)[b]), abs=1e-4)
        best = viterbi(e, mask, *scores)[0].numpy()[b]
        assert best[at].tolist() == crf.viterbi(e_b, all_, *scores)[0].numpy()[0].tolist()
    # whatever stands in the gaps, NaN included, changes nothing
    other = tf.where(mask[..., None], e, np.nan)
    odd = tf.where(mask, tags, -100)
    np.testing.assert_array_equal(
        log_likelihood(other, odd, mask, *scores), log_likelihood(e, tags, mask, *scores)
    )


@pytest.mark.parametrize("length", [127, 128, 129, 300, 1000])
def test_long_sequences(length):
    """Beyond what fits into an int8, and as exact as at the beginning: against a plain loop in float64."""
    rng = np.random.default_rng(length)
    e, tags, _, t, s, f = random_crf(rng, 2, length, 4, scale=2.0)
    lengths = np.array([length, length - 3])
    mask = np.arange(length) < lengths[:, None]
    found, (best, score) = log_likelihood(e, tags, mask, t, s, f), viterbi(e, mask, t, s, f)
    marginal, _ = log_probabilities(e, tags, mask, t, s, f)
    t, s, f = (np.asarray(v, np.float64) for v in (t, s, f))
    for b, n in enumerate(lengths):
        eb, y = np.asarray(e[b], np.float64), tags.numpy()[b]
        alpha, top = s + eb[0], s + eb[0]
        forward = [alpha]
        for p in range(1, n):
            alpha = np.logaddexp.reduce(alpha[:, None] + t, 0) + eb[p]
            top = (top[:, None] + t).max(0) + eb[p]
            forward.append(alpha)
        gold = s[y[0]] + f[y[n - 1]] + eb[np.arange(n), y[:n]].sum() + t[y[: n - 1], y[1:n]].sum()
        z = np.logaddexp.reduce(alpha + f)
        assert float(found[b]) == pytest.approx(gold - z, rel=2e-6)
        assert float(score[b]) == pytest.approx((top + f).max(), rel=2e-6)
        path = best.numpy()[b][:n]
        own = s[path[0]] + f[path[-1]] + eb[np.arange(n), path].sum() + t[path[:-1], path[1:]].sum()
        assert own == pytest.approx((top + f).max(), rel=1e-9)
        beta = f
        for p in range(n - 1, 0, -1):
            assert float(marginal[b, p]) == pytest.approx((forward[p] + beta)[y[p]] - z, abs=1e-5)
            beta = np.logaddexp.reduce(t + (eb[p] + beta)[None], 1)


def test_nothing_to_tag():
    t, v = tf.random.normal([3, 3]), tf.random.normal([3])
    for shape in ((0, 4, 3), (2, 0, 3), (0, 0, 3), (2, 4, 3)):
        e, mask = tf.random.normal(shape), tf.zeros(shape[:2], tf.bool)
        with tf.GradientTape() as tape:
            tape.watch([e, t, v])
            found = crf.log_likelihood(e, tf.zeros(shape[:2], tf.int32), mask, t, v, v)
        assert found.shape == shape[:1] and not found.numpy().any()
        assert not any(np.any(g) for g in tape.gradient(found, [e, t, v]))
        best, score = crf.viterbi(e, mask, t, v, v)
        assert best.shape == shape[:2] and not best.numpy().any() and not score.numpy().any()
        assert crf.log_probabilities(e, best, mask, t, v, v)[0].shape == shape[:2]
    for length in (0, 1, 4):  # in a graph of free shapes, too
        specs = [tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, None], tf.bool)]
        call = tf.function(lambda e, mask: crf.viterbi(e, mask, t, v, v), input_signature=specs)
        e, mask = tf.random.normal([2, length, 3]), tf.ones([2, length], tf.bool)
        assert call(e, mask)[0].shape == (2, length) and call(e[:0], mask[:0])[0].shape == (0, length)
    one, _ = crf.viterbi([[[0.0, 1.0, 0.5]]], [[True]], t, [0.0, 0.0, 1.0], [0.0, 0.0, 0.0])
    assert one.numpy().tolist() == [[2]]  # the start counts


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES", "BILOU", "BMES"])
def test_rules_are_kept(scheme):
    """CASES O15: of 1000 random score matrices none yields an illegal sequence; the best legal one comes out."""
    names = labels(["X", "Y"], scheme)
    start, transition, end = legal(scheme, names)
    rng = np.random.default_rng(0)
    e = rng.normal(0, 5, (1000, 12, len(names))).astype(np.float32)
    e[:10] *= 1e4  # however strongly they ask for it
    mask = np.arange(12) < rng.integers(0, 13, 1000)[:, None]
    t, s, f = crf.rules(start, transition, end)
    best, score = (v.numpy() for v in viterbi(e, mask, t, s, f))
    rows = [[names[k] for k in row[keep]] for row, keep in zip(best, mask, strict=True)]
    assert all(broken(row, scheme) is None for row in rows)
    free = e.argmax(-1)
    assert sum(broken([names[k] for k in row[m]], scheme) is not None for row, m in zip(free, mask, strict=True)) > 500
    for b in range(20, 40):
        if 0 < mask[b].sum() <= 5:
            every = enumerated(e[b], mask[b], t, s, f)
            assert tuple(best[b][mask[b]]) == max(every, key=every.get)
            assert score[b] == pytest.approx(max(every.values()), rel=1e-6)
    marginal, conditional = (v.numpy() for v in log_probabilities(e, best, mask, t, s, f))
    assert np.isfinite(marginal).all() and (marginal <= 1e-6).all() and np.isfinite(conditional).all()
    assert np.isfinite(log_likelihood(e, best, mask, t, s, f)).all()
    assert np.all(best == viterbi(e, mask, t, s, f)[0])


def test_a_table_of_zeros_is_a_softmax_a_place():
    rng = np.random.default_rng(2)
    e, tags, mask, *_ = random_crf(rng, 6, 9, 5)
    y = tf.where(mask, tags, -100)
    loss = crf.CrfLoss("table").call(y, e, table=tf.zeros([6, 7, 5]))
    plain = SparseCategoricalCrossentropy().call(y, e)
    np.testing.assert_allclose(tf.reduce_sum(loss, 1), tf.reduce_sum(plain, 1), atol=1e-5)
    assert not loss.numpy()[~mask.numpy()].any()
    assert np.allclose(loss.numpy().sum() / mask.numpy().sum(), SparseCategoricalCrossentropy()(y, e))
    best, _ = viterbi(e, mask, tf.zeros([5, 5]), tf.zeros(5), tf.zeros(5))
    np.testing.assert_array_equal(best, np.where(mask, e.numpy().argmax(-1), 0))


def test_the_loss_is_the_likelihood_spread_over_labelled_places():
    rng = np.random.default_rng(3)
    e, tags, mask, t, s, f = random_crf(rng, 4, 8, 3)
    y = tf.where(mask, tags, -100)
    table = tf.tile(tf.concat([t, s[None], f[None]], 0)[None], [4, 1, 1])
    each = crf.CrfLoss().call(tf.cast(y, tf.float32), e, crf=table).numpy()  # Keras gives losses their own dtype
    np.testing.assert_allclose(each.sum(1), -log_likelihood(e, tags, mask, t, s, f), atol=1e-5)
    for row, keep in zip(each, mask.numpy(), strict=True):
        assert len(set(row[keep].tolist())) <= 1


def test_the_layer_learns_and_is_saved(tmp_path):
    """Emissions say nothing; which tag follows which is all there is to learn. As ``training.Model`` gives it."""
    from keras_bert_lab.training import ExactModel

    keras.utils.set_random_seed(0)
    given = keras.Input([None, 3])
    emissions = keras.layers.Dense(3, use_bias=False, name="emissions")(given)
    model = ExactModel(inputs=given, outputs={"table": crf.Crf(name="crf")(emissions), "tags": emissions})
    assert {v.path for v in model.variables} == {"emissions/kernel", "crf/transitions", "crf/start", "crf/end"}
    x = np.zeros([16, 7, 3], np.float32)
    y = np.tile(np.arange(7) % 3, (16, 1)).astype(np.int32)  # 0 1 2 0 1 2 0
    w = np.ones_like(y, np.float32)
    y[:, 6], w[3:, 5] = -100, 0
    metrics = {"tags": [Accuracy()]}
    model.compile(keras.optimizers.Adam(0.3), {"tags": crf.CrfLoss("table")}, metrics=metrics, accumulate=2)
    losses = model.fit(x, {"tags": y}, sample_weight={"tags": w}, epochs=25, verbose=0).history["loss"]
    assert losses[0] == pytest.approx(np.log(3), abs=1e-5) and losses[-1] < 0.05
    seen = model.evaluate(x, {"tags": y}, sample_weight={"tags": w}, verbose=0, return_dict=True)
    number = w.sum() - 16  # places with a label and a weight
    assert seen["loss"] < 0.05, seen
    assert seen["accuracy"] == pytest.approx(w[:, [0, 3]].sum() / number)  # emissions are 0: all say tag 0
    out = model(x[:2])
    best, _ = crf.viterbi(out["tags"], np.ones([2, 7], bool), *crf.unpack(out["table"]))
    assert best.numpy().tolist() == [[0, 1, 2, 0, 1, 2, 0]] * 2
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again(x[:2])["table"], out["table"])
    assert model(x[:0])["table"].shape == (0, 5, 3)


def test_a_faster_table_has_the_same_gradient():
    e, tags, mask, t, s, f = random_crf(np.random.default_rng(0), 3, 5, 3)
    values = [v.numpy() for v in (t, s, f)]
    found = []
    for rate in (1.0, 8.0):
        layer = crf.Crf(rate=rate, name="crf")
        layer.build(e.shape)
        for variable, value in zip((layer.transitions, layer.start, layer.end), values, strict=True):
            variable.assign(value / rate)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(crf.log_likelihood(e, tags, mask, *crf.unpack(layer(e))))
        found.append((loss, *tape.gradient(loss, [v.value for v in layer.trainable_variables])))
        assert crf.Crf.from_config(layer.get_config()).rate == rate
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
