"""The question answering head: targets, loss, checkpoints, and its answers in Python and in the graph."""

import dataclasses
import json
import math
import re
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import Task, UserError, checkpoint, load, load_head
from keras_bert_lab.encoder import encode
from keras_bert_lab.export import NASTY
from keras_bert_lab.graph_text import GraphTokenizer
from keras_bert_lab.head import Example
from keras_bert_lab.serving import PythonRun, Run
from keras_bert_lab.task import Text
from keras_bert_lab.testing import check_head, tiny_checkpoint, tiny_task, tiny_tokenizer

QaSpan = load_head("qa_span")
TOKENIZER = tiny_tokenizer()
TEXT = Text(TOKENIZER, 32, "longest_first")
LONG = "the film was good and the food was bad but the staff on the second day was so very fine that we never left"
EXAMPLES = [
    Example("what was good", LONG, gold=(("film", 4),), where="x:1", fields={"id": "a"}),
    Example("what was bad", LONG, gold=(("food", LONG.index("food")),), where="x:2", fields={"id": "b"}),
    Example("who was fine", LONG, gold=(("the staff", LONG.index("the staff")),), where="x:3"),
    Example("how was the book", "a dull room", gold=(), where="x:4"),
    Example("which room", "  a dull room", gold=(("room", 9),), where="x:5"),
]


def fitted(**options):
    return QaSpan(**options).fit(EXAMPLES)


