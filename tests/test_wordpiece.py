import copy
import json
import pickle
import random
import subprocess
import sys
import unicodedata
from functools import cache

import numpy as np
import pytest

from keras_bert_lab.errors import UserError
from keras_bert_lab.wordpiece import CODE_POINTS, DROP, ORDINARY, SPACE, Tokenizer, code_points, read_vocab

VOCABS = ("uncased", "chinese", "cased", "multi_cased")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MODES = [(lower, strip) for lower in (True, False) for strip in (True, False)]
NASTY = [
    *"aAbZ19 .,'\"-[]()\t\n\r",
    *"\x00\x1c\x85\xa0\xad\u200b\u200d\u2028\u2029\u3000\ufeff\ufffd\ufffe\ue000\U0010ffff\U0001f600\ufe0f",
    *"ΑΣσς\u02b0\u2019\u00b7:\u0345ªⅠ",  # what a final sigma looks at
    *"\u0130ıIßẞﬁſK",  # cases that change length or come back from elsewhere
    *"\u0301\u0300\u034f\u302e\u302f\U0001d15e\U0001d160\U0001d165\U0001d16d\U00016ff0\U00016ff1",  # order of marks
    *"가각힣\u1100\u1161\u11abéế中国〇\uf900\ufa6c\U0002f800",
    *"\u1fed\u2260\u037e\u1fef\u0958\u0390",  # become punctuation, or several
    *["[MASK]", "[SEP]", "[mask]", "word", "Straße", "ΟΔΟΣ", "naïve", "  "],
]


def tokenizer(entries, **options):
    return Tokenizer("\n".join([*SPECIALS, *entries]).encode(), **{"lower_case": True, **options})


def originals_passes(text, lower, strip):
    """BasicTokenizer as the paper's code has it, pass after pass over whole strings, written independently."""
    kept = []
    for char in text:
        category = unicodedata.category(char)
        if char in " \t\n\r" or category == "Zs":
            kept.append(" ")
        elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
            chinese = any(
                first <= ord(char) <= last
                for first, last in [
                    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
                    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F),
                ]
            )  # fmt: skip
            kept.append(f" {char} " if chinese else char)
    words = []
    for word in "".join(kept).split():
        word = word.lower() if lower else word
        if strip:
            word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
        fresh = True
        for char in word:
            if (char.isascii() and not char.isalnum() and char > " ") or unicodedata.category(char)[0] == "P":
                words.append(char)
                fresh = True
            elif fresh:
                words.append(char)
                fresh = False
            else:
                words[-1] += char
    return words


@cache
def characters():
    """(assigned, all) characters."""
    every = [chr(c) for c in range(CODE_POINTS)]
    return [c for c in every if unicodedata.category(c) not in ("Cn", "Co")], every


def fuzz(count, seed):
    rng = random.Random(seed)
    assigned, every = characters()
    texts = []
    for _ in range(count):
        kinds = rng.choice(["n", "n", "na", "e", "p", "ppppn", "npea"])
        make = {
            "n": lambda: rng.choice(NASTY),
            "a": lambda: rng.choice(assigned),
            "e": lambda: rng.choice(every),
            "p": lambda: chr(rng.randrange(32, 127)),
        }
        texts.append("".join(make[rng.choice(kinds)]() for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 40]))))
    return texts


def check_offsets(text, starts, ends):
    assert all(0 <= s < e <= len(text) for s, e in zip(starts, ends, strict=True))
    assert starts == sorted(starts) and ends == sorted(ends)


@pytest.mark.parametrize("name", VOCABS)
def test_every_row_of_the_oracle(tokenization, vocabulary, name):
    rows = 0
    for lower in (True, False):
        t, mine = Tokenizer.from_vocab(vocabulary(name), lower_case=lower), tokenization(name, lower)
        rows += len(mine)
        for row in mine:
            text = row["text"]
            ids, starts, ends = t.encode(text)
            assert ids == row["ids"], ascii(text)
            assert t.tokenize(text) == row["wordpieces"], ascii(text)
            assert [word for word, _, _ in t.basic(text)] == row["basic_tokens"], ascii(text)
            check_offsets(text, starts, ends)
        bulk = t.pieces([row["text"] for row in mine])
        assert [bulk[i][0].tolist() for i in range(len(bulk))] == [row["ids"] for row in mine]
        print(f"{name}, lower_case {lower}: {len(mine)} rows equal")
    assert rows > 1000


