"""The NER head: words and pieces, windows, tags and entities, scores, files; the graph says what Python says."""

import dataclasses
import itertools
import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_lab import UserError, conll, load, load_head, tags
from keras_bert_lab.encoder import encode
from keras_bert_lab.export import NASTY
from keras_bert_lab.graph_text import GraphTokenizer
from keras_bert_lab.head import Example
from keras_bert_lab.serving import Run
from keras_bert_lab.task import Text
from keras_bert_lab.testing import check_head, tiny_config, tiny_task, tiny_tokenizer

Ner = load_head("ner")
Tagged = __import__(Ner.__module__, fromlist=["Tagged"]).Tagged
TOKENIZER = tiny_tokenizer()
GRAPH = GraphTokenizer(TOKENIZER)
EXAMPLES = [
    Tagged.of(["the", "good", "film", "was", "bad"], ["O", "B-X", "I-X", "O", "B-Y"]),
    Tagged.of(["we", "never"], ["O", "B-Y"]),
    Tagged.of(["book", "\u200b", "food", "xyzzy's"], ["B-X", "O", "O", "B-X"]),
]
SPANS = [
    Example("the good film was bad at the worst hotel ever xyzabc!", gold=[("X", 4, 13), ("Y", 18, 21)]),
    Example("we never", gold=[{"type": "Y", "start": 3, "end": 8}]),
    Example("book, food", gold=()),
]


def fitted(types=("X", "Y"), scheme="IOB2", **options):
    return Ner(types=types, scheme=scheme, **options).with_vocabulary(TOKENIZER)


def texts(max_length=32):
    return Text(TOKENIZER, max_length, "longest_first")


def built(head, seed=0):
    """A random model whose tags are anything but even."""
    keras.utils.set_random_seed(seed)
    encoded = encode(tiny_config())
    model = keras.Model(encoded.inputs, head.outputs(encoded))
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        if variable.path.startswith(("classifier", "crf")):
            variable.assign(rng.normal(0, 2, variable.shape))
    return model


def answered(head, model, examples, max_length=32):
    windows = head.features(examples, texts(max_length)).windows
    logits = {k: v.numpy() for k, v in model(windows.pad(), training=False).items()}
    logits["logits"] = [row[:n] for row, n in zip(logits["logits"], windows.lengths, strict=True)]
    return head.decode(examples, windows, logits), windows


def dictated(head, examples, wanted, max_length=32):
    """Answers to logits that say ``wanted`` (tags by example and word) at first pieces, and noise elsewhere."""
    features = head.features(examples, texts(max_length))
    index = {label: i for i, label in enumerate(head.labels)}
    rng, rows = np.random.default_rng(0), []
    said = [dataclasses.replace(e, gold=w) for e, w in zip(examples, wanted, strict=True)]
    gold = head.features(said, texts(max_length))
    assert np.array_equal(gold.windows.input_ids, features.windows.input_ids)
    for a, b in zip(gold.windows.splits[:-1], gold.windows.splits[1:], strict=True):
        row = rng.normal(0, 9, (b - a, len(index))).astype(np.float32)
        for k, y in enumerate(gold.y["logits"][a:b]):
            if y >= 0:
                row[k] = np.where(np.arange(len(index)) == y, 20, 0)
        rows.append(row)
    return head.decode(examples, features.windows, {"logits": rows}), features.windows


# ---- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "examples, options, max_length",
    [
        (EXAMPLES, {"crf": True}, 8),
        (SPANS, {"label_pieces": "all", "scheme": "BMES", "long": "cut", "stride": 3}, 8),
    ],
)
def test_contract(examples, options, max_length):
    check_head("ner", examples, options=options, max_length=max_length)


def test_options_are_checked():
    for options, told in (
        ({"scheme": "IOB3"}, "IOB3.*not known"),
        ({"long": "drop"}, "long.*choose window or cut"),
        ({"label_pieces": "all", "crf": True}, "CRF"),
        ({"dropout": 1}, "dropout"),
        ({"stride": 2.5}, "stride"),
        ({"mode": "loose"}, "mode.*strict or conlleval"),
        ({"types": ["X", "X"]}, "types"),
    ):
        with pytest.raises(UserError, match=told):
            Ner(**options)
    with pytest.raises(UserError, match="stride 31.*room for 30 pieces.*1 to 30"):
        fitted(stride=31).features(EXAMPLES, texts())
    assert Ner(scheme="iobes").scheme == "BIOES"


