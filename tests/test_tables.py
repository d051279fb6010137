"""Data files: forms, byte-order marks, line ends, quoting, encodings, columns; memory stays bounded."""

import json
import time
import tracemalloc

import pytest

from keras_bert_lab import UserError
from keras_bert_lab.tables import Table, blank, label_name, label_order, lines, writer


def rows(path, **options):
    return [row for _, row in Table(path, **options)]


def put(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_tsv_takes_quotes_literally_and_csv_does_not(tmp_path):
    tsv = put(tmp_path, "a.tsv", 'text\tlabel\n"open\t1\na "b" c\t0\n')
    assert rows(tsv) == [['"open', "1"], ['a "b" c', "0"]]
    csv = put(tmp_path, "a.csv", 'text,label\n"a, ""b""\nc",1\nd,0\n')
    assert list(Table(csv)) == [(2, ['a, "b"\nc', "1"]), (4, ["d", "0"])]
    assert rows(put(tmp_path, "b.tsv", 'text\tlabel\n"a\tb"\t1\n'), quoted=True) == [["a\tb", "1"]]
    assert rows(put(tmp_path, "b.csv", 'a;b\n"x;1\n'), quoted=False, delimiter=";") == [['"x', "1"]]


def test_separators_inside_unicode_text_are_no_line_ends(tmp_path):
    path = put(tmp_path, "a.tsv", "text\tlabel\na\u2028b\x85c\x0bd\t1\n")
    assert rows(path) == [["a\u2028b\x85c\x0bd", "1"]]
    path = put(tmp_path, "a.csv", "text,label\na\u2028b\x85c\x0bd,1\n")
    assert rows(path) == [["a\u2028b\x85c\x0bd", "1"]]


def test_lines_of_a_text_file(tmp_path):
    path = put(tmp_path, "a", b"\xef\xbb\xbfa\xe2\x80\xa8b\r\n\nc\x0cd \n\xc2\x85")
    assert list(lines(path)) == [(1, "a\u2028b"), (2, ""), (3, "c\x0cd "), (4, "\x85")]
    assert list(lines(put(tmp_path, "a", b""))) == []
    with pytest.raises(UserError, match=r"byte 4 \(line 2\), 0xff"):
        list(lines(put(tmp_path, "a", b"abc\n\xff\n")))
    with pytest.raises(UserError, match="cannot be read"):
        list(lines(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="Python knows no 'klingon'"):
        list(lines(path, "klingon"))


def test_blank_lines_at_the_end_only_are_no_rows(tmp_path):
    for name in ("a.tsv", "a.csv"):
        assert rows(put(tmp_path, name, "text\na\n\nb\n\n \n\r\n")) == [["a"], [""], ["b"]]
    assert rows(put(tmp_path, "a.jsonl", '\n{"a": 1}\n\n{"a": 2}\n\n')) == [{"a": 1}, {"a": 2}]


def test_jsonl(tmp_path):
    path = put(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"text": "a", "label": 1}\r\n{"label": null}\n')
    table = Table(path)
    assert table.names == ("text", "label")
    assert list(table) == [(1, {"text": "a", "label": 1}), (2, {"label": None})]
    with pytest.raises(UserError, match="numbered columns"):
        table.find(0, "text_column")
    with pytest.raises(UserError, match=r"a\.jsonl:2.*holds a JSON list"):
        rows(put(tmp_path, "a.jsonl", '{"a": 1}\n[1]\n'))
    with pytest.raises(UserError, match=r"b\.json:1.*is not JSON.*one JSON object a line"):
        rows(put(tmp_path, "b.json", "[\n{}\n]\n"))


def test_rows_with_another_number_of_cells_are_listed_with_their_lines(tmp_path):
    path = put(tmp_path, "a.tsv", "text\tlabel\na\t1\nb\nc\t1\nd\te\t2\n")
    with pytest.raises(UserError, match="2 cells, but line 3 has 1, line 5 has 3"):
        rows(path)
    many = put(tmp_path, "b.tsv", "text\tlabel\n" + "b\n" * 50)
    with pytest.raises(UserError) as error:
        rows(many)
    assert error.value.evidence.count("line") == 10


def test_wrong_quoting_names_the_row_that_begins_it(tmp_path):
    with pytest.raises(UserError, match=r"a\.csv:3.*quoted wrongly.*set quoted to false"):
        rows(put(tmp_path, "a.csv", 'text,label\na,1\n"b,1\nc,0\n'))
    with pytest.raises(UserError, match=r"a\.csv:2.*quoted wrongly"):
        rows(put(tmp_path, "a.csv", 'text,label\n"a"b,1\n'))


def test_long_cells(tmp_path):
    text = "x" * 1_000_000
    assert rows(put(tmp_path, "a.csv", f'text,label\n"{text}",1\n')) == [[text, "1"]]


def test_wrong_encoding_names_byte_line_and_remedy(tmp_path):
    head = "text\tlabel\n" + "aé\t1\n" * 30_000  # the bad byte lies behind several read buffers
    path = put(tmp_path, "a.tsv", head.encode() + b"Sepp\xc6l\t1\n")
    at = len(head.encode()) + 4
    with pytest.raises(UserError, match=rf"byte {at} \(line 30002\), 0xc6, is not utf-8.*encoding.*latin-1"):
        rows(path)
    assert rows(path, encoding="latin-1")[-1] == ["SeppÆl", "1"]
    with pytest.raises(UserError, match=r"byte 0.*utf-16"):
        rows(put(tmp_path, "b.tsv", "text\n".encode("utf-16")))
    assert rows(put(tmp_path, "b.tsv", "text\né\n".encode("utf-16")), encoding="utf-16") == [["é"]]
    with pytest.raises(UserError, match="ends the file inside a character"):
        rows(put(tmp_path, "c.tsv", b"text\nabc\xc3"))
    with pytest.raises(UserError, match="Python knows no 'latin-99'"):
        Table(path, encoding="latin-99")


def test_every_encoding_finds_its_own_byte(tmp_path):
    for encoding, good, bad in [
        ("utf-8", "日本", b"\xff"),
        ("gb18030", "日本", b"\xff"),
        ("shift_jis", "日本", b"\xff"),
    ]:
        body = f"text\n{good}\n".encode(encoding)
        with pytest.raises(UserError, match=f"byte {len(body)} "):
            rows(put(tmp_path, "a.tsv", body + bad + b"\n"), encoding=encoding)


def test_columns(tmp_path):
    table = Table(put(tmp_path, "a.tsv", "id\ttext\tx\tx\n1\ta\tb\tc\n"))
    assert table.find("text", "text_column") == 1 and table.find(3, "c") == 3
    assert table.find("gold", "label_column", required=False) is None
    assert table.find(4, "label_column", required=False) is None
    with pytest.raises(UserError, match=r"has no column 'txt'; it has 'id', 'text', 'x', 'x'.*did you mean 'text'"):
        table.find("txt", "text_column")
    with pytest.raises(UserError, match=r"columns \[2, 3\] .*all named 'x'"):
        table.find("x", "text_column")
    with pytest.raises(UserError, match="no column 7"):
        table.find(7, "text_column")
    assert table.fields(["1", "a", "b", "c"]) == {"id": "1", "text": "a", "x (2)": "b", "x (3)": "c"}
    bare = Table(table.path, header=False)
    with pytest.raises(UserError, match="header is false"):
        bare.find("text", "text_column")
    with pytest.raises(UserError, match="no column 4; it has 0: 'id', 1: 'text'"):
        bare.find(4, "text_column")
    assert bare.fields(["a"]) == {0: "a"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.xlsx", b"PK", "'.xlsx' says nothing known"),
        ("a.tsv", b"text\tlabel\ra\t1\rb\t0\r", "CR alone"),
    ],
)
def test_refusals(tmp_path, name, content, words):
    with pytest.raises(UserError, match=words):
        rows(put(tmp_path, name, content))


def test_missing_empty_and_odd_files(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        Table(tmp_path / "none.tsv")
    with pytest.raises(UserError, match="is a directory"):
        Table(tmp_path, format="tsv")
    empty = put(tmp_path, "a.tsv", "")
    assert rows(empty, header=False) == []
    with pytest.raises(UserError, match="is empty, it has no header row"):
        rows(empty)
    with pytest.raises(UserError, match="is not one character"):
        Table(empty, delimiter="::")


def test_two_million_rows_stream_in_bounded_memory(tmp_path):
    # tracemalloc slows reading tenfold: it watches the first 100,000 rows, which would show what grows with rows
    path = tmp_path / "big.tsv"
    line = "a review of some ordinary length, with words and more words in it\tpositive\n"
    with open(path, "w") as file:
        file.write("text\tlabel\n")
        for _ in range(2_000):
            file.write(line * 1_000)
    began, count = time.perf_counter(), 0
    for count, _ in enumerate(Table(path), 1):  # noqa: B007
        pass
    seconds = time.perf_counter() - began
    assert count == 2_000_000
    tracemalloc.start()
    for count, _ in enumerate(Table(path), 1):
        if count == 100_000:
            break
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"2,000,000 rows in {seconds:.1f} s; peak {peak / 1e3:.0f} kB over 100,000 rows")
    assert peak < 500_000
    assert seconds < 60


def test_labels_are_stripped_strings_and_integers_agree():
    import numpy as np

    assert {label_name(x) for x in ("1", " 1", 1, 1.0, "1.0", "1.00 ", np.int64(1), np.float32(1))} == {"1"}
    assert [
        label_name(x) for x in (True, "True", np.bool_(False), "2.5", 2.5, "-3.0", "v1.0", "1.", "\u00a0x\u3000")
    ] == ["true", "True", "false", "2.5", "2.5", "-3", "v1.0", "1", "x"]
    assert [label_name(x) for x in ("", "  ", None, float("nan"), "NaN", np.float32("nan"))] == [None] * 6
    assert blank("\u3000\n") and not blank("nana") and not blank(0)


def test_label_order():
    assert label_order(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert label_order(["b", "10", "a", "9"]) == ("10", "9", "a", "b")
    assert label_order(["好", "é", "z"]) == ("z", "é", "好")


def test_real_files(shared):
    """Row counts that SOURCES.md states; unbalanced quotes, embedded line ends, a mark, damaged letters."""
    counts = {
        "sst2/dev.tsv": (872, {"header": False}),
        "pairs/mrpc/train.tsv": (3668, {}),
        "pairs/mrpc/dev.tsv": (408, {}),
        "pairs/mrpc/msr_paraphrase_test.txt": (1725, {}),
        "pairs/rte/val.tsv": (363, {"header": False}),
        "noisy/sms_spam/sms.tsv": (5574, {"header": False}),
        "noisy/airline/Tweets.csv": (14640, {}),
        "financial_phrasebank/all-data.csv": (4846, {"encoding": "latin-1"}),
        "zh/ocnli/dev.json": (3000, {}),
    }
    for name, (count, options) in counts.items():
        assert len(rows(shared(f"data/{name}"), **options)) == count, name
    with pytest.raises(UserError, match=r"byte 2597 .*0xc6"):
        rows(shared("data/financial_phrasebank/all-data.csv"))
    assert Table(shared("data/pairs/mrpc/dev.tsv")).names[0] == "Quality"


def test_jsonl_is_read_as_json_reads_it(tmp_path):
    row = {"text": "a\tb\nc \u2028 \U0001f600", "label": 1.0}
    assert rows(put(tmp_path, "a.jsonl", json.dumps(row) + "\n")) == [row]


def test_what_is_written_can_be_read(tmp_path):
    records = [
        {"label": 'a "b"', "p": 0.25, "all": {"x": 1, "y": None}},
        {"label": "c\td\ne", "p": 1.0, "all": {"x": 2, "y": 3}},
    ]
    for ending in ("tsv", "csv", "jsonl"):
        path = tmp_path / f"out.{ending}"
        with writer(path) as write:
            for record in records:
                write(record)
            assert not path.exists()  # not before it is whole
        got = rows(path)
        if ending == "jsonl":
            assert got == records
            continue
        assert Table(path).names == ("label", "p", "all.x", "all.y")
        text = "c d e" if ending == "tsv" else "c\td\ne"
        assert got == [['a "b"', "0.25", "1", ""], [text, "1.0", "2", "3"]]
    with pytest.raises(RuntimeError, match="stop"), writer(tmp_path / "half.tsv") as write:
        write(records[0])
        raise RuntimeError("stop")
    assert not list(tmp_path.glob("*half*"))
    with pytest.raises(UserError, match="says no format"), writer(tmp_path / "out.xlsx"):
        pass
