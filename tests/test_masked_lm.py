"""The masked-LM head: the contract, the original's numbers, what is masked, fill-mask, checkpoints, export."""

import dataclasses
import json
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bert_lab
from keras_bert_lab import batching, checkpoint, training
from keras_bert_lab.config import BertConfig
from keras_bert_lab.encoder import encode, mlm_logits, nsp_logits
from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, load_head
from keras_bert_lab.serving import PythonRun, Run
from keras_bert_lab.task import Task
from keras_bert_lab.testing import check_head, tiny_checkpoint, tiny_config, tiny_task, tiny_tokenizer, tiny_vocabulary
from keras_bert_lab.wordpiece import SPECIAL, Tokenizer

MaskedLM = load_head("masked_lm")
TEXTS = [
    "the film was good and the food was [MASK]",
    "a bad day",
    "never again: the staff and the room were so very [MASK] that we left, [MASK] not for the money of it",
    "[MASK]",
    "the room was dull",
    "the book is the best and the worst",
]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer().with_options(special_tokens=True)


@pytest.fixture(scope="module")
def uncased(shared):
    return Tokenizer.from_vocab(shared("oracle/tiny_en/vocab.txt"), lower_case=True, special_tokens=True)


def test_contract():
    seen = check_head("masked_lm", [Example(t) for t in TEXTS], options={"top_k": 3}, max_length=24)
    assert seen["loss after"] < seen["loss before"]


def without_seed(self, x, y=None, w=None, seed=None):
    return MaskedLM.prepare(self, x, y, w, None if seed is None else tf.zeros_like(seed))


def by_batch(self, x, y=None, w=None, seed=None):
    made = MaskedLM.prepare(self, x, y, w, seed)
    if seed is None:
        return made
    noise = tf.random.stateless_uniform(tf.shape(made[0]["input_ids"]), tf.cast(seed[0], tf.int32))
    return {**made[0], "input_ids": tf.where(noise < 0.1, 7, made[0]["input_ids"])}, *made[1:]


def of_nothing(self, x, y=None, w=None, seed=None):
    x, y, w = MaskedLM.prepare(self, x, y, w, seed)
    return x, y, None if w is None else {"logits": tf.ones_like(w["logits"])}


@pytest.mark.parametrize(("prepare", "clause"), [
    (without_seed, "draws anew for another seed"),
    (by_batch, "does not depend on padding"),
    (of_nothing, "rows of weight 0 keep it"),
])
def test_check_head_notices_wrong_draws(prepare, clause):
    broken = dataclasses.dataclass(frozen=True, kw_only=True)(type("Broken", (MaskedLM,), {"prepare": prepare}))
    with pytest.raises(AssertionError, match=clause):
        check_head(broken(), [Example(t) for t in TEXTS[:3]], max_length=24)


# ---- the original's numbers --------------------------------------------------------------------------------------