# ---- the contract ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"doc_stride": 5}, {"impossible": False, "n_best": 1, "language": "zh"}]
)
def test_contract(options):
    print(check_head("qa_span", EXAMPLES, options=options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"doc_stride": 0}, "doc_stride.*is 0"),
        ({"n_best": True}, "n_best.*is True"),
        ({"max_answer_length": 2.5}, "max_answer_length.*is 2.5"),
        ({"impossible": "maybe"}, "impossible.*'maybe'"),
        ({"threshold": math.inf}, "threshold.*finite"),
        ({"language": "fr"}, "language.*en, zh"),
        ({"bad_rows": "ignore"}, "bad_rows"),
        ({"stride": 5}, "no such option.*doc_stride"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(UserError, match=words):
        QaSpan.from_dict(options)


# ---- data --------------------------------------------------------------------------------------------------------


def test_whether_questions_may_have_no_answer_is_seen_from_the_data():
    assert fitted().impossible is True and QaSpan().fit(EXAMPLES[:3]).impossible is False
    assert QaSpan(impossible=True).fit(EXAMPLES[:3]).impossible is True
    with pytest.raises(UserError, match="there are none"):
        QaSpan().fit([])


def shown(features, row, start="start_logits", end="end_logits"):
    """The characters of the context that a row's targets stand for; None for [CLS]."""
    w = features.windows
    first, last = (int(features.y[k][row]) for k in (start, end))
    if first == last == 0:
        return None
    return int(w.starts[w.splits[row] + first]), int(w.ends[w.splits[row] + last])


def test_targets_lead_back_to_the_answer_in_every_window_that_holds_it():
    head = fitted(doc_stride=6)
    features = head.features(EXAMPLES, TEXT)
    windows = features.windows
    assert windows.lengths.max() <= 32 and np.bincount(windows.example)[0] > 1
    for n, example in enumerate(EXAMPLES):
        rows = np.flatnonzero(windows.example == n)
        found = {shown(features, row) for row in rows} - {None}
        if example.gold:
            text, at = example.gold[0]
            assert found == {(at, at + len(text))}, example
        else:
            assert not found
    for row in range(len(windows)):  # the whole answer is in the window, or [CLS] is meant
        part = slice(windows.splits[row], windows.splits[row + 1])
        inside = windows.starts[part][windows.token_type_ids[part] == 1]
        example = EXAMPLES[windows.example[row]]
        if example.gold and shown(features, row) is None:
            text, at = example.gold[0]
            assert inside[0] > at or windows.ends[part].max() < at + len(text) or at + len(text) > windows.ends[
                part][:-1][windows.token_type_ids[part][:-1] == 1].max()  # fmt: skip


@pytest.mark.parametrize(
    ("context", "answer", "trained"),
    [
        ("   the film was good", "the film", "the film"),  # blanks before it
        ("good film, bad food.", "good", "good"),  # the first word
        ("good film, bad food.", "food", "food"),  # the last word, without the final period
        ("good film, bad food.", "food.", "food."),
        ("the japanese industry", "japan", "japan"),  # pieces from a word's begin on
        ("the japanese industry", "pan", "japanese"),  # inside a word: the whole word is learned
    ],
)
def test_first_last_and_inner_words(context, answer, trained):
    example = Example("what", context, gold=((answer, context.index(answer)),))
    features = fitted().features([example], TEXT)
    first, last = shown(features, 0)
    assert context[first:last] == trained and features.w["start_logits"].tolist() == [1.0]


def test_what_cannot_be_learned_has_no_weight_and_is_scored_all_the_same():
    wrong = [
        dataclasses.replace(EXAMPLES[0], gold=(("film", 5),)),  # one off
        dataclasses.replace(EXAMPLES[0], gold=(("cinema", -1),)),
        dataclasses.replace(EXAMPLES[0], gold=(("\u0301", 0),), pair="\u0301 film"),  # characters without a piece
        dataclasses.replace(EXAMPLES[0], text=" "),
        dataclasses.replace(EXAMPLES[0], gold=None),
    ]
    head = fitted()
    features = head.features(wrong, TEXT)
    assert not features.w["start_logits"].any() and not features.w["end_logits"].any()
    assert len(list(head.usable(wrong[:4]))) == 4
    with pytest.warns(UserWarning, match="1 rows skipped: no answer is given"):
        assert len(list(head.usable(wrong))) == 4
    with pytest.raises(UserError, match=r"rows that cannot be used.*x:1"):
        list(dataclasses.replace(head, bad_rows="error").usable(wrong[:1]))
    answers = [{"text": t, "null_odds": -1.0} for t in ("film", "cinema", "food", "x")]
    scores = head.score(wrong[:4], answers)
    assert scores["total"] == 4 and scores["exact"] == 50.0


def test_a_question_that_leaves_no_room_is_refused():
    with pytest.raises(UserError, match=r"x:1.*61 pieces.*room for 0 .*max_length 32.*max_query_length to 28"):
        fitted().features([dataclasses.replace(EXAMPLES[0], text="good " * 61)], TEXT)
    with pytest.raises(UserError, match="no context"):
        fitted().features([Example("what", gold=())], TEXT)
    cut = fitted(max_query_length=10).features([dataclasses.replace(EXAMPLES[0], text="good " * 61)], TEXT).windows
    assert (cut.token_type_ids[: cut.lengths[0]] == 0).sum() == 12


def test_files(tmp_path):
    squad = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": LONG, "qas": [
        {"id": "1", "question": "what was good", "answers": [{"text": "film", "answer_start": 4}]},
        {"id": "2", "question": "what was bad", "answers": [{"text": "food", "answer_start": 3}]},
        {"id": "3", "question": "how was the book", "answers": [], "is_impossible": True},
    ]}]}]}  # fmt: skip
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    with pytest.warns(UserWarning, match=r"1 .*2"):
        found = list(QaSpan().read(tmp_path / "squad.json"))
    assert [e.gold for e in found] == [(("film", 4),), (("food", 3),), ()]
    assert [e.fields["id"] for e in found] == ["1", "2", "3"] and found[0].pair == LONG
    (tmp_path / "a.tsv").write_text(f"question\tcontext\nwhat was good\t{LONG}\n\t\n")
    plain = list(QaSpan().read(tmp_path / "a.tsv"))
    assert [(e.text, e.pair, e.gold) for e in plain] == [("what was good", LONG, None), ("", "", None)]
    rows = [{"question": "q", "context": "a b", "answers": {"text": ["b"], "answer_start": [2]}, "id": "n"},
            {"question": "q", "context": "a b", "answers": []}]  # fmt: skip
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = list(QaSpan().read(tmp_path / "b.jsonl"))
    head = QaSpan().fit(said)
    assert head.impossible and head.features(said, TEXT).y["start_logits"].tolist() == [4, 0]
    with pytest.raises(UserError, match="gold answer 'a'"):
        QaSpan().fit([Example("q", "a b", gold=["a", "b"])])


