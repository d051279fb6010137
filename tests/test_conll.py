"""Files of tagged sentences: every format, damage told with its place, the real files counted, writing and reading."""

import json
import random
import tracemalloc

import pytest

from keras_bert_lab import UserError
from keras_bert_lab.conll import align, read, write
from keras_bert_lab.tags import Span, convert, detect, spans
from keras_bert_lab.wordpiece import Tokenizer


def put(tmp_path, content, name="a.conll"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pairs(path, **options):
    """[[(token, tag), ...], ...]; tag None without tags."""
    return [list(zip(s.tokens, s.tags or [None] * len(s.tokens), strict=True)) for s in read(path, **options)]


ANN = [[("Ann", "B-PER"), ("left", "O"), (".", "O")], [("#", "O"), ("1", "O")]]


# ---- columns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.conll", "a.tsv", "a.txt", "train", "eng.testa", "a.dev"])
@pytest.mark.parametrize(
    "content",
    [
        "Ann B-PER\nleft O\n. O\n\n# O\n1 O\n",
        "Ann\tB-PER\nleft\tO\n.\tO\n\n#\tO\n1\tO",  # no final newline
        "\n \n\t\nAnn  B-PER \nleft\tO\n. O\n \t \n\n# O\n1 O\n\n\n\n",  # blanks of any kind between and around
        "\ufeffAnn B-PER\r\nleft O\r\n. O\r\n\r\n# O\r\n1 O\r\n",  # a byte-order mark, CRLF
        "-DOCSTART- O\n\nAnn B-PER\nleft O\n. O\n-DOCSTART- O\n# O\n1 O\n",
        "-DOCSTART-\nAnn B-PER\nleft O\n. O\n\n-DOCSTART- (2) x y\n# O\n1 O\n-DOCSTART-",
        "# a comment\nAnn B-PER\nleft O\n. O\n\n# text = # 1\n# two words\n# O\n1 O\n# or so\n".replace(
            "# or so\n", ""
        ),
        "#begin document x y\nAnn\tB-PER\nleft\tO\n.\tO\n\n# 3 O\n## of\n#\tO\n1\tO\n",
    ],
)
def test_the_same_sentences_however_they_are_spaced(tmp_path, content, name):
    path = put(tmp_path, content, name)
    assert pairs(path) == ANN
    assert [s.text for s in read(path)] == ["Ann left .", "# 1"]


def test_columns_by_number_and_by_name(tmp_path):
    four = put(tmp_path, "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nit PRP B-NP O\n")
    assert pairs(four)[0] == [("EU", "B-ORG"), ("rejects", "O")]
    assert pairs(four, tag=2) == pairs(four, tag=-2) == [[("EU", "B-NP"), ("rejects", "B-VP")], [("it", "B-NP")]]
    assert pairs(four, token=1, tag=-1)[0] == [("NNP", "B-ORG"), ("VBZ", "O")]
    assert pairs(four, tag=None)[1] == pairs(four, tag=7)[1] == [("it", None)]
    named = put(tmp_path, "id word pos ner\n1 EU NNP B-ORG\n2 rejects VBZ O\n\n1 it PRP O\n", "named.txt")
    want = [[("EU", "B-ORG"), ("rejects", "O")], [("it", "O")]]
    assert pairs(named, token="word", tag="ner") == pairs(named, token="word") == want
    assert pairs(named, token=1, tag="ner") == want
    assert pairs(named, token="word", tag="gold")[1] == [("it", None)]
    plus = put(
        tmp_path, "# global.columns = ID FORM NER\n# text = EU rejects\n1\tEU\tB-ORG\n2\trejects\tO\n\n1\tit\tO\n"
    )
    assert pairs(plus, token="FORM", tag="NER") == pairs(plus, token=1) == want
    with pytest.raises(UserError, match="has no column 'words' for the token.*did you mean 'word'"):
        pairs(named, token="words")
    with pytest.raises(UserError, match="has no column 4 for the token; it has 4 columns"):
        pairs(named, token=4)
    with pytest.raises(UserError, match=r"names 2 columns \(word, ner\), but most lines have 3"):
        pairs(put(tmp_path, "word\tner\nEU\tx\tB-ORG\nit\ty\tO\n"), token="word")
    with pytest.raises(UserError, match="2 columns are named 'ner'"):
        pairs(put(tmp_path, "ner ner\nEU B-ORG\nit O\n"), token=0, tag="ner")
    with pytest.raises(UserError, match="both column 0"):
        read(four, token=0, tag=0)


def test_a_header_that_was_not_asked_for_is_no_token(tmp_path):
    with pytest.raises(UserError, match=r"a\.conll:1: tag 'ner' is no tag.*give token and tag by their names"):
        pairs(put(tmp_path, "word ner\nEU B-ORG\nit O\n"))


def test_files_without_tags_can_be_predicted(tmp_path):
    assert pairs(put(tmp_path, "Ann\nleft\n\n#\n", "a.txt")) == [[("Ann", None), ("left", None)], [("#", None)]]
    assert pairs(put(tmp_path, "# a comment\nAnn\nleft\n")) == [[("Ann", None), ("left", None)]]
    assert pairs(put(tmp_path, "Ann\tNNP\nleft\tVBD\n", "a.txt")) == [[("Ann", None), ("left", None)]]
    assert pairs(put(tmp_path, "Ann NNP\nleft VBD\n")) == [[("Ann", None), ("left", None)]]
    assert pairs(put(tmp_path, "Ann NNP\nleft VBD\n\n" * 5, "a.txt")) == [[("Ann", None), ("left", None)]] * 5
    assert pairs(put(tmp_path, "Ann\t_\nleft\t_\n\nBob\tB-X\n\nx\t\n", "a.tsv"), tag=1) == [
        [("Ann", None), ("left", None)], [("Bob", "B-X")], [("x", None)]]  # fmt: skip
    assert pairs(put(tmp_path, "")) == pairs(put(tmp_path, "\n \n", "a.txt")) == []
    assert pairs(put(tmp_path, "-DOCSTART- O\n\n")) == []


def test_tokens_of_white_space_and_nothing_keep_their_place(tmp_path):
    assert pairs(put(tmp_path, "a\tO\n\u3000\tO\n \tB-X\n\tI-X\nb c\tO\n\xa0\tO\n")) == [
        [("a", "O"), ("\u3000", "O"), (" ", "B-X"), ("", "I-X"), ("b c", "O"), ("\xa0", "O")]]  # fmt: skip
    assert pairs(put(tmp_path, "a O\n\u3000 O\n\xa0 B-X\n\u200b O\na\u2028b O\n")) == [
        [("a", "O"), ("\u3000", "O"), ("\xa0", "B-X"), ("\u200b", "O"), ("a\u2028b", "O")]]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Ann B-PER\nleft\n. O\n", r":2: has 1 cell between blanks, but most lines have 2: 'left'; mend"),
        ("Ann B-PER\nNew York B-LOC\n. O\n", ":2: has 3 cells between blanks"),
        ("Ann\tB-PER\nleft O\n.\tO\n", ":2: has 1 cell between TABs"),
        ("Ann B-PER\n  O\n. O\n", ":2: has 1 cell"),  # a blank as token needs TABs
        ("a O\n\n#\nb O\nc O\n", ":3: has 1 cell.*'#'"),  # a token that lost its tag is no comment
        ("a O\n\n#tag\nb O\nc O\n", ":3: has 1 cell"),
        ("a x O\n\n# O\nb x O\nc x O\n", ":3: has 2 cells"),
        ("a O\nb O\n# in the midst\nc O\n", ":3: has 4 cells"),
        ("a O\nb PER\nc O\n", ":2: tag 'PER' is no tag"),
        ("a O\nb PER-B\nc O\n", ":2: tag 'PER-B'.*prefix first"),
        ("a O\nb _\nc O\n", ":2: token 'b' has no tag although others"),
        ("a\tO\nb\t\nc\tO\n", ":2: token 'b' has no tag"),
        ("a O\nb\rc O\nd O\n", r":2: has a carriage return \(CR\) inside the line"),
    ],
)
def test_damage_is_told_with_file_and_line(tmp_path, content, message):
    with pytest.raises(UserError, match=r"a\.conll" + message):
        pairs(put(tmp_path, content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a directory"):
        read(tmp_path)
    with pytest.raises(UserError, match="format: is 'xml'; choose conll, jsonl, text"):
        read(put(tmp_path, "a O\n"), format="xml")
    with pytest.raises(UserError, match=r"byte 9 \(line 2\), 0xe9.*encoding"):
        pairs(put(tmp_path, b"Ann B-X\nR\xe9ne B-X\n"))
    assert pairs(put(tmp_path, "René B-X\n".encode("cp1252")), encoding="cp1252") == [[("René", "B-X")]]
    assert pairs(put(tmp_path, "René B-X\n".encode("utf-16")), encoding="utf-16") == [[("René", "B-X")]]


def test_tokens_are_joined_as_their_script_is(tmp_path):
    chinese = put(tmp_path, "在 O\n北 B-LOC\n京 I-LOC\n， O\n\nG O\nD O\nP O\n", "zh.txt")
    assert [s.text for s in read(chinese)] == ["在北京，", "GDP"]
    assert [s.text for s in read(chinese, join=" ")] == ["在 北 京 ，", "G D P"]
    assert next(read(put(tmp_path, "1\t北\tO\n2\t京\tO\n"), token=1)).text == "北京"
    assert next(read(put(tmp_path, "在 O\n北京 B-LOC\n"))).text == "在 北京"
    path = put(tmp_path, '{"tokens": ["G", "D", "P"]}\n{"tokens": ["北", "京", "增", "长"]}\n', "a.jsonl")
    assert [s.text for s in read(path)] == ["GDP", "北京增长"]


def test_memory_stays_bounded(tmp_path):
    path = tmp_path / "a.conll"
    with open(path, "w") as file:
        for _ in range(200):
            file.write("token B-X\n" * 20 + "\n" + "other O\n" * 480 + "\n")
    tracemalloc.start()
    count = sum(len(s.tokens) for s in read(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 2_000_000, peak


def test_no_token_is_lost_or_made(tmp_path):
    rng = random.Random(0)
    pool = [
        "#",
        "#tag",
        "# a",
        "##",
        "-",
        "--",
        "a",
        "é",
        "中",
        "😀",
        "\u3000",
        "\xa0",
        "\u200b",
        "\x85",
        "I",
        "O",
        "_",
        "-X-",
    ]
    for trial in range(300):
        tab = trial % 2 == 0
        tokens = [token for token in [*pool, " ", ""] if tab or (token and " " not in token)]
        file = [
            [(rng.choice(tokens), rng.choice(["O", "B-X", "I-X"])) for _ in range(rng.randrange(1, 6))]
            for _ in range(rng.randrange(1, 6))
        ]
        content = rng.choice(["", "\ufeff"])
        for sentence in file:
            content += rng.choice(["", "\n", " \n", "-DOCSTART- O\n"])
            content += rng.choice(["", "# id = 3\n", "# text = a b c d\n# x y z\n"])
            content += "".join(f"{token}{chr(9) if tab else ' '}{tag}\n" for token, tag in sentence) + "\n"
        if rng.random() < 0.5:
            content = content.replace("\n", "\r\n")
        path = put(tmp_path, content.rstrip("\r\n") if rng.random() < 0.5 else content)
        assert pairs(path) == file, content


# ---- JSONL and text ----------------------------------------------------------------------------------------------


def test_jsonl_with_tokens(tmp_path):
    rows = [
        {"id": 7, "tokens": ["Ann", "left"], "tags": ["B-PER", " O "]},
        {"words": ["Bob"], "ner_tags": ["B-PER"]},
        {"tokens": ["Bob"], "labels": None},
        {"tokens": [], "tags": []},
        {"tokens": ["Ann", "!", "left"], "tags": ["B-PER", "O", "O"], "text": " Ann!  left"},
    ]
    path = put(tmp_path, "\ufeff" + "\r\n".join(map(json.dumps, rows)), "a.jsonl")
    found = list(read(path))
    assert [s.tags for s in found] == [("B-PER", "O"), ("B-PER",), None, (), ("B-PER", "O", "O")]
    assert [s.text for s in found] == ["Ann left", "Bob", "Bob", "", " Ann!  left"]
    assert (found[4].starts, found[4].ends) == ((1, 4, 7), (4, 5, 11))
    assert found[0].fields["id"] == 7 and found[1].where == f"{path}:2"
    assert all(s.text[a:b] == t for s in found for a, b, t in zip(s.starts, s.ends, s.tokens, strict=True))
    other = put(tmp_path, '{"form": ["Ann"], "gold": ["S-X"], "tags": ["O"]}', "b.json")
    assert pairs(other, token="form", tag="gold") == [[("Ann", "S-X")]]
    assert pairs(put(tmp_path, '{"tokens": ["Ann"]}', "c"), format="jsonl") == [[("Ann", None)]]


def test_jsonl_with_spans(tmp_path):
    rows = [
        {
            "text": "Ann left Köln.",
            "entities": [{"start": 9, "end": 13, "label": "LOC", "text": "Köln"}, [0, 3, "PER"]],
        },
        {
            "text": "😀 Ann",
            "spans": [{"start": 2, "end": 5, "type": "PER"}],
            "tokens": [{"text": "😀"}, {"text": "Ann"}],
        },
        {"text": "Ann", "label": [[0, 3, " PER "], [0, 3, "PER"]]},
        {"text": "Ann", "labels": []},
        {"text": "Ann"},
        {"text": "Ann", "entities": [{"start_offset": 0, "end_offset": 3, "label": "PER"}]},
    ]
    path = put(tmp_path, "\n".join(json.dumps(r) for r in rows), "a.jsonl")
    found = list(read(path))
    ann = (Span("PER", 0, 3),)
    assert [s.entities for s in found] == [
        (Span("PER", 0, 3), Span("LOC", 9, 13)), (Span("PER", 2, 5),), ann, (), None, ann]  # fmt: skip
    assert all(s.tokens is None and s.tags is None for s in found)
    assert [s.entities for s in read(path, tag=None)] == [None] * 6
    tokenizer = Tokenizer(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", lower_case=True)
    _, starts, ends = zip(*tokenizer.basic(found[0].text), strict=True)
    words = found[0].with_words(starts, ends)
    assert words.tokens == ("Ann", "left", "Köln", ".")
    assert words.tags == ("B-PER", "O", "B-LOC", "O")
    assert align(found[0].entities, starts, ends)[1] == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a"], "tags": []}, "has 1 tokens and 0 tags"),
        ({"tokens": ["a"], "tags": [3]}, "number 1 of tags is 3, no string; write the tags' names"),
        ({"tokens": ["a", None]}, "number 2 of tokens is None"),
        ({"tokens": "a b"}, "tokens is a JSON str"),
        ({"tokens": ["a"], "tags": ["PER"]}, "tag 'PER' is no tag"),
        ({"tokens": ["a"], "words": ["b"]}, "has the keys 'tokens' and 'words'; say which with the option token"),
        ({"tokens": ["a"], "tags": ["O"], "labels": ["O"]}, "has the keys 'tags' and 'labels'.*option tag"),
        ({"tokens": ["a", "b"], "text": "a, b"}, "token 2, 'b', does not come next in the text at character 1: ', b'"),
        ({"sentence": "a"}, "has neither tokens nor a text; its keys are 'sentence'"),
        ({"text": 3}, "has neither tokens nor a text"),
        ({"text": "Ann", "entities": {}}, "entities is a JSON dict"),
        ({"text": "Ann", "entities": [[0, 3]]}, "is not understood"),
        ({"text": "Ann", "entities": [[0, "3", "PER"]]}, "start and end must be whole numbers"),
        ({"text": "Ann", "entities": [[False, 3, "PER"]]}, "whole numbers"),
        ({"text": "Ann", "entities": [{"start": 0, "end": 3}]}, "the label a string"),
        ({"text": "Ann", "entities": [[0, 3, " "]]}, "empty label"),
        ({"text": "Ann", "entities": [[0, 4, "PER"]]}, "does not lie within the text's 3 characters"),
        ({"text": "Ann", "entities": [[2, 2, "PER"]]}, "does not lie within"),
        ({"text": "😀 Ann", "entities": [{"start": 3, "end": 6, "label": "PER", "text": "Ann"}]}, "text's 5 char"),
        ({"text": "😀 Ann.", "entities": [{"start": 3, "end": 6, "label": "PER", "text": "Ann"}]},
         "says 'Ann', but characters 3 to 6 are 'nn.'; count characters .not bytes or UTF-16 units"),
        ({"text": "Ann Lee", "entities": [[0, 7, "PER"], [4, 7, "SUR"]]}, "PER 'Ann Lee' .0 to 7. and SUR.*overlap"),
    ],
)  # fmt: skip
def test_damaged_objects_are_told_with_file_and_line(tmp_path, row, message):
    path = put(tmp_path, '{"tokens": ["x"]}\n' + json.dumps(row) + "\n", "a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl:2: .*" + message):
        list(read(path))


def test_plain_text_is_told_from_columns(tmp_path):
    def text(content, name="a.txt"):
        found = list(read(put(tmp_path, content, name)))
        assert all(s.tokens is None and s.tags is None and s.entities is None for s in found)
        return [s.text for s in found]

    prose = "Ann left Köln.\n\nShe went to Rome, and so did I\n  \n\n"
    assert text(prose) == ["Ann left Köln.", "", "She went to Rome, and so did I"]
    assert text("\ufeffAnn left.\r\nBob came.\r\n") == ["Ann left.", "Bob came."]
    assert text("Ann left\n\nBob came\n") == ["Ann left", "", "Bob came"]  # too few lines to call it columns
    assert text("The cat sat") == ["The cat sat"]
    assert text("He and I") == ["He and I"]
    assert text("Ann Lee\n" * 20) == ["Ann Lee"] * 20
    assert text("1\tAnn left early.\n2\tBob came too late.\n") == ["1\tAnn left early.", "2\tBob came too late."]
    assert text("他去了北京大学。\n我们也去。\n") == ["他去了北京大学。", "我们也去。"]
    assert text("Ann\n", "a.text") == ["Ann"]
    assert [s.text for s in read(put(tmp_path, "Ann O\n"), format="text")] == ["Ann O"]
    assert pairs(put(tmp_path, prose.split("\n")[0] + "\n", "a.txt"), format="conll") == [[("Ann", None)]]
    found = list(read(put(tmp_path, "\n\na b c\n", "a.txt")))
    assert [s.where.rsplit(":", 1)[1] for s in found] == ["1", "2", "3"]
    words = pairs(put(tmp_path, "他\n去\n了\n北京\n大学\n。\n", "a.txt"))
    assert words == [[(w, None) for w in ("他", "去", "了", "北京", "大学", "。")]]


# ---- writing -----------------------------------------------------------------------------------------------------


def test_a_written_file_has_what_was_read_and_the_prediction(tmp_path):
    content = "-DOCSTART- -X- O\n\n# text = EU left\nEU NNP B-ORG\nleft VBD O\n\n# PRP O\n"
    path = put(tmp_path, content)
    write(tmp_path / "out.conll", read(path), [["B-LOC", "O"], ["B-X"]])
    assert (tmp_path / "out.conll").read_text() == (
        "-DOCSTART- -X- O O\n# text = EU left\nEU NNP B-ORG B-LOC\nleft VBD O O\n\n# PRP O B-X\n\n"
    )
    again = list(read(tmp_path / "out.conll", tag=2))
    assert [s.tags for s in again] == [s.tags for s in read(path)]
    assert [s.tags for s in read(tmp_path / "out.conll")] == [("B-LOC", "O"), ("B-X",)]


def test_names_of_columns_gain_one(tmp_path):
    for content in ("word\tner\nAnn\tB-X\n\nb\tO\n", "# global.columns = word ner\nAnn\tB-X\n\nb\tO\n"):
        path = put(tmp_path, content)
        write(tmp_path / "out.tsv", read(path, token="word", tag="ner"), [["O"], ["O"]])
        name = "PREDICTED" if content[0] == "#" else "predicted"
        assert pairs(tmp_path / "out.tsv", token="word", tag=name) == [[("Ann", "O")], [("b", "O")]]
        assert pairs(tmp_path / "out.tsv", token="word", tag="ner") == [[("Ann", "B-X")], [("b", "O")]]


def test_other_sentences_are_written_as_token_gold_prediction(tmp_path):
    rows = '{"tokens": ["a b", "c\\td", "\\u3000", ""], "tags": ["B-X", "O", "O", "O"]}\n{"tokens": ["x"]}'
    write(tmp_path / "out.tsv", read(put(tmp_path, rows, "a.jsonl")), [["O"] * 4, ["B-X"]])
    assert (tmp_path / "out.tsv").read_text() == "a b\tB-X\tO\nc d\tO\tO\n\u3000\tO\tO\n\tO\tO\n\nx\tB-X\n\n"


def test_a_prediction_for_every_token_or_no_file(tmp_path):
    path, out = put(tmp_path, "a O\nb O\n\nc O\n"), tmp_path / "out"
    for predicted, message in (
        ([["O"], ["O"]], r"a\.conll:1: has 2 tokens and 1 predicted tags"),
        ([["O", "O"]], "not as many as the sentences"),
        ([["O", "O"], ["O"], []], "not as many as the sentences"),
    ):
        with pytest.raises(UserError, match=message):
            write(out, read(path), predicted)
    with pytest.raises(UserError, match="has no words yet"):
        write(out, read(path, format="text"), [[]])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.conll"]


# ---- real files: the counts of their sources ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentences", "tokens", "counts"),
    [
        ("conll2003/train.txt", 14041, 203621, {"PER": 6600, "LOC": 7140, "ORG": 6321, "MISC": 3438}),
        ("conll2003/valid.txt", 3250, 51362, {"PER": 1842, "LOC": 1837, "ORG": 1341, "MISC": 922}),
        ("conll2003/test.txt", 3453, 46435, {"PER": 1617, "LOC": 1668, "ORG": 1661, "MISC": 702}),
        ("biomed_ncbi_disease/train.tsv", 5432, 136086, {"Disease": 5145}),  # three tokens are "#"
        ("biomed_ncbi_disease/devel.tsv", 923, 23969, {"Disease": 787}),
        ("biomed_ncbi_disease/test.tsv", 940, 24497, {"Disease": 960}),
        ("zh/ner_msra/msra_test_bio.txt", 3442, 172601, {"LOC": 2886, "PER": 1973, "ORG": 1331}),
        ("zh/ner_peoples_daily/example.test", 4636, 219197, {"LOC": 3658, "ORG": 2185, "PER": 1864}),
        ("zh/ner_peoples_daily/example.dev", 2318, 109870, {"LOC": 1951, "ORG": 984, "PER": 884}),
    ],
)
def test_real_files(shared, name, sentences, tokens, counts):
    found = list(read(shared(f"data/{name}")))
    assert (len(found), sum(len(s.tokens) for s in found)) == (sentences, tokens)
    assert detect(s.tags for s in found) == "IOB2"
    seen: dict = {}
    for s in found:
        for span in spans(s.tags, "IOB2", strict=True):
            seen[span.type] = seen.get(span.type, 0) + 1
    assert seen == counts
    assert {" " in s.text for s in found if len(s.tokens) > 1} == {not name.startswith("zh/")}
    part = found[:500]
    for scheme in ("IOB1", "BIOES", "BILOU", "BMES"):
        there = [convert(s.tags, "IOB2", scheme) for s in part]
        assert detect(there) == scheme
        assert [tuple(convert(t, scheme, "IOB2")) for t in there] == [s.tags for s in part]


def test_a_real_file_is_written_as_it_was(shared, tmp_path):
    path = shared("data/conll2003/test.txt")
    write(tmp_path / "out.txt", read(path), (s.tags for s in read(path)))
    wrote = [line.rsplit(" ", 1)[0] for line in (tmp_path / "out.txt").read_text().split("\n") if line]
    assert wrote == [line for line in path.read_text().split("\n") if line]
    assert [s.tags for s in read(tmp_path / "out.txt")] == [s.tags for s in read(path)]