def test_loss_and_gradients_are_the_originals(shared):
    """Tolerance: 1e-5 for losses; for gradients 1e-5 of each variable's largest entry, as the oracle observed."""
    folder = shared("oracle/tiny_en")
    golden, gradients = np.load(folder / "golden.npz"), np.load(folder / "grads.npz")
    config = BertConfig.from_file(folder).replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    head, encoded = MaskedLM(), encode(config)
    outputs = {**head.outputs(encoded), "nsp": nsp_logits(encoded)}
    model = training.Model(inputs=encoded.inputs, outputs=outputs)
    audit = checkpoint.load(model, folder)
    assert not audit.fresh and "cls/predictions/output_bias" in audit.loaded
    nsp = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {**head.losses(), "nsp": nsp})
    worst, loss = 0.0, head.losses()["logits"]
    theirs = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids",
              "masked_lm_positions": "masked_lm_positions"}
    for batch in ("full", "b1", "b0"):  # the gradients are b0's
        x = {ours: tf.constant(golden[f"{batch}.{name}"], tf.int32) for ours, name in theirs.items()}
        y, w = golden[f"{batch}.masked_lm_ids"], golden[f"{batch}.masked_lm_weights"].astype(np.float32)
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            total = model.compute_loss(
                y={"logits": tf.constant(y), "nsp": tf.constant(golden[f"{batch}.next_sentence_labels"][:, 0])},
                y_pred=predicted, sample_weight={"logits": tf.constant(w), "nsp": None})
        each = loss.call(y, predicted["logits"]).numpy()
        worst = max(worst, float(np.abs(each - golden[f"{batch}.mlm_per_example_loss"]).max()),
                    abs(float(loss(y, predicted["logits"], w)) - float(golden[f"{batch}.mlm_loss"])),
                    abs(float(total) - float(golden[f"{batch}.total_loss"])))
    worst = max(worst, float(np.abs(tf.nn.log_softmax(predicted["logits"]) - golden["b0.mlm_log_probs"]).max()))
    assert worst <= 1e-5
    found, furthest = tape.gradient(total, model.trainable_variables), 0.0
    for variable, gradient in zip(model.trainable_variables, found, strict=True):
        name = variable.path if variable.path.startswith("cls/") else f"bert/{variable.path}"
        ours, key = tf.convert_to_tensor(gradient).numpy(), f"grad:{name}"
        if name == "bert/embeddings/word_embeddings":
            ours, key = ours[gradients["word_embeddings_rows"]], f"{key}:rows"
        gap, size = (float(np.abs(a).max()) for a in (ours - gradients[key], gradients[key]))
        if name.endswith("key/bias"):  # moves all scores of a query alike: its true gradient is 0, this is rounding
            assert gap < 1e-6
        else:
            furthest = max(furthest, gap / size)
    print(f"losses: {worst:.1e}; gradients, of the largest: {furthest:.1e}")
    assert furthest <= 1e-5