@pytest.mark.parametrize(("lower", "strip"), MODES)
def test_any_text_gives_the_words_of_the_original(lower, strip):
    t = tokenizer([], lower_case=lower, strip_accents=strip)
    for text in fuzz(2500, seed=lower * 2 + strip):
        basic = t.basic(text)
        assert [word for word, _, _ in basic] == originals_passes(text, lower, strip), ascii(text)
        check_offsets(text, [s for _, s, _ in basic], [e for _, _, e in basic])


@pytest.mark.parametrize(("lower", "strip"), MODES)
def test_every_assigned_code_point_inside_a_word(lower, strip):
    t = tokenizer([], lower_case=lower, strip_accents=strip)
    for c in range(CODE_POINTS):
        if 0xAC10 < c < 0xD790 or 0x3410 < c < 0x9FF0 or 0x17010 < c < 0x18CD0 or 0x20010 < c < 0x31340:
            continue  # inside uniform blocks
        if c < 0x31400 or 0xE0000 <= c < 0xE0200:
            text = f"a{chr(c)}b"
            assert [w for w, _, _ in t.basic(text)] == originals_passes(text, lower, strip), hex(c)


@pytest.mark.parametrize(("lower", "strip"), MODES)
def test_what_the_table_promises(lower, strip):
    t = code_points(lower, strip)
    length = np.diff(t.splits)
    assert (length[(t.kind == DROP) | (t.kind == SPACE)] == 0).all()
    assert (length[(t.kind != ORDINARY) & (t.kind != DROP) & (t.kind != SPACE)] == 1).all()  # ALONE: one for one
    # marks are put in order by runs of sources: right only if such a source has no starter but its first character
    sources = np.repeat(np.arange(CODE_POINTS), length)[t.order[t.flat] > 0]
    assert bool(len(sources)) == strip
    for c in sources.tolist():
        rest = unicodedata.normalize("NFD", chr(c))[1:]
        assert all(unicodedata.combining(x) for x in rest), hex(c)
    # a character that vanishes with its accents must not matter to a final sigma
    assert not (t.cased & (length == 0) & (t.kind == ORDINARY)).any()


def test_special_tokens_only_when_asked():
    text = ["[", "]", "mask", "sep", "hello", "world", "a", "b"]
    off = tokenizer(text)
    on = off.with_options(special_tokens=True)
    mask, sep = off.mask_id, off.sep_id
    assert off.tokenize("hello [MASK] world") == ["hello", "[", "mask", "]", "world"]
    assert on.encode("hello [MASK] world") == ([9, mask, 10], [0, 6, 13], [5, 12, 18])
    assert on.tokenize("hello[MASK]world") == ["hello", "[MASK]", "world"]
    assert on.tokenize("[mask] [MASK ] [ MASK]").count("[MASK]") == 0
    assert sep not in off.encode("a [SEP] b")[0] and on.encode("a [SEP] b")[0].count(sep) == 1
    assert off.windows(["a [SEP] b"], max_length=20).input_ids.tolist().count(sep) == 1
    assert on.tokenize("  [MASK]  \n [MASK][MASK] ") == ["[MASK]"] * 3
    assert on.encode("  [MASK]  \n [MASK][MASK] ")[1] == [2, 12, 18]
    assert on.settings()["special_tokens"] and not off.settings()["special_tokens"]
    assert tokenizer(text, special_tokens=True).pieces(["x [CLS]"])[0][0].tolist() == [1, 2]


def test_case_and_accents():
    vocab = ["café", "cafe", "Café"]
    decomposed = "Cafe\u0301"
    assert tokenizer(vocab, lower_case=False).tokenize("Café") == ["Café"]
    assert tokenizer(vocab).tokenize("Café") == tokenizer(vocab).tokenize(decomposed) == ["cafe"]
    assert tokenizer(vocab, strip_accents=False).tokenize("Café") == ["café"]
    assert tokenizer([*vocab, "Cafe"], lower_case=False, strip_accents=True).tokenize("Café") == ["Cafe"]
    assert tokenizer(["große"]).tokenize("GROßE") == ["große"]  # lower(), not case folding