# ---- network -----------------------------------------------------------------------------------------------------


def model_of(config, head=None):
    encoded = encode(config)
    return keras.Model(encoded.inputs, (head or fitted()).outputs(encoded))


@pytest.mark.parametrize("batch", ["b0", "b1"])
def test_logits_and_loss_are_the_originals(shared, batch):
    source = checkpoint.open_checkpoint(shared("oracle/tiny_en"))
    model = model_of(source.config)
    audit = checkpoint.load(model, source, fresh=["cls/squad/*"])
    assert set(audit.fresh) == {"cls/squad/output_weights", "cls/squad/output_bias"}
    with np.load(shared("oracle/tiny_en/golden.npz")) as golden:
        want = {k.removeprefix(f"{batch}."): golden[k] for k in golden.files}
    for variable in model.variables:
        if variable.path.startswith("cls/squad/"):
            variable.assign(want[variable.path.removeprefix("cls/").replace("/", ".")])
    mask = want["input_mask"]
    got = model({"input_ids": want["input_ids"], "attention_mask": mask, "token_type_ids": want["segment_ids"]})
    for side in ("start", "end"):
        gap = np.abs(np.asarray(got[f"{side}_logits"]) - want[f"squad_{side}_logits"])[mask > 0]
        assert gap.max() < 2e-5
        assert (np.asarray(got[f"{side}_logits"])[mask == 0] < -9999).all()
    # the original's softmax runs over padding, too: with its logits as they are, the loss is its
    losses = fitted().losses()
    loss = sum(np.mean(losses[f"{side}_logits"].call(want[f"squad_{side}_positions"], want[f"squad_{side}_logits"]))
               for side in ("start", "end"))  # fmt: skip
    assert loss == pytest.approx(want["squad_loss"], abs=1e-5)


def test_a_squad_checkpoint_of_the_original_brings_its_head(tmp_path):
    folder = tiny_checkpoint(tmp_path / "tiny")
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    tensors = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map() if not n.startswith("cls/")}
    random = np.random.default_rng(0)
    head = {"cls/squad/output_weights": random.normal(size=(2, 32)).astype(np.float32),
            "cls/squad/output_bias": random.normal(size=2).astype(np.float32)}  # fmt: skip
    tensors |= head
    tf.raw_ops.SaveV2(prefix=str(folder / "bert_model.ckpt"), tensor_names=list(tensors),
                      shape_and_slices=[""] * len(tensors),
                      tensors=list(map(tf.constant, tensors.values())))  # fmt: skip
    task = Task.from_checkpoint(folder, "qa_span", max_length=32, impossible=True)
    ours = {v.path: v.numpy() for v in task.model.variables}
    for name, value in head.items():
        np.testing.assert_array_equal(ours[name], value)
    fresh = Task.from_checkpoint(folder, "qa_span", max_length=32, impossible=True, fresh_head=True)
    assert not np.array_equal(next(v for v in fresh.model.variables if "output_weights" in v.path), head[
        "cls/squad/output_weights"])  # fmt: skip


def test_the_qa_outputs_of_hugging_face_are_read(shared):
    source = checkpoint.open_checkpoint(shared("oracle/hf_tf/qa/tf_model.h5"))
    model = model_of(source.config)
    assert not checkpoint.load(model, source).unused
    with np.load(shared("oracle/tiny_en/golden.npz")) as golden:
        mask = golden["b0.input_mask"]
        got = model({"input_ids": golden["b0.input_ids"], "attention_mask": mask,
                     "token_type_ids": golden["b0.segment_ids"]})  # fmt: skip
    with np.load(shared("oracle/hf_tf/outputs.npz")) as want:
        for side in ("start", "end"):
            gap = np.abs(np.asarray(got[f"{side}_logits"]) - want[f"qa.{side}_logits"])[mask > 0]
            assert gap.max() < 2e-5