def masked(head, rows, tokenizer, epoch=0, weights=1.0, more=0):
    """What ``prepare`` makes of rows of ids: ids, positions and labels as arrays."""
    length = max(map(len, rows)) + more
    x = {name: np.zeros((len(rows), length), np.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for row, ids in enumerate(rows):
        x["input_ids"][row, : len(ids)], x["attention_mask"][row, : len(ids)] = ids, 1
    word = head.vocabulary.word[x["input_ids"]]
    y = {"logits": tf.constant(np.where(word, x["input_ids"], -100).astype(np.int32))}
    w = {"logits": tf.constant(np.where(word, np.float32(weights), np.float32(0)))}
    seeds = tf.constant([[epoch, row] for row in range(len(rows))], tf.int64)
    x, y, w = head.prepare(x, y, w, seeds)
    return (x["input_ids"].numpy(), x["masked_lm_positions"].numpy(), y["logits"].numpy(), w["logits"].numpy())


def test_as_many_places_as_the_original(shared, uncased):
    cases = json.loads(shared("oracle/masking.json").read_text("utf-8"))["create_masked_lm_predictions"]
    checked = 0
    for case in [case for case in cases if not case["do_whole_word_mask"]]:
        ids = [uncased.ids[token] for token in case["tokens"]]
        head = MaskedLM(rate=case["masked_lm_prob"], max_predictions=case["max_predictions_per_seq"])
        head = head.with_vocabulary(uncased)
        words = int(head.vocabulary.word[ids].sum())
        _, places, labels, weights = masked(head, [ids], uncased)
        assert (places >= 0).sum() == min(case["num_to_predict"], words) == weights.sum() == (labels >= 0).sum()
        checked += words >= case["num_to_predict"]
    assert checked >= 45


def test_shares_of_many_draws(shared, uncased):
    known = json.loads(shared("oracle/masking.json").read_text("utf-8"))["distribution"][0]
    ids = [uncased.ids[token] for token in known["tokens"]]
    head = MaskedLM().with_vocabulary(uncased)
    draws = known["draws"]
    new, places, labels, _ = masked(head, [ids] * draws, uncased)
    assert places.shape == (draws, 6) and (np.diff(places) > 0).all()  # as predictions_per_draw of the oracle
    got = np.take_along_axis(new, places, 1)
    assert (labels == np.array(ids)[places]).all()
    total = draws * 6
    shares = {"mask": (got == head.vocabulary.mask_id).mean(), "keep": (got == labels).mean()}
    for name, wanted in (("mask", 0.8), ("keep", 0.1)):
        assert abs(shares[name] - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / total), shares
    asked = np.zeros(new.shape, bool)
    np.put_along_axis(asked, places, True, 1)
    assert (new[~asked] == np.broadcast_to(ids, new.shape)[~asked]).all()
    # every word is asked for equally often, no special token ever
    times = np.bincount(places.ravel(), minlength=len(ids))
    word = head.vocabulary.word[ids]
    assert not times[~word].any()
    expected = total / word.sum()
    assert abs(times[word] - expected).max() < 5 * math.sqrt(expected)
    random = got[(got != head.vocabulary.mask_id) & (got != labels)]
    assert head.vocabulary.word[random].all()
    # uniform over the words: by quarters of the vocabulary
    quarter = np.searchsorted(head.vocabulary.words, random) * 4 // len(head.vocabulary.words)
    counts = np.bincount(quarter, minlength=4)
    assert ((counts - len(random) / 4) ** 2 / (len(random) / 4)).sum() < 16.3  # chi-square, 3 degrees, p = 0.001


def test_numbers_are_the_generators_written_in_plain_python():
    from keras_bert_lab.heads import masked_lm

    def mixed(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    seeds = [[0, 0], [0, 1], [2**32 - 1, 2**32 - 1], [123456789, 7]]
    for stream in (0, 2):
        ours = masked_lm._random(tf.constant(seeds, tf.int64), stream, tf.constant(9)).numpy()
        for (a, b), row in zip(seeds, ours, strict=True):
            start = mixed(mixed((a + 0x9E3779B9 * (stream + 1)) % 2**32) ^ b)
            assert row.tolist() == [mixed(mixed((start + c * 0x9E3779B9) % 2**32) ^ start) for c in range(1, 10)]


def test_nothing_but_words_is_masked_drawn_or_kept_for_the_loss(tokenizer):
    head = MaskedLM(rate=1.0, mask_share=0.0, random_share=1.0).with_vocabulary(tokenizer)
    tokens = tiny_vocabulary()
    forbidden = [i for i, t in enumerate(tokens) if t in SPECIAL or t.startswith("[unused")]
    assert [tokens[i] for i in np.flatnonzero(~head.vocabulary.word)] == [tokens[i] for i in forbidden]
    good = tokens.index("good")
    rows = [[tokenizer.cls_id, *forbidden, *[good] * 9, tokenizer.sep_id]] * 300
    new, places, labels, _ = masked(head, rows, tokenizer, more=5)
    assert set(labels[places >= 0]) == {good} and (places >= 0).sum(1).tolist() == [9] * 300
    seen = set(new[:, 1 + len(forbidden) : 10 + len(forbidden)].ravel())
    assert not seen & set(forbidden) and len(seen) > 150  # of about 180 words
    assert (new[:, : 1 + len(forbidden)] == rows[0][: 1 + len(forbidden)]).all() and not new[:, len(rows[0]) :].any()
    # nothing to mask, or weight 0: nothing is asked for
    for rows, weight in (([[2, 3], [tokenizer.cls_id, *forbidden]], 1.0), ([[good, good]], 0.0)):
        new, places, labels, weights = masked(head, rows, tokenizer, weights=weight)
        assert (places == -1).all() and (labels == -100).all() and not weights.any()


def test_vocabularies_with_lines_that_are_no_words():
    lines = ["[PAD]", "[unused1]", "[unused99]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    lines += ["a", "", "##", "b", "a", "[unusedx]"]
    tokenizer = Tokenizer("\n".join(lines).encode(), lower_case=True)
    assert [lines[i] for i in MaskedLM().with_vocabulary(tokenizer).vocabulary.words] == ["b", "a", "[unusedx]"]
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        MaskedLM().with_vocabulary(Tokenizer(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", lower_case=True))
    with pytest.raises(UserError, match="with_vocabulary"):
        MaskedLM().features([Example("a")], None)


# ---- a new mask every epoch, the same for the same seed --------------------------------------------------------------

WORDS = ["the", "a", "good", "bad", "film", "food", "was", "is", "and", "so", "very"]
LINES = [" ".join(np.random.default_rng(i).choice(WORDS, 4 + i % 9)) for i in range(30)]


def by_row(data):
    """{clean row: (ids, positions)} of an epoch; rows are told apart by what they say once unmasked."""
    out = {}
    for x, y, w in data:
        for ids, real, places, label, weight in zip(
            *(t.numpy() for t in (x["input_ids"], x["attention_mask"], x["masked_lm_positions"], y["logits"],
                                  w["logits"])), strict=True):
            if not weight.any():
                continue  # a filler
            there = places >= 0
            clean = ids.copy()
            clean[places[there]] = label[there]
            out[tuple(clean[real > 0])] = tuple(ids[real > 0]), tuple(places[there])
    return out


def test_masks_depend_on_seed_epoch_and_row_alone(tmp_path):
    task = tiny_task("masked_lm", directory=tmp_path / "tiny")
    texts = list(dict.fromkeys(LINES))
    data = task.dataset(texts, 8, shuffle=True, seed=3)
    first, second = by_row(data), by_row(data)
    assert len(first) == len(texts) and first.keys() == second.keys()
    assert sum(first[row] != second[row] for row in first) > len(texts) / 2
    again = task.dataset(texts, 8, shuffle=True, seed=3)
    assert by_row(again) == first and by_row(again) == second
    assert by_row(task.dataset(texts, 5, shuffle=True, seed=3)) == first  # any batch size, hence any number of devices
    assert by_row(task.dataset(texts, 8, shuffle=True, seed=4)) != first


def test_training_twice_gives_the_same_weights_and_learns(tmp_path):
    runs = []
    for _ in range(2):
        task = tiny_task("masked_lm", directory=tmp_path / "tiny")
        options = {"epochs": 2, "batch_size": 8, "learning_rate": 3e-3, "dev_fraction": 0.2, "verbose": 0}
        history = task.fit(LINES * 3, **options)
        runs.append((history, task))
    (history, task), (other, twin) = runs
    assert history == other and history["dev_loss"][-1] < history["dev_loss"][0]
    for a, b in zip(task.model.variables, twin.model.variables, strict=True):
        assert np.array_equal(a.numpy(), b.numpy()), a.path
    # scoring draws masks that depend on the texts alone: twice the same, in any order
    scores = task.evaluate(LINES)
    assert task.evaluate(LINES) == scores
    turned = task.evaluate(LINES[::-1])
    assert turned["places"] == scores["places"] and turned["loss"] == pytest.approx(scores["loss"], abs=1e-6)
    # and it is what Keras computes for the same masks: over the original's 15 %, halves to the even number
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["mean_log_probability"] == -scores["loss"]
    lengths = [len(task.text.tokenizer.encode(t)[0]) + 2 for t in LINES]
    assert scores["places"] == sum(max(1, round(0.15 * n)) for n in lengths)


def test_scores_are_kerass_for_the_same_masks(tmp_path):
    task = tiny_task("masked_lm", directory=tmp_path / "tiny")
    features = task.features(list(task.examples(LINES)))
    rows = np.arange(len(features.windows))
    x, y, w = tf.nest.map_structure(tf.constant, batching.batch(features, rows, 16))
    prepared = task.head.prepare(x, y, w, tf.constant(batching.fingerprints(features.windows)))
    task.model.compile("sgd", task.head.losses(), metrics=task.head.metrics())
    kept = task.model.evaluate(tf.data.Dataset.from_tensors(prepared), verbose=0, return_dict=True)
    scores = task.evaluate(LINES)
    assert scores["loss"] == pytest.approx(kept["loss"], abs=1e-5)
    assert scores["accuracy"] == pytest.approx(kept["accuracy"], abs=1e-6)


def test_an_epoch_in_which_nothing_can_be_masked_has_loss_0(tmp_path):
    task = tiny_task("masked_lm", directory=tmp_path / "tiny")
    task.model.compile("sgd", task.head.losses())
    before = [v.numpy() for v in task.model.variables]
    logs = task.model.fit(task.dataset(["[UNK] [UNK]", "[MASK]"], 2), verbose=0).history
    assert logs["loss"] == [0.0]
    assert all(np.array_equal(a, b) for a, b in zip(before, task.model.variables, strict=True))
    with pytest.raises(UserError, match="no piece"):
        task.evaluate(["[UNK] [UNK]"])


def largest(function):
    """Numbers of elements of every tensor of a traced function, those inside its functions too; where all is known."""
    graphs = [function.graph, *(f.graph for f in function.graph._functions.values())] \
        if hasattr(function.graph, "_functions") else [function.graph]
    return max(t.shape.num_elements() or 0 for g in graphs for op in g.get_operations() for t in op.outputs
               if t.shape.is_fully_defined())


def test_training_never_makes_logits_of_all_places(tmp_path):
    """Every tensor of a training step, forwards and backwards, with static shapes: none is as large as B * L * V."""
    config = tiny_config(vocab_size=5000)
    head, encoded = MaskedLM(), encode(config)
    model = training.Model(inputs=encoded.inputs, outputs=head.outputs(encoded))
    full = training.Model(inputs=encoded.inputs, outputs={"logits": mlm_logits(encoded)})
    rows, length, places = 4, 32, 5
    x = {name: tf.TensorSpec([rows, length], tf.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}

    def step(model, places):
        losses = head.losses()["logits"]

        def gradients(x, y):
            with tf.GradientTape() as tape:
                loss = losses(y, model(x, training=True)["logits"])
            return tape.gradient(loss, model.trainable_variables)

        given = {**x, "masked_lm_positions": tf.TensorSpec([rows, places], tf.int32)}
        return tf.function(gradients).get_concrete_function(given, tf.TensorSpec([rows, places], tf.int32))

    everywhere = rows * length * config.vocab_size
    assert largest(step(model, places)) < everywhere / 3
    assert largest(step(full, length)) >= everywhere  # the measurement sees what it looks for


# ---- fill-mask ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    return tiny_task("masked_lm", directory=tmp_path_factory.mktemp("filler"), top_k=3, max_length=24)


def by_hand(task, text):
    """(start, end, tokens, probabilities) of every [MASK], from logits of every piece and NumPy alone."""
    encoded = encode(task.config)
    model = keras.Model(encoded.inputs, {"all": mlm_logits(encoded)})
    for variable, other in zip(model.variables, task.model.variables, strict=True):
        variable.assign(other)
    ids, starts, ends = task.text.tokenizer.encode(text)
    room, tokens, out = task.text.max_length - 2, task.text.tokenizer.tokens, []
    word = np.array([t not in SPECIAL and not t.startswith("[unused") for t in tokens])
    for begin in range(0, max(len(ids), 1), room):
        row = np.array([[task.text.tokenizer.cls_id, *ids[begin : begin + room], task.text.tokenizer.sep_id]])
        given = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
        logits = model({k: tf.constant(v, tf.int32) for k, v in given.items()})["all"].numpy()[0].astype(np.float64)
        for at in np.flatnonzero(row[0] == task.text.tokenizer.mask_id):
            p = np.exp(logits[at] - logits[at].max())
            p /= p.sum()
            best = [i for i in np.argsort(-p, kind="stable") if word[i]][: task.head.top_k]
            out.append((starts[begin + at - 1], ends[begin + at - 1], [tokens[i] for i in best], p[best]))
    return out


LONG = "the [MASK] was " + "very " * 30 + "good [MASK] and " + "so " * 20 + "[MASK][MASK]"


def test_fill_mask_equals_logits_of_all_places(filler):
    texts = [*TEXTS, LONG, "", "no mask, [mask] is text"]
    for text, answer in zip(texts, filler.predict(texts), strict=True):
        wanted = by_hand(filler, text)
        assert len(answer["fills"]) == len(wanted) == text.count("[MASK]")
        for fill, (start, end, tokens, probabilities) in zip(answer["fills"], wanted, strict=True):
            assert text[fill["start"] : fill["end"]] == "[MASK]" and (fill["start"], fill["end"]) == (start, end)
            assert fill["tokens"] == tokens and np.abs(probabilities - fill["probabilities"]).max() < 1e-5


def test_the_models_further_input_is_asked_for(filler):
    with pytest.raises(UserError, match="masked_lm_positions not given.*prepare"):
        filler.model({"input_ids": [[4, 30, 5]]})


def test_special_tokens_are_one_token_here_and_text_elsewhere(tmp_path):
    path = tiny_checkpoint(tmp_path / "tiny")
    count = {}
    for name, given in (("masked_lm", {}), ("masked_lm", {"special_tokens": False}), ("classification", {})):
        task = Task.from_checkpoint(path, name, max_length=32, **given)
        ids = task.text.tokenizer.encode("hello [MASK] world [mask]")[0]
        count[name, given.get("special_tokens")] = ids.count(task.text.tokenizer.mask_id)
    assert count == {("masked_lm", None): 1, ("masked_lm", False): 0, ("classification", None): 0}


def test_ids_without_a_token_are_never_answered_or_drawn(tmp_path):
    """A table with 6 rows more than the vocabulary, whose bias is +1000: as in padded checkpoints."""
    words = len(tiny_vocabulary())
    path = tiny_checkpoint(tmp_path / "tiny", config=tiny_config(vocab_size=words + 6))
    lines = (path / "vocab.txt").read_text().splitlines()[:words]
    (path / "vocab.txt").write_text("\n".join(lines) + "\n")
    task = Task.from_checkpoint(path, "masked_lm", max_length=32, top_k=5)
    plain = task.predict(TEXTS)
    bias = next(v for v in task.model.variables if v.path == "cls/predictions/output_bias")
    bias.assign(bias.numpy() + 1e3 * (np.arange(words + 6) >= words))
    for one, other in zip(plain, task.predict(TEXTS), strict=True):
        for fill, before in zip(other["fills"], one["fills"], strict=True):
            assert fill["tokens"] == before["tokens"] and set(fill["tokens"]) <= set(lines) - set(SPECIAL)
            assert fill["probabilities"] == pytest.approx(before["probabilities"], abs=1e-6)
    assert task.head.vocabulary.words.max() < words
    with pytest.raises(UserError, match="top_k"):
        Task.from_checkpoint(path, "masked_lm", max_length=32, top_k=1000).predict(["[MASK]"])


def test_serving_equals_python(filler):
    from keras_bert_lab.graph_text import GraphTokenizer

    nasty = ["[MASK]" * 50, "[SEP] and [mask] and [MASK]\n[MASK]", "\u4e2d[MASK]\u56fd \U0001f600 [MASK]"]
    texts = [*TEXTS, LONG, "", *nasty]
    answers = filler.predict(texts)

    def model(x):
        return filler.head.infer(filler.model, x)

    runs = {"graph": Run(GraphTokenizer(filler.text.tokenizer), model, 24, "longest_first"),
            "python": PythonRun(filler.text.tokenizer, model, 24)}
    for name, run in runs.items():
        serve = tf.function(lambda texts, run=run: filler.head.serve({"text": texts}, run), autograph=False,
                            input_signature=[tf.TensorSpec([None], tf.string)])
        said = {k: v.numpy() for k, v in serve(tf.constant(texts)).items()}
        assert said["count"].tolist() == [len(a["fills"]) for a in answers]
        for row, answer in enumerate(answers):
            for m in range(said["starts"].shape[1]):
                if m >= said["count"][row]:
                    assert said["starts"][row, m] == said["ends"][row, m] == -1
                    assert not said["probabilities"][row, m].any()
                    assert set(said["tokens"][row, m]) == {b""}
                    continue
                fill = answer["fills"][m]
                assert (said["starts"][row, m], said["ends"][row, m]) == (fill["start"], fill["end"]), name
                assert [t.decode() for t in said["tokens"][row, m]] == fill["tokens"]
                assert np.abs(said["probabilities"][row, m] - fill["probabilities"]).max() < 1e-5
        for few in ([], ["no mask"]):
            said = serve(tf.constant(few, tf.string))
            assert said["count"].numpy().tolist() == [0] * len(few) and said["tokens"].shape == (len(few), 0, 3)


def test_ids_signature_answers_at_the_masks(filler):
    windows = filler.text(["the [MASK] was good"])
    said = filler.head.answers(filler.forward({k: tf.constant(v) for k, v in windows.pad().items()}))
    fill = filler.predict(["the [MASK] was good"])[0]["fills"][0]
    tokens = said["tokens"].numpy()[0]
    assert [t.decode() for t in tokens[2]] == fill["tokens"]
    assert (np.delete(tokens, 2, 0) == b"").all() and not np.delete(said["probabilities"].numpy()[0], 2, 0).any()


# ---- files and checkpoints -----------------------------------------------------------------------------------------


def test_files_of_text(tmp_path):
    plain = tmp_path / "corpus.txt"
    plain.write_bytes("\ufeffone\ttab\r\n\r\n  \ntwo\u2028same line\nnan\nlast".encode())
    head = MaskedLM()
    examples = list(head.read(plain))
    assert [e.text for e in examples] == ["one\ttab", "", "  ", "two\u2028same line", "nan", "last"]
    assert [e.where.rsplit(":", 1)[1] for e in head.usable(examples)] == ["1", "4", "5", "6"]
    for name, content in (("a.jsonl", '{"text": "x"}\n'), ("a.tsv", "id\ttext\n1\tx\n"), ("a.csv", 'text,id\n"x",1\n')):
        (tmp_path / name).write_text(content)
        assert [e.text for e in head.read(tmp_path / name)] == ["x"]
    (tmp_path / "wiki.train.tokens").write_text("x\n")
    assert [e.text for e in head.read(tmp_path / "wiki.train.tokens")] == ["x"]
    (tmp_path / "b.jsonl").write_text('{"text": 3}\n')
    with pytest.raises(UserError, match=r"b\.jsonl:1"):
        list(head.read(tmp_path / "b.jsonl"))


@pytest.mark.parametrize("options", [
    {"rate": 0}, {"rate": 1.5}, {"rate": True}, {"mask_share": 0.9, "random_share": 0.2}, {"top_k": 0},
    {"max_predictions": -1}, {"file_format": "xml"}, {"rates": 1},
])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError):
        MaskedLM.from_dict(options)


def test_long_texts_go_on_in_the_next_row_and_lose_nothing(filler):
    features = filler.features([Example(LONG), Example("good", weight=0.5), Example("")])
    windows = features.windows
    assert windows.example.tolist() == [0, 0, 0, 1, 2] and not windows.dropped.any()
    whole = filler.text.tokenizer.encode(LONG)[0]
    inner = [i for r in range(3) for i in windows.input_ids[windows.splits[r] + 1 : windows.splits[r + 1] - 1]]
    assert inner == whole
    assert sorted(set(features.w["logits"].tolist())) == [0.0, 0.5, 1.0]


def test_the_decoder_is_read_from_checkpoints(shared, tmp_path):
    """Original, Hugging Face (torch and TensorFlow): the same fills."""
    answers = []
    for name in ("oracle/tiny_en", "oracle/hf", "oracle/hf_tf/pretraining"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file in [*shared(name).iterdir(), shared("oracle/tiny_en/vocab.txt")]:
            if file.is_file() and not (folder / file.name).exists():
                (folder / file.name).symlink_to(file)
        task = Task.from_checkpoint(folder, "masked_lm", max_length=32, lower_case=True)
        answers.append(task.predict(["the manuscript was [MASK] beyond restoration ."])[0]["fills"][0])
        assert not task.audit.fresh and "cls/predictions/transform/dense/kernel" in task.audit.loaded
    for fill in answers[1:]:
        assert fill["tokens"] == answers[0]["tokens"]
        assert fill["probabilities"] == pytest.approx(answers[0]["probabilities"], abs=1e-5)


def test_a_checkpoint_without_a_decoder_gets_a_fresh_one_and_says_so(shared):
    task = Task.from_checkpoint(shared("oracle/tiny_zh"), "masked_lm", max_length=32)
    assert task.model is not None and len(task.audit.fresh) == 5
    assert "freshly initialized: cls/predictions/" in str(task.audit)


def test_continued_pretraining_goes_out_in_the_originals_form(tmp_path):
    base = tiny_checkpoint(tmp_path / "tiny")
    task = tiny_task("masked_lm", directory=tmp_path / "tiny")
    task.fit(LINES, epochs=1, batch_size=8, learning_rate=1e-3, dev_fraction=0.0, verbose=0)
    task.save(tmp_path / "task")
    again = keras_bert_lab.load(tmp_path / "task")
    assert again.predict(TEXTS) == task.predict(TEXTS)
    assert again.text.tokenizer.special_tokens and again.head == task.head
    again.save(tmp_path / "task", overwrite=True)  # what is carried along is carried on
    checkpoint.convert(tmp_path / "task", tmp_path / "out", to="bert")
    before = tf.train.load_checkpoint(str(base / "bert_model.ckpt"))
    after = tf.train.load_checkpoint(str(tmp_path / "out" / "bert_model.ckpt"))
    names = set(dict(tf.train.list_variables(str(base / "bert_model.ckpt")))) - {"global_step"}
    assert names <= set(dict(tf.train.list_variables(str(tmp_path / "out" / "bert_model.ckpt"))))
    for name in names:  # pooler and next-sentence head stay, all else was trained
        same = np.array_equal(before.get_tensor(name), after.get_tensor(name))
        assert same == name.startswith(("bert/pooler", "cls/seq_relationship")), name
    third = Task.from_checkpoint(tmp_path / "out", "masked_lm", max_length=32, lower_case=True)
    for one, other in zip(task.predict(TEXTS), third.predict(TEXTS), strict=True):
        assert [f["tokens"] for f in one["fills"]] == [f["tokens"] for f in other["fills"]]
    Task.from_checkpoint(tmp_path / "out", "classification", max_length=32, labels=["a", "b"]).predict(["good"])


@pytest.mark.slow
def test_the_tools(tmp_path):
    tiny_checkpoint(tmp_path / "tiny")
    (tmp_path / "corpus.txt").write_text("\n".join([*LINES[:15], "", *LINES[15:]]) + "\n")
    (tmp_path / "ask.txt").write_text("\n".join(TEXTS) + "\n")

    def tool(*arguments):
        command = [sys.executable, "-m", "keras_bert_lab.tools.main", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    said = tool("train", "--checkpoint=tiny", "--train=corpus.txt", "--head=masked_lm", "--output=task", "--epochs=2",
                "--batch_size=8", "--max_length=32", "--head_options={\"top_k\": 2}")
    assert "15 % of the pieces" in said and "perplexity" in said
    assert "loss" in tool("evaluate", "--task=task", "--data=corpus.txt", "--json=scores.json")
    assert tool("evaluate", "--task=task", "--data=corpus.txt", "--json=again.json")
    assert (tmp_path / "scores.json").read_text() == (tmp_path / "again.json").read_text()
    tool("predict", "--task=task", "--data=ask.txt", "--output=answers.jsonl")
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [len(a["fills"]) for a in answers] == [t.count("[MASK]") for t in TEXTS]
    assert "largest difference" in tool("export", "--task=task", "--data=ask.txt")
    assert "written" in tool("convert", "task", "out", "--to=bert", "--verify")
