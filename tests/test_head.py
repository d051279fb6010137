"""Options, discovery and the reading of text tables, without TensorFlow where that is promised."""

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from keras_bert_lab import UserError
from keras_bert_lab.head import (
    GROUP,
    Example,
    Head,
    TableHead,
    available_heads,
    head_info,
    load_head,
    make_head,
)

SIX = [
    ("good film", "pos"),
    ("dull, long", "neg"),
    ('"fine"', "pos"),
    ("日本語 テスト", "neg"),
    ("meh", "neg"),
    ("ok!", "pos"),
]


@dataclass(frozen=True, kw_only=True)
class Plain(TableHead):
    size: int = 3
    names: tuple[str, ...] = ()
    limits: tuple[tuple[float, ...], ...] = ()


def read(path, **options):
    return list(Plain(**options).read(path))


def put(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def tsv(rows, end="\n"):
    return end.join("\t".join(row) for row in [("text", "label"), *rows]) + end


# ---- options -----------------------------------------------------------------------------------------------------


def test_options_go_through_json_and_back():
    head = Plain(size=5, names=("b", "a"), limits=((1.0, 2.0), (3.0,)), text_column=0, header=False)
    again = Plain.from_dict(json.loads(json.dumps(head.to_dict())))
    assert again == head and isinstance(again.names, tuple) and isinstance(again.limits[0], tuple)


def test_an_unknown_option_is_refused_with_the_known_and_the_nearest():
    with pytest.raises(UserError, match=r"'sise'.*did you mean 'size'\?.*known: .*text_column.*size, names"):
        Plain.from_dict({"sise": 1})


def test_what_json_cannot_say_is_no_option():
    with pytest.raises(TypeError, match="cannot be said in JSON"):
        dataclasses.replace(Plain(), size=float("nan")).to_dict()
    with pytest.raises(TypeError, match="holds a set"):
        dataclasses.replace(Plain(), names={"a"}).to_dict()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text_column": -1}, "text_column: -1 is negative"),
        ({"label_column": None}, "label_column: None is no column"),
        ({"pair_column": True}, "True is no column"),
        ({"bad_rows": "ignore"}, 'choose "error" or "skip"'),
    ],
)
def test_bad_column_options(options, words):
    with pytest.raises(UserError, match=words):
        Plain(**options)


# ---- tables of text (CASES O24) ----------------------------------------------------------------------------------


def test_marks_line_ends_and_blank_last_lines_change_nothing(tmp_path):
    want = [(text, label) for text, label in SIX]
    forms = {
        "plain.tsv": tsv(SIX).encode(),
        "mark.tsv": b"\xef\xbb\xbf" + tsv(SIX, "\r\n").encode(),
        "blank.tsv": (tsv(SIX) + "\n").encode(),
        "blanks.tsv": (tsv(SIX, "\r\n") + "\r\n \r\n").encode(),
        "no_end.tsv": tsv(SIX).rstrip("\n").encode(),
        "quoted.csv": b"\xef\xbb\xbf"
        + 'text,label\r\ngood film,pos\r\n"dull, long",neg\r\n"""fine""",pos\r\n'
        "日本語 テスト,neg\r\nmeh,neg\r\nok!,pos\r\n\r\n".encode(),
        "lines.jsonl": "".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in SIX).encode(),
    }
    for name, content in forms.items():
        examples = read(put(tmp_path / name, content))
        assert [(e.text, e.gold) for e in examples] == want, name
        assert [e.fields for e in examples] == [{"text": t, "label": y} for t, y in want], name
    assert [e.where.rpartition(":")[2] for e in read(tmp_path / "mark.tsv")] == ["2", "3", "4", "5", "6", "7"]


def test_columns_by_name_and_by_number_never_by_guess(tmp_path):
    path = put(tmp_path / "a.tsv", "id\tsentence\tother\tstars\n7\ta\tb\t5\n")
    (example,) = read(path, label_column="stars")  # `sentence` stands in for `text`
    assert (example.text, example.pair, example.gold) == ("a", None, "5")
    (example,) = read(path, text_column="other", pair_column="sentence", label_column="stars")
    assert (example.text, example.pair) == ("b", "a")
    (example,) = read(path, text_column=1, label_column=3, header=True)
    assert (example.text, example.gold) == ("a", "5")
    assert len(read(path, text_column=1, label_column=3, header=False)) == 2
    with pytest.raises(UserError, match="text_column is a number; it is not said whether"):
        read(path, text_column=1, label_column=3)
    with pytest.raises(UserError, match="header is false"):
        read(path, text_column=1, label_column="stars", header=False)
    headless = put(tmp_path / "b.tsv", "good film\t1\ndull\t0\n")
    with pytest.raises(UserError, match=r"no column 'text'; it has 'good film', '1'.*header=false"):
        read(headless)
    both = put(tmp_path / "c.tsv", "sentence\ttext\tlabel\ns\tt\t1\n")
    assert read(both)[0].text == "t"


def test_a_file_without_labels_can_be_predicted(tmp_path):
    for name, content in [("a.tsv", "text\nx\n\ny\n"), ("a.jsonl", '{"text": "x"}\n{"text": null}\n{"text": "y"}\n')]:
        examples = read(put(tmp_path / name, content))
        assert [(e.text, e.gold) for e in examples] == [("x", None), ("", None), ("y", None)]
    assert [e.text for e in read(put(tmp_path / "a.txt", "x\ny\n"), text_column=0, label_column=1, header=False)] == [
        "x",
        "y",
    ]
    assert read(put(tmp_path / "empty.jsonl", "")) == []
    assert read(put(tmp_path / "header.tsv", "text\tlabel\n")) == []