def test_target_is_the_score_of_the_best_short_span():
    random = np.random.default_rng(0)
    logits = {k: tf.constant(random.normal(size=(4, 12)), tf.float32) for k in ("start_logits", "end_logits")}
    start, end = (np.asarray(v) for v in logits.values())
    want = [max(start[r, s] + end[r, e] for s in range(12) for e in range(s, min(12, s + 3))) for r in range(4)]
    np.testing.assert_allclose(QaSpan(max_answer_length=3).target(logits), want, atol=1e-6)


# ---- answers: a third route, as plain as can be ----------------------------------------------------------------------


def plain(head, example, rows):
    """The answer's (text, start, end, score, probability, no-answer probability) by the rule in words.

    ``rows``: (piece's character starts, ends, begin in the context, start logits, end logits, [CLS] scores) a window.
    """
    context, spans = example.pair, []
    null = min(float(s[0]) + float(e[0]) for *_, s, e, _ in rows)
    owners = {}
    for r, (starts, _, begin, *_) in enumerate(rows):
        n = len(starts)
        for i in range(n):
            score = min(i, n - 1 - i) + 0.01 * n
            if score > owners.get(begin + i, (-1.0, 0))[0]:
                owners[begin + i] = score, r
    for r, (starts, ends, begin, s_logits, e_logits, skip) in enumerate(rows):
        for s in range(len(starts)):
            if owners[begin + s][1] != r:
                continue
            for e in range(s, min(len(starts), s + head.max_answer_length)):
                score = float(s_logits[skip + s]) + float(e_logits[skip + e])
                spans.append((-score, r, s, e, int(starts[s]), int(ends[e])))
    spans.sort()
    kept = []
    for negative, *_, first, last in spans[: head.n_best]:
        while last < len(context) and unicodedata.category(context[last]) == "Mn":
            last += 1
        if context[first:last] not in [text for text, *_ in kept]:
            kept.append((context[first:last], first, last, -negative))
    best = kept[0] if kept else None
    if head.impossible or not kept:
        place = sum(score >= null for *_, score in kept)
        kept.insert(place, ("", -1, -1, null))
    weights = np.exp(np.array([k[-1] for k in kept]) - max(k[-1] for k in kept))
    probability = dict(zip((k[:3] for k in kept), (weights / weights.sum()).tolist(), strict=True))
    no_answer = probability.get(("", -1, -1), 0.0) if head.impossible else 0.0
    if best is None or (head.impossible and null - best[-1] > head.threshold):
        return ("", -1, -1, null, probability["", -1, -1], no_answer)
    return (*best, probability[best[:3]], no_answer)


class Drawn:
    """A model whose logits are drawn from the ids of a row: the same row gives the same logits anywhere."""

    def __init__(self, seed, whole=False):
        random = np.random.default_rng(seed)
        self.table = tf.constant(random.normal(0, 3, (2, 512, 64)), tf.float32)
        self.whole = whole  # whole numbers: many equal scores

    def __call__(self, x):
        ids = x["input_ids"]
        place = tf.range(tf.shape(ids)[1])[None] + tf.zeros_like(ids)
        found = tf.gather_nd(tf.transpose(self.table, [1, 2, 0]), tf.stack([ids, place], -1))
        found = tf.round(found) if self.whole else found
        found = tf.where(x["attention_mask"][..., None] > 0, found, -1e4)
        return {"start_logits": found[..., 0], "end_logits": found[..., 1]}