# ---- words and pieces ------------------------------------------------------------------------------------------------


def test_a_word_is_labelled_at_its_first_piece():
    """CASES O14: "Australian" has many pieces and is one entity's first word."""
    example = Tagged.of(["The", "Australian", "Prime", "minister"], ["O", "B-X", "I-X", "I-X"])
    head = Ner().fit([example]).with_vocabulary(TOKENIZER)
    features = head.features([example], texts())
    pieces = [TOKENIZER.tokens[i] for i in features.windows.input_ids]
    said = ["" if y < 0 else head.labels[y] for y in features.y["logits"]]
    assert [(p, t) for p, t in zip(pieces, said, strict=True) if t] == [
        ("the", "O"), ("a", "B-X"), ("p", "I-X"), ("m", "I-X")]  # fmt: skip
    assert features.w["logits"].sum() == 4
    every = dataclasses.replace(head, label_pieces="all").with_vocabulary(TOKENIZER).features([example], texts())
    said = ["" if y < 0 else head.labels[y] for y in every.y["logits"]]
    assert said[2] == "B-X" and set(said[3 : pieces.index("m")]) == {"I-X"} and said.count("B-X") == 1
    (answer,), _ = dictated(head, [example], [example.gold])
    assert answer["tags"] == list(example.gold) and len(answer["entities"]) == 1
    (entity,) = answer["entities"]
    assert entity.pop("score") > 0.9
    assert entity == {"type": "X", "start": 4, "end": 29, "text": "Australian Prime minister"}


def test_words_that_vanish_keep_their_place():
    gold = ["B-X", "O", "O", "B-X"]
    example = Tagged.of(["book", "\u200b", "", "film"], gold)
    head = fitted()
    (answer,), _ = dictated(head, [example], [gold])
    assert answer["tags"] == gold and len(answer["words"]) == 4
    inside = dataclasses.replace(example, gold=["B-X", "I-X", "I-X", "I-X"])
    features = head.features([inside], texts())
    assert (features.y["logits"] >= 0).sum() == 2  # it cannot be learned where there is no piece
    for options in ({}, {"scheme": "BIOES"}, {"crf": True}):
        other = fitted(**options)
        (answer,), _ = answered(other, built(other), [example])
        assert answer["tags"][1:3] == ["O", "O"] and tags.broken(answer["tags"], other.scheme) is None
    (nothing,), _ = answered(head, built(head), [Tagged.of(["\u200b"], ["O"])])
    assert nothing == {"entities": [], "tags": ["O"], "words": [[0, 1]]}


def test_plain_text_has_the_tokenizers_words():
    text = "Café, film\u2028中国 ok"
    (answer,), _ = answered(fitted(), built(fitted()), [Example(text)])
    words = [text[a:b] for a, b in answer["words"]]
    assert words == [text[a:b] for _, a, b in TOKENIZER.basic(text)] == ["Café", ",", "film", "中", "国", "ok"]
    assert len(answer["tags"]) == len(words)
    for entity in answer["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"] and 0 < entity["score"] <= 1


# ---- long texts ------------------------------------------------------------------------------------------------------