def test_settings_give_the_same_ids_in_a_new_process(tmp_path):
    cased = tokenizer(["Café", "cafe", "##s"], lower_case=False)
    (tmp_path / "v").write_bytes(cased.vocab_bytes)
    (tmp_path / "s").write_text(json.dumps(cased.settings()))
    code = (
        "import json, pathlib, sys; from keras_bert_lab.wordpiece import Tokenizer; d = pathlib.Path(sys.argv[1]);"
        "t = Tokenizer((d / 'v').read_bytes(), **json.loads((d / 's').read_text()));"
        "print(t.encode('Caf\\u00e9s cafe')[0], 'tensorflow' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True).stdout
    assert said.split("]") == [str(cased.encode("Cafés cafe")[0])[:-1], " False\n"]


def test_words_of_up_to_200_characters():
    t = tokenizer(["a", "##a", "é", "##é"], lower_case=False)
    for count in (100, 101, 200):
        ids, starts, ends = t.encode("a" * count)
        assert len(ids) == count and starts == list(range(count)) and ends == list(range(1, count + 1))
    assert t.encode("a" * 201) == ([t.unk_id], [0], [201])
    assert len(t.encode("é" * 60)[0]) == 60
    # the limit counts normalised characters: a syllable is three, a stripped accent none
    t = tokenizer(["a", "##a"])
    assert len(t.encode("a\u0301" * 200)[0]) == 200
    assert t.encode("각" * 67 + " a")[:3] == ([t.unk_id, 5], [0, 68], [67, 69])


def test_offsets_point_into_the_users_text():
    t = tokenizer(
        ["cafe", "ok", "'", "s", "istanbul", "i", "##̇stanbul", ".", "中", "国", "br", "##ᄎ", "##ᅡ", "##ᆼ", "##n"]
    )

    def spans(text):
        return list(zip(*t.encode(text)[1:], strict=True))

    assert spans("Café ok") == [(0, 4), (5, 7)]
    assert spans("Cafe\u0301 ok") == [(0, 4), (6, 8)]  # a mark that is stripped at the end lies outside
    assert spans("Caf\u00ade ok") == [(0, 5), (6, 8)]  # what is dropped inside a word lies inside
    assert spans("Br창n's") == [(0, 2), (2, 3), (2, 3), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert spans("İstanbul.") == [(0, 8), (8, 9)]
    assert spans("中国ok") == [(0, 1), (1, 2), (2, 4)]
    assert spans("  ok") == [(2, 4)]
    assert spans("\ufeffok") == [(1, 3)]
    assert spans("ok\u200b ok") == [(0, 2), (4, 6)]
    kept = tokenizer(["café", "cafe\u0301", "ok"], strip_accents=False)
    assert list(zip(*kept.encode("Cafe\u0301 ok")[1:], strict=True)) == [(0, 5), (6, 8)]


LINES = [*SPECIALS, "hello", "##s", "world"]
FILES = {
    "LF": "\n".join(LINES) + "\n",
    "no final newline": "\n".join(LINES),
    "CRLF": "\r\n".join(LINES) + "\r\n",
    "a blank after each entry": " \n".join(LINES) + " \n",
    "byte order mark": "\ufeff" + "\n".join(LINES) + "\n",
}


@pytest.mark.parametrize("kind", FILES)
def test_vocabulary_files(tmp_path, kind):
    path = tmp_path / "vocab.txt"
    path.write_bytes(FILES[kind].encode())
    t = Tokenizer.from_vocab(tmp_path)
    assert t.encode("hellos world")[0] == [5, 6, 7] and len(t.tokens) == 8 and t.lower_case
    assert t.vocab_bytes == FILES[kind].encode()
    path.write_bytes(FILES[kind].replace("hello", "\u2028\nhello").encode())
    assert Tokenizer.from_vocab(path).encode("hellos \u2028 world")[0] == [6, 7, 8]


def test_odd_entries_are_harmless():
    t = tokenizer(["", "a", "##", "##b", "a", "", "##b\u2028"])
    assert t.encode("ab a ##")[0] == [9, 11, 9, 1, 1]  # U+2028 is white space: line 11 is "##b" again
    assert [w for w in t.warnings if "twice" in w] == ["vocabulary: 2 entries stand there twice; the later line counts"]
    assert read_vocab("a\u2028b\n\n \n".encode()) == ("a\u2028b", "", "")
    assert "not UTF-8" in Tokenizer(("\n".join(SPECIALS)).encode() + b"\n\xff\n", lower_case=True).warnings[0]


def test_no_vocabulary(tmp_path):
    with pytest.raises(UserError, match=r"has no \[CLS\] \[SEP\] \[PAD\] among its 3 entries"):
        Tokenizer(b"a\nb\n[UNK]\n", lower_case=True)
    with pytest.raises(UserError, match="no such file"):
        Tokenizer.from_vocab(tmp_path)


@pytest.mark.parametrize(
    ("folder", "file", "config", "entries", "lower", "strip"),
    [
        ("uncased_L-2", "vocab.txt", None, "A B", True, True),
        ("cased_L-12_H-768_A-12", "vocab.txt", None, "a b", False, False),
        ("multi_cased_L-12_H-768_A-12", "vocab.txt", None, "a b", False, False),
        ("multilingual_L-12_H-768_A-12", "vocab.txt", None, "A b", True, True),
        ("chinese_L-12_H-768_A-12", "vocab.txt", None, "A b", True, True),
        ("x", "bert-base-cased-vocab.txt", None, "a b", False, False),
        ("showcased", "vocab.txt", None, "a b", True, True),
        ("x", "vocab.txt", None, "A b", False, False),
        ("x", "vocab.txt", None, "a b", True, True),
        ("uncased", "vocab.txt", {"do_lower_case": False}, "a b", False, False),
        ("cased", "vocab.txt", {"do_lower_case": True, "strip_accents": False}, "a b", True, False),
        ("cased", "vocab.txt", {"do_lower_case": None, "strip_accents": None}, "a b", False, False),
    ],
)
def test_switches_are_read_from_what_lies_beside(tmp_path, folder, file, config, entries, lower, strip):
    path = tmp_path / folder / file
    path.parent.mkdir()
    path.write_text("\n".join([*SPECIALS, *entries.split()]))
    if config:
        (path.parent / "tokenizer_config.json").write_text(json.dumps(config))
    t = Tokenizer.from_vocab(path)
    assert (t.lower_case, t.strip_accents) == (lower, strip)
    given = Tokenizer.from_vocab(path, lower_case=not lower, strip_accents=True)
    assert (given.lower_case, given.strip_accents) == (not lower, True)
    clash = any(e.isupper() for e in entries.split()) == t.lower_case
    assert bool(t.warnings) == clash


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"tokenize_chinese_chars": false}', "tokenize_chinese_chars is false"),
        ('{"do_lower_case": "yes"}', "do_lower_case|lower_case"),
    ],
)
def test_a_tokenizer_config_that_cannot_be_followed(tmp_path, config, said):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS))
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(UserError, match=said):
        Tokenizer.from_vocab(tmp_path)