NASTY_CONTEXTS = [
    *(text[:500] for text in NASTY),
    "   the film was good  ", "cafe\u0301\u0301 film e\u0301", "\u0301\u0301", "good good good good good", LONG,
    " ".join(f"{word} {LONG}" for word in ("good", "bad")), "a\u0301" * 40, "film \U0001f600\u0301 bad",
    "nul\x00l \ufffd\u0301",
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "length", "whole"),
    [
        ({"doc_stride": 9, "threshold": 4.0}, 24, True),
        ({"n_best": 1, "threshold": 1.0}, 32, False),
        ({"impossible": False, "doc_stride": 3, "n_best": 4, "max_answer_length": 2, "max_query_length": 1}, 12, True),
        ({"n_best": 300, "max_answer_length": 100, "threshold": -3.0}, 40, True),
    ],
)
def test_python_graph_and_plain_words_agree(options, length, whole):
    """All answers, on nasty texts: decode, the graph with either tokenizer, and a search as plain as can be."""
    head = fitted(**{"max_query_length": 5} | options)
    questions = ["what", "", "who was good", "é ü", "the film the film the film"]
    examples = [Example(questions[i % 5], context) for i, context in enumerate(NASTY_CONTEXTS)]
    text, model = Text(TOKENIZER, length, "longest_first"), Drawn(len(options), whole)
    windows = head.features(examples, text).windows
    found = model({k: tf.constant(v) for k, v in windows.pad().items()})
    logits = {k: [row[:n] for row, n in zip(v.numpy(), windows.lengths, strict=True)] for k, v in found.items()}
    answers = head.decode(examples, windows, logits)
    for n, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        rows = []
        for row in np.flatnonzero(windows.example == n):
            part = slice(windows.splits[row], windows.splits[row + 1])
            inside = np.flatnonzero((windows.token_type_ids[part] == 1) & (windows.starts[part] >= 0))
            skip = int((windows.token_type_ids[part] == 0).sum())
            rows.append((windows.starts[part][inside], windows.ends[part][inside], int(windows.begin[row]),
                         logits["start_logits"][row], logits["end_logits"][row], skip))  # fmt: skip
        want = plain(head, example, rows)
        got = [answer[k] for k in ("text", "start", "end", "score", "probability", "no_answer_probability")]
        assert got[:3] == list(want[:3]) and got[3:] == pytest.approx(want[3:], abs=1e-9), example
        assert answer["text"] == ("" if answer["start"] < 0 else example.pair[answer["start"] : answer["end"]])
        assert sum(entry["probability"] for entry in answer["n_best"]) == pytest.approx(1)

    for run in (PythonRun(TOKENIZER, model, length), Run(GraphTokenizer(TOKENIZER), model, length, "longest_first")):

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
        def served(question, context, run=run):
            return head.serve({"question": question, "context": context}, run)

        got = served(tf.constant([e.text for e in examples]), tf.constant([e.pair for e in examples]))
        for name, values in got.items():
            values = values.numpy().tolist()
            if name == "text":
                assert [v.decode() for v in values] == [a["text"] for a in answers]
            elif name in ("start", "end"):
                assert values == [a[name] for a in answers], name
            else:
                assert values == pytest.approx([a[name] for a in answers], abs=1e-5), name
        none = served(tf.constant([], tf.string), tf.constant([], tf.string))
        assert all(value.shape == (0,) for value in none.values())


def test_the_best_valid_pair_is_returned_where_start_is_after_end():
    example = Example("the", "good film bad food")
    windows = fitted().features([example], TEXT).windows
    start, end = np.zeros(windows.lengths[0], np.float32), np.zeros(windows.lengths[0], np.float32)
    start[[3, 5]], end[[3, 4]] = (2, 9), (8, 3)  # best start after best end; [CLS] the [SEP] good film bad food [SEP]
    answer = fitted().decode([example], windows, {"start_logits": [start], "end_logits": [end]})[0]
    assert answer["text"] == "good" and answer["score"] == 10.0