def test_every_word_of_a_long_sentence_is_labelled_once_and_found():
    """CASES O14: 200 words at 64 pieces, entities at 5 and at 150: windows can find both, a cut text loses one."""
    rng = random.Random(0)
    words = [rng.choice(["film", "book", "hotel", "a", "xy", "staff"]) for _ in range(200)]
    gold = ["O"] * 200
    gold[5], gold[150], gold[151] = "B-X", "B-Y", "I-Y"
    example = Tagged.of(words, gold)
    for options, found in (({}, 2), ({"long": "cut"}, 1), ({"crf": True}, 2), ({"stride": 7}, 2), ({"stride": 62}, 2)):
        head = fitted(**options)
        text = texts(64)
        features = head.features([example], text)
        if options != {"long": "cut"}:
            assert (features.y["logits"] >= 0).sum() == 200 and (features.windows.lengths <= 64).all()
            assert text.report() == ""
        else:
            assert "1 of 1 rows were cut to 64 pieces" in text.report()
        if "crf" in options:
            continue
        (answer,), windows = dictated(head, [example], [gold], 64)
        assert len(windows) > 3 or found == 1
        assert len(answer["tags"]) == 200 and len(answer["entities"]) == found
        score = head.score([example], [answer])
        assert (score["recall"], score["precision"], score["sentences"]) == (found / 2, 1.0, 1)


def test_owners_are_those_with_most_context():
    """CASES O16: 12 words of one piece, room 5, step 3."""
    words = ["film"] * 12
    head = fitted(stride=3)
    features = head.features([Tagged.of(words, ["O"] * 12)], texts(7))
    owners = np.repeat(np.arange(4), features.windows.lengths)[features.y["logits"] >= 0]
    begin, length = features.windows.begin, features.windows.lengths - 2
    assert list(zip(begin.tolist(), length.tolist(), strict=True)) == [(0, 5), (3, 5), (6, 5), (9, 3)]
    at = np.flatnonzero(features.y["logits"] >= 0)
    word = features.windows.starts[at] // 5
    assert owners[np.argsort(word)].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


def test_overlapping_windows_give_no_duplicates():
    head = fitted(scheme="BIOES", stride=1)
    text = "film book hotel staff " * 9
    (answer,), windows = answered(head, built(head), [Example(text)], 9)
    assert len(windows) > 20
    places = [(e["start"], e["end"]) for e in answer["entities"]]
    assert places == sorted(set(places)) and all(a[1] <= b[0] for a, b in itertools.pairwise(places))


# ---- schemes ---------------------------------------------------------------------------------------------------------