def test_clash_of_vocabulary_and_flag_on_real_vocabularies(vocabulary):
    for name, cased in (("uncased", False), ("cased", True), ("multi_cased", True)):
        for lower in (True, False):
            warnings = Tokenizer.from_vocab(vocabulary(name), lower_case=lower).warnings
            assert bool(warnings) == (lower == cased), warnings


def test_copies():
    t = tokenizer(["a", "Café"], lower_case=False, special_tokens=True)
    t.encode("a")
    for again in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
        assert again.settings() == t.settings() and again.encode("Café [MASK] a") == t.encode("Café [MASK] a")
    assert repr(t) == "<Tokenizer: 7 entries, lower_case=False, strip_accents=False, special_tokens=True>"


def test_what_is_no_text():
    t = tokenizer([])
    for bad, where in ((["a", None], "text 1: is NoneType"), ("a", "one string"), ([b"a"], "text 0: is bytes")):
        with pytest.raises(UserError, match=where):
            t.pieces(bad)
    with pytest.raises(UserError, match="is bytes"):
        t.encode(b"a")
    with pytest.raises(UserError, match="known: lower_case, strip_accents, special_tokens"):
        t.with_options(lower=True)
    assert len(t.pieces([])) == 0 and t.encode("") == ([], [], []) and t.encode("\ud800 \udfff")[0] == [1, 1]


def test_bulk_is_the_same_as_one_by_one_and_forgets_when_full():
    t = tokenizer(["a", "##a", "##b", "b", "中", "[", "]", "mask"], special_tokens=True)
    texts = fuzz(2500, seed=9)
    bulk = t.pieces(texts)
    old = t._memory
    old.size = 1 << 24
    for row, text in enumerate(texts):
        assert tuple(a.tolist() for a in bulk[row]) == t.encode(text)
    assert t._memory is not old