# ---- tools -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa")
    task = tiny_task("qa_span", directory=folder / "tiny", max_length=48, doc_stride=12, max_query_length=8)
    task.fit(EXAMPLES * 4, EXAMPLES, epochs=8, batch_size=8, learning_rate=3e-3, verbose=0)
    task.save(folder / "task")
    return folder, task


def test_a_task_learns_is_saved_and_comes_back(trained):
    folder, task = trained
    scores = task.evaluate(EXAMPLES)
    assert scores["f1"] > 50 and scores["HasAns_total"] == 4
    again = load(folder / "task")
    assert again.head == task.head and again.head.threshold == task.head.threshold
    assert [a["text"] for a in again.predict(EXAMPLES)] == [a["text"] for a in task.predict(EXAMPLES)]
    pairs = [(e.text, e.pair) for e in EXAMPLES]
    assert [a["text"] for a in task.predict(pairs)] == [a["text"] for a in task.predict(EXAMPLES)]
    assert task.predict([("", "")])[0]["text"] == ""


def test_the_threshold_is_tuned_on_the_dev_set(trained):
    _, task = trained
    windows = task.features(EXAMPLES).windows
    logits = task.logits(windows)
    best = task.head.tuned(EXAMPLES, windows, logits)

    def f1(threshold):
        head = dataclasses.replace(task.head, threshold=threshold)
        return head.score(EXAMPLES, head.decode(EXAMPLES, windows, logits))["f1"]

    assert f1(best.threshold) >= max(f1(t) for t in np.linspace(-20, 20, 41)) - 1e-9
    assert QaSpan(impossible=False).tuned(EXAMPLES, windows, logits) == QaSpan(impossible=False)


@pytest.mark.slow
def test_the_exported_model_answers_long_contexts(trained, tmp_path):
    _, task = trained
    pairs = [(e.text, e.pair) for e in EXAMPLES] + [("what was bad", f"{LONG}. " * 9)]
    proof = task.export(tmp_path / "export", texts=pairs)
    assert max(proof["differences"].values()) <= 1e-5 and "text:text" in proof["differences"]
    model = tf.saved_model.load(str(tmp_path / "export" / "saved_model"))
    question, context = (tf.constant(column) for column in zip(*pairs, strict=True))
    got = model.signatures["serving_default"](question=question, context=context)
    assert [t.decode() for t in got["text"].numpy()] == [a["text"] for a in task.predict(pairs)]


@pytest.mark.slow
def test_an_answerer_leaves_in_hugging_faces_form_and_in_the_originals(trained, tmp_path):
    folder, task = trained
    pairs = [(e.text, e.pair) for e in EXAMPLES]
    for form in ("huggingface", "bert"):
        checkpoint.convert(folder / "task", tmp_path / form, form)
        again = Task.from_checkpoint(tmp_path / form, "qa_span", max_length=48, impossible=True, doc_stride=12)
        again.head = dataclasses.replace(task.head)
        assert [a["n_best"] for a in again.predict(pairs)] == [a["n_best"] for a in task.predict(pairs)]


def test_the_example_data_are_what_their_readme_says(root):
    """Every answer stands where the file says, no warning, and no article is in two files."""
    titles, folder = [], root / "examples" / "qa"
    said = re.findall(r"`(\w+)\.json` \| (\d+) \| (\d+) \| (\d+) \| (\d+)", (folder / "README.md").read_text("utf-8"))
    assert [name for name, *_ in said] == ["train", "dev", "test"]
    for name, *counts in said:
        articles = json.loads((folder / f"{name}.json").read_text("utf-8"))["data"]
        titles += [article["title"] for article in articles]
        found = list(QaSpan().read(folder / f"{name}.json"))
        assert all(e.pair[at : at + len(text)] == text for e in found for text, at in e.gold)
        paragraphs, none = sum(len(a["paragraphs"]) for a in articles), sum(not e.gold for e in found)
        assert list(map(int, counts)) == [len(articles), paragraphs, len(found), none]
    assert len(set(titles)) == len(titles)