def test_the_scheme_is_found_stored_and_said():
    for scheme, other in zip(tags.SCHEMES, [*tags.SCHEMES[1:], tags.SCHEMES[0]], strict=True):
        spans = [tags.Span("X", 0, 1), tags.Span("X", 1, 3), tags.Span("Y", 4, 7)]
        gold = tags.encode(spans, 8, scheme)
        head = Ner().fit([Tagged.of(["film"] * 8, gold)])
        assert head.scheme == scheme and scheme in head.describe() and head.types == ("X", "Y")
        again = Ner.from_dict(json.loads(json.dumps(head.to_dict())))
        assert again == head and again.labels == tuple(tags.labels(("X", "Y"), scheme))
        learned = dataclasses.replace(head, label_scheme=other).with_vocabulary(TOKENIZER)
        (answer,), _ = dictated(learned, [Tagged.of(["film"] * 8, gold)], [gold])
        assert answer["tags"] == gold  # there and back without loss
        assert [(e["type"], e["start"] // 5) for e in answer["entities"]] == [("X", 0), ("X", 1), ("Y", 4)]
    untyped = Ner().fit([Tagged.of(["a", "b"], ["B", "I"])])
    assert untyped.labels == ("O", "B", "I")
    with pytest.raises(UserError, match="no entity"):
        Ner().fit([Tagged.of(["a"], ["O"])])
    with pytest.raises(UserError, match="breaks IOB2.*f:1"):
        Ner(scheme="IOB2", label_scheme="BIOES").fit([Tagged.of(["a", "b"], ["O", "I-X"], where="f:1")])


def test_illegal_sequences_never_come_out():
    """CASES O15, through the whole head; without the rules they do."""
    examples = [Example(" ".join(["film"] * n)) for n in range(1, 25)]
    for options in ({"scheme": "BIOES"}, {"scheme": "IOB1", "crf": True}, {"label_scheme": "BMES"}):
        head = fitted(**options)
        rows, _ = answered(head, built(head, 4), examples)
        assert all(tags.broken(row["tags"], head.scheme) is None for row in rows)
    free = fitted(scheme="BIOES", constrained=False)
    rows, _ = answered(free, built(free, 4), examples)
    assert any(tags.broken(row["tags"], "BIOES") is not None for row in rows)


def test_the_score_of_an_entity_is_its_probability():
    head = fitted(constrained=False)
    example = Example("film book")
    windows = head.features([example], texts()).windows
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 1, (4, 5)).astype(np.float32)
    rows[1, 1], rows[2, 2] = 4, 3
    (answer,) = head.decode([example], windows, {"logits": [rows]})
    p = np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)
    assert answer["entities"][0]["score"] == pytest.approx(p[1, 1] * p[2, 2], abs=1e-6)
    ruled = fitted()
    (answer,) = ruled.decode([example], windows, {"logits": [rows]})
    start, transition, _ = tags.legal("IOB2", ruled.labels)
    joint = np.exp(rows[1])[:, None] * np.exp(rows[2])[None] * start[:, None] * transition
    assert answer["entities"][0]["score"] == pytest.approx(joint[1, 2] / joint.sum(), abs=1e-6)


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_scores_are_per_word_and_in_the_declared_scheme():
    head = fitted(types=("P",), scheme="BIOES")
    gold = Tagged.of(["a", "b", "c"], ["B-P", "E-P", "S-P"])
    score = head.score([gold], [{"tags": ["B-P", "I-P", "S-P"], "entities": [], "words": []}])
    assert (score["precision"], score["recall"], round(score["f1"], 2)) == (1.0, 0.5, 0.67)
    assert score["scheme"] == "BIOES" and score["mode"] == "strict" and score["per_type"]["P"]["recall"] == 0.5
    iob = fitted(types=("",))
    gold, said = Tagged.of(["a", "b"], ["B", "I"]), {"tags": ["I", "I"], "entities": [], "words": []}
    score = iob.score([gold], [said])
    assert (score["f1"], score["f1_strict"], score["f1_conlleval"]) == (0, 0, 1)
    assert dataclasses.replace(iob, mode="conlleval").score([gold], [said])["f1"] == 1
    other = Tagged.of(["a", "b"], ["I", "I"])  # gold in another scheme than declared
    assert iob.score([other], [said])["sentences_that_break_the_scheme"] == 1
    with pytest.raises(UserError, match="no sentence with gold"):
        iob.score([], [])
    with pytest.raises(UserError, match=r"unknown type 'Z'.*the types are.*f:3"):
        fitted().score([Tagged.of(["a"], ["B-Z"], where="f:3")], [said])


def test_entities_in_characters_are_scored_by_characters():
    head = fitted()
    text = "good film, bad-book"
    words = [[a, b] for _, a, b in TOKENIZER.basic(text)]

    def score(gold, *found):
        said = [{"type": t, "start": a, "end": b} for t, a, b in found]
        result = head.score([Example(text, gold=gold)], [{"entities": said, "words": words, "tags": []}])
        return result["correct"], result["gold"], result["predicted"]

    assert score([("X", 5, 9), ("Y", 11, 19)], ("X", 5, 9), ("Y", 11, 14)) == (1, 2, 2)
    assert score([("X", 4, 10)], ("X", 5, 9)) == (0, 1, 1)  # the comma is in it
    assert score([("X", 4, 9)], ("X", 5, 9)) == (1, 1, 1)  # a blank is nobody's
    assert score([("X", 5, 7)], ("X", 5, 9)) == (0, 1, 1)  # inside a word: cannot be found, but counts
    assert score([], ("X", 5, 9)) == (0, 0, 1)
    with pytest.raises(UserError, match="overlap"):
        score([("X", 0, 6), ("Y", 5, 9)])


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_from_file_to_file_through_a_saved_task(tmp_path):
    rows = [("good", "film", "X"), ("bad", "book", "Y"), ("fine", "hotel", "X"), ("dull", "staff", "Y")]
    train = tmp_path / "train.txt"
    train.write_text(
        "-DOCSTART- -X- O\n\n" + "\n".join(f"the D O\n{a} J B-{t}\n{b} N I-{t}\n# P O\n" for a, b, t in rows * 4)
    )
    task = tiny_task("ner", directory=tmp_path / "tiny", crf=True, max_length=16)
    task.fit(train, train, epochs=12, batch_size=4, learning_rate=5e-3, verbose=0)
    scores = task.evaluate(train)
    assert scores["f1"] > 0.9 and scores["sentences"] == 16 and task.head.scheme == "IOB2"
    task.save(tmp_path / "task")
    again = load(tmp_path / "task")
    assert again.evaluate(train) == scores and again.head == task.head
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"text": "the good film #"}\n{"tokens": ["the", "bad", "book"]}\n')
    one, two = again.predict(bare)
    assert [e["text"] for e in one["entities"]] == ["good film"] and two["tags"] == ["O", "B-Y", "I-Y"]
    out = tmp_path / "out.conll"
    again.head.write(out, again.stream(train))
    lines = ["-DOCSTART- -X- O O", "the D O O", "good J B-X B-X", "film N I-X I-X", "# P O O"]
    assert out.read_text().splitlines()[:5] == lines
    assert [s.tags for s in conll.read(out)] == [tuple(a["tags"]) for a in again.predict(train)]
    again.head.write(out, again.stream(bare))
    assert out.read_text().splitlines()[:4] == ["the\tO", "good\tB-X", "film\tI-X", "#\tO"]
    again.head.write(tmp_path / "out.jsonl", again.stream(bare))
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [one, two]