def test_rows_that_cannot_be_learned_from_are_told_by_line(tmp_path):
    path = put(tmp_path / "a.tsv", "text\tlabel\ngood\tpos\n\tneg\n  \tneg\nfine\t\nNaN\tpos\nbad\tneg\n")
    with pytest.raises(UserError) as error:
        list(Plain().usable(Plain().read(path)))
    text = str(error.value)
    assert "the text is empty" in text and all(f"a.tsv:{line}" in text for line in (3, 4, 6))
    assert "no label" in text and "a.tsv:5" in text and "a.tsv:2" not in text and 'bad_rows to "skip"' in text
    head = Plain(bad_rows="skip")
    with pytest.warns(UserWarning, match="4 rows skipped"):
        assert [e.text for e in head.usable(head.read(path))] == ["good", "bad"]
    assert len(read(path)) == 6  # prediction: a row for every row


def test_the_list_of_bad_rows_is_short_and_reading_stops(tmp_path):
    def endless():
        while True:
            yield Example("", where="x")

    with pytest.raises(UserError, match="the first 10"):
        list(Plain().usable(endless()))


def test_json_labels_and_texts(tmp_path):
    lines = [{"text": "a", "label": x} for x in (1, 1.0, "1", " 1", "1.0")] + [{"text": 5, "label": True}]
    path = put(tmp_path / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert [e.gold for e in read(path)] == ["1"] * 5 + ["true"]
    assert read(path)[-1].text == "5"
    nan = put(tmp_path / "b.jsonl", '{"text": NaN, "label": NaN}\n')
    assert [(e.text, e.gold) for e in read(nan)] == [("", None)]
    with pytest.raises(UserError, match=r"c\.jsonl:1.*the text is a JSON list"):
        read(put(tmp_path / "c.jsonl", '{"text": ["a"], "label": 1}\n'))


def test_reading_tables_and_heads_needs_no_tensorflow(tmp_path):
    code = "import sys, keras_bert_lab.head; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


# ---- discovery ---------------------------------------------------------------------------------------------------


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lays a distribution with an entry point on the path, as pip would."""

    def lay(distribution, version, name, value, module=None, source=""):
        folder = tmp_path / f"{distribution}-{version}"
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")
        if module:
            (folder / f"{module}.py").write_text(source)
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(str(folder))

    return lay


GOOD = """
from dataclasses import dataclass
from keras_bert_lab.head import Head
@dataclass(frozen=True, kw_only=True)
class Mood(Head):
    depth: int = 1
class Melted(Head):
    pass
"""


def test_a_strangers_head_is_found_and_named(install):
    install("some-moods", "0.3", "mood", "some_moods_module:Mood", "some_moods_module", GOOD)
    assert {"mood", "classification"} <= set(available_heads())
    head = make_head("mood", {"depth": 2})
    assert isinstance(head, Head) and head.depth == 2
    want = {"name": "mood", "distribution": "some-moods", "version": "0.3"}
    assert head_info("mood") == head_info(head) == head_info(type(head)) == want


def test_two_distributions_with_one_name(install):
    install("some-moods", "0.3", "mood", "some_moods_module:Mood", "some_moods_module", GOOD)
    install("other-moods", "4.1", "mood", "other_moods_module:Mood", "other_moods_module", GOOD)
    for call in (available_heads, lambda: load_head("mood")):
        with pytest.raises(
            UserError, match=r"'mood'.*claimed by.*moods (0\.3|4\.1).*and by.*moods (0\.3|4\.1).*uninstall"
        ):
            call()


@pytest.mark.parametrize(
    ("value", "source", "words"),
    [
        (
            "broken_head_module:Mood",
            "import no_such_package_here",
            "ModuleNotFoundError: No module named 'no_such_package_here'",
        ),
        ("broken_head_module:Mood", "raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("broken_head_module:Absent", GOOD, "AttributeError"),
        ("broken_head_module:dataclass", GOOD, "is no subclass of keras_bert_lab.head.Head"),
        ("broken_head_module:Melted", GOOD, "is no frozen dataclass"),
    ],
)
def test_a_head_that_cannot_be_imported_says_whose_and_why(install, value, source, words):
    install("broken-head", "2.0", "mood", value, "broken_head_module", source)
    assert "mood" in available_heads()  # listing imports nothing
    with pytest.raises(UserError, match=rf"'mood' of broken-head 2\.0.*{words}"):
        load_head("mood")
    load_head("classification")  # others are not harmed


def test_unknown_names_list_the_known():
    with pytest.raises(
        UserError, match=r"'clasification'.*did you mean 'classification'\?.*installed heads: .*classification"
    ):
        load_head("clasification")


def test_a_class_without_an_entry_point_cannot_be_saved_by_name():
    with pytest.raises(UserError, match="no installed distribution has an entry point"):
        head_info(Plain())


def test_the_base_leaves_only_what_must_be_written():
    head = Plain()
    assert head.fitted and head.fit([]) is head and head.metrics() == {} and head.trains("any/path") is True
    assert head.adapter("encoder/layer_0") is None and head.stratum(Example("a")) is None and head.describe() == "Plain"
    for name in ("features", "outputs", "losses", "decode", "score", "answers", "target"):
        with pytest.raises(NotImplementedError):
            getattr(head, name)(*[None] * (getattr(Head, name).__code__.co_argcount - 1))