def test_bad_sentences_are_told():
    odd = [Tagged.of(["a"], gold, where=f"f:{i}") for i, gold in enumerate((["B-X"], ["S-X"], None), 1)]
    with pytest.raises(UserError, match=r"S-X.*IOB2.*f:2.*no tags.*f:3"):
        list(fitted().usable(odd))
    with pytest.warns(UserWarning, match="2 rows skipped"):
        assert len(list(fitted(bad_rows="skip").usable(odd))) == 1
    assert fitted().problem(Example("film", gold=[{"start": 0}])).startswith("entity")
    assert fitted().problem(Example("film", gold=[("X", 2, 9)])).startswith("entity")


# ---- the graph -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, max_length",
    [
        ({"crf": True, "scheme": "BMES"}, 8),
        ({"constrained": False, "scheme": "IOB1"}, 5),
        ({"long": "cut", "label_scheme": "BILOU", "stride": 1}, 12),
    ],
)
def test_the_graph_gives_pythons_entities(options, max_length):
    rng = np.random.default_rng(1)
    words = ["good", "film", "xyz12", "a", "hotel's", "worst,", "中国"]
    made = [" ".join(rng.choice(words, n)) for n in (1, 5, 40, 150)]
    asked = [*NASTY, *made, "Cafe\u0301 film"]
    head = fitted(**options)
    model = built(head, 3)
    wanted, _ = answered(head, model, [Example(t) for t in asked], max_length)
    run = Run(GRAPH, lambda x: model(x, training=False), max_length, "longest_first")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def call(column):
        return head.serve({"text": column}, run)

    seen = 0
    for part in (slice(0, 0), slice(0, 1), slice(0, None)):
        found = {name: value.numpy() for name, value in call(tf.constant(asked[part], tf.string)).items()}
        assert all(len(value) == len(asked[part]) for value in found.values())
        for row, answer in enumerate(wanted[part]):
            entities = answer["entities"]
            assert found["count"][row] == len(entities)
            for n, entity in enumerate(entities):
                seen += 1
                for name in ("type", "text"):
                    assert found[name][row, n].decode() == entity[name]
                assert [found["start"][row, n], found["end"][row, n]] == [entity["start"], entity["end"]]
                assert found["score"][row, n] == pytest.approx(entity["score"], abs=1e-5)
            assert not found["end"][row, len(entities) :].any()  # filled up with nothing
    assert seen > 50


@pytest.mark.slow
def test_the_export_is_proved(tmp_path):
    task = tiny_task("ner", directory=tmp_path / "tiny", scheme="IOB2", types=["X"], crf=True, max_length=16)
    proof = task.export(tmp_path / "export", texts=["the good film " * 20])
    assert proof["differences"]["text:score"] <= 1e-5 and proof["differences"]["text:text"] == 0
