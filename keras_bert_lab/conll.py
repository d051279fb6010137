"""Files of tagged sentences: CoNLL columns, JSONL with tokens and tags, JSONL with character spans, plain text.

What each format is, said once:

**Columns** ("conll"): a token a line, its cells between TABs, or between blanks and TABs if most lines have no TAB
(U+3000 and U+00A0 are no separators). Every line has as many cells as most lines have.

* Lines of white space end a sentence; so does the end of the file. Lines that begin with ``-DOCSTART-`` are no tokens.
* A line that begins with ``#`` is a comment if it stands before a sentence's first token, has words after the ``#``,
  and does not look like a token of this file: another number of cells, or something else than a tag where tags are. A
  line ``#<TAB>O`` is a token. What is neither is an error, not a comment.
* The token and the tag column are given by number (from 0; -1 is the last) or by name. Names stand in the first line,
  or in a comment ``# global.columns = ...`` as in CoNLL-U Plus.
* The default tag column, -1, is one only if half of its cells or more are tags; so a file without tags can be
  predicted. A column given in another way that the file lacks means no tags as well. Cells ``_`` or nothing for a
  whole sentence mean that this sentence has none.

**JSONL** ("jsonl"): an object a line, with ``tokens`` (or ``words``) and ``tags`` (or ``ner_tags``, ``labels``), lists
of strings of one length; or with ``text`` and ``entities`` (or ``spans``, ``labels``, ``label``), a list of
``{"start", "end", "label"}`` or ``[start, end, label]`` in characters (code points), the end not included. Without
gold they can be predicted. An object that has ``tokens`` and ``text`` must have the one in the other.

**Text** ("text"): a text a line; blank lines at the end are none. There are no words yet: a head finds them with its
own tokenizer (`Sentence.with_words`).

Names in ``.jsonl .ndjson .json`` say JSONL, in ``.conll .conllu .iob .iob2 .bio .bioes .bilou .bmes .tsv .tab``
columns, in ``.text .raw`` text. Of any other file the first 1000 lines that are not blank are looked at. It is columns

* if half of the lines or more end in a tag, or if there is ``-DOCSTART-``;
* if all have the same number of cells, two or more: with TABs between them and no texts in them; or with blanks between
  them, ten lines or more, some of them parted by blank lines;
* if each is one word (a token a line), unless those with Chinese-like characters are longer than four on average.

Else it is text. The option ``format`` says otherwise.

Tokens become a text by one blank between them, or by nothing if most tokens of the first 1000 lines are single wide
(Chinese-like) characters, as in the usual Chinese files (`joint`); the option ``join`` says otherwise. With nothing
between, Latin letters and digits that such a file gives one by one make one word for a tokenizer that sees the text.

All is streamed: nothing but one sentence (and the first 1000 lines) is in memory at a time.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UserError
from .files import new_file
from .sentences import Sentence, align, joint, wide
from .tables import Table, lines
from .tags import OUTSIDE, Span, is_tag, split

__all__ = ["Sentence", "align", "joint", "read", "write"]
FORMATS = ("conll", "jsonl", "text")
ENDINGS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes", ".bilou", ".bmes"), "conll"),
    **dict.fromkeys((".tsv", ".tab"), "conll"),
    **dict.fromkeys((".text", ".raw"), "text"),
}
DOCSTART = "-DOCSTART-"
COLUMNS = re.compile(r"#\s*global\.columns\s*=(.*)")  # CoNLL-U Plus
UNTAGGED = ("", "_")
LOOKED_AT = 1000  # lines; in JSONL, objects
LONGEST_WORD = 4  # characters of a Chinese-like word on average: more than that is text
ENOUGH = 10  # lines, that the same number of words in each is no chance
TOKENS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "labels")
ENTITIES = ("entities", "spans", "labels", "label")


def read(
    path: str | Path,
    *,
    token: int | str = 0,
    tag: int | str | None = -1,
    format: str | None = None,
    encoding: str = "utf-8",
    join: str | None = None,
) -> Iterator[Sentence]:
    """The sentences of a file, streamed; the module says what each format is.

    Args:
        path: the file.
        token: the column of tokens: a number from 0 (negative: from the last), or a name; in JSONL a key.
        tag: the column of tags, likewise; in JSONL the key of tags or of entities. None: read no tags. Numbers
            stand for the usual keys in JSONL.
        format: "conll", "jsonl" or "text"; None: by the file's name, or else by its first lines.
        encoding: a Python codec name. "utf-8" accepts a byte-order mark.
        join: what stands between tokens in a sentence's text; None: found out (`joint`).

    Raises:
        UserError: with the file and line of what is damaged: another number of cells, a missing or unknown
            column, a string that is no tag, tokens and tags of different number, spans outside the text,
            overlapping or beside the entity's own text, an encoding error, bad JSON.

    Example:
        >>> for sentence in read("train.txt"):  # doctest: +SKIP
        ...     print(sentence.where, sentence.tokens, sentence.tags)
    """
    path = Path(path)
    if format not in (None, *FORMATS):
        raise UserError("format", f"is {format!r}", f"choose {', '.join(FORMATS)}")
    if not path.is_file():
        raise UserError(path, "is a directory" if path.is_dir() else "does not exist", "name a file")
    if token == tag:
        raise UserError("token and tag", f"are both column {token!r}", "name two columns")
    format = format or ENDINGS.get(path.suffix.lower())
    if format == "jsonl":
        return _objects(path, token, tag, encoding, join)
    looked = None if format == "text" else _look(path, encoding)
    if looked is None or (format is None and not looked.columns):
        return _texts(path, encoding)
    return _Columns(path, token, tag, encoding, join, looked).sentences()


# ---- columns -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Looked:
    """What the first lines of a file say.

    Attributes:
        columns: whether it is columns rather than text.
        tab: cells stand between TABs.
        width: cells of most lines.
        tagged: half of the lines or more end in a tag.
        rows: those of ``width`` cells.
    """

    columns: bool
    tab: bool
    width: int
    tagged: bool
    rows: tuple[tuple[str, ...], ...]


def _cells(line: str, tab: bool) -> list[str]:
    # Only ASCII blanks separate: U+3000 and U+00A0 are tokens in real files.
    return line.split("\t") if tab else [cell for cell in re.split("[ \t]+", line) if cell]


def _look(path: Path, encoding: str) -> _Looked:
    seen: list[str] = []
    blank = inside = docstart = False
    for _, line in lines(path, encoding):
        if not line.strip():
            blank = True
            continue
        inside = inside or (blank and bool(seen))
        if line.startswith(DOCSTART):
            docstart = True
            continue
        seen.append(line)
        if len(seen) == LOOKED_AT:
            break
    # Which lines with # are comments is known later; where there are no others, first those that are hardly any.
    certain = [line for line in seen if line[0] != "#"], [line for line in seen if "\t" in line]
    seen = next(filter(None, (*certain, [line for line in seen if is_tag(line.split()[-1])])), seen)
    tab = 2 * sum("\t" in line for line in seen) > len(seen)
    rows = [tuple(_cells(line, tab)) for line in seen]
    widths = Counter(map(len, rows))
    width = max(widths, key=lambda w: (widths[w], w), default=1)
    tags = [row[-1].strip() for row in rows if len(row) > 1 and is_tag(row[-1].strip())]
    tagged = width > 1 and 2 * len(tags) >= len(rows)
    even = len(widths) == 1
    if width == 1 and even:
        chinese = [len(row[0]) for row in rows if any(map(wide, row[0]))]
        columns = sum(chinese) <= LONGEST_WORD * len(chinese)
    else:
        worded = 2 * sum(any(" " in cell for cell in row) for row in rows) > len(rows)
        sure = any(t == OUTSIDE or "-" in t for t in tags)  # a text may well end in "I"
        columns = (tagged and sure) or (even and not worded and (tab or (inside and len(rows) >= ENOUGH)))
    return _Looked(not seen or docstart or columns, tab, width, tagged, tuple(r for r in rows if len(r) == width))


class _Columns:
    """One pass over a file of columns."""

    def __init__(self, path, token, tag, encoding, join, looked: _Looked) -> None:
        self.path, self.encoding, self.join, self.looked = path, encoding, join, looked
        self.width = looked.width
        self.options = token, tag
        self.named = isinstance(token, str) or isinstance(tag, str)
        if not self.named:
            self._choose(None)

    def _choose(self, names: list[str] | None) -> None:
        """Sets the numbers of both columns, the tag's None if there is none, and what joins tokens."""
        if names is not None and len(names) != self.width:
            raise UserError(self.path, f"names {len(names)} column{'s' * (len(names) != 1)} ({', '.join(names)}), but "
                            f"most lines have {self.width}", "name every column")  # fmt: skip
        token, tag = (self._number(option, names) for option in self.options)
        if token is None:
            if isinstance(self.options[0], str):
                known = names or []
                near = difflib.get_close_matches(self.options[0], known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UserError(self.path, f"has no column {self.options[0]!r} for the token; it has "
                                f"{', '.join(map(repr, known))}",
                                f"{hint}the first line names the columns if token or tag is a name")  # fmt: skip
            raise UserError(self.path, f"has no column {self.options[0]} for the token; it has {self.width} "
                            f"column{'s' * (self.width > 1)}", "set token to one of them, counted from 0")  # fmt: skip
        if tag == token or (self.options[1] == -1 and not self.looked.tagged):
            tag = None
        self.token, self.tag = token, tag
        if self.join is None:
            self.join = joint(row[token] for row in self.looked.rows)

    def _number(self, option: int | str | None, names: list[str] | None) -> int | None:
        if option is None:
            return None
        if isinstance(option, str):
            if names is not None and names.count(option) > 1:
                raise UserError(self.path, f"{names.count(option)} columns are named {option!r}",
                                "give the column as a number, and the other one by its name")  # fmt: skip
            return names.index(option) if names and option in names else None
        number = option + self.width if option < 0 else option
        return number if 0 <= number < self.width else None

    def sentences(self) -> Iterator[Sentence]:
        rows: list[list[str]] = []
        before: list[str] = []
        begins = 0
        waiting = self.named  # for the columns' names
        for number, line in lines(self.path, self.encoding):
            if "\r" in line:
                raise UserError(f"{self.path}:{number}", "has a carriage return (CR) inside the line",
                                "save the file with LF or CRLF line ends")  # fmt: skip
            if not line.strip() or line.startswith(DOCSTART):
                if rows:
                    yield self._sentence(rows, before, begins)
                    rows, before = [], []
                if line.strip():
                    before.append(line)
                continue
            cells = _cells(line, self.looked.tab)
            if waiting:
                if told := COLUMNS.match(line):
                    self._choose(told[1].split())
                elif line[0] == "#" and len(cells) != self.width:
                    before.append(line)
                    continue
                else:
                    self._choose([cell.strip() for cell in cells])
                before.append(line)
                waiting = False
                continue
            if line[0] == "#" and not rows and self._comment(line, cells):
                before.append(line)
                continue
            if len(cells) != self.width:
                self._refuse(number, line, cells)
            if not rows:
                begins = number
            rows.append(cells)
        if rows:
            yield self._sentence(rows, before, begins)

    def _comment(self, line: str, cells: list[str]) -> bool:
        """Of a line with # ahead of a sentence's first token."""
        if len(line.split()) < 2:
            return False
        if len(cells) == self.width:
            return self.tag is not None and not _tag_like(cells[self.tag])
        # a line with a TAB, or with a tag at its end, is rather a token that lost a cell
        return "\t" not in line and (self.looked.tab or self.tag is None or not is_tag(cells[-1]))

    def _refuse(self, number: int, line: str, cells: list[str]) -> None:
        shown = line if len(line) <= 60 else line[:57] + "..."
        where = "between TABs" if self.looked.tab else "between blanks"
        raise UserError(f"{self.path}:{number}", f"has {len(cells)} cell{'s' * (len(cells) != 1)} {where}, but most "
                        f"lines have {self.width}: {shown!r}",
                        "mend the line; if the file is plain text, set the format to text")  # fmt: skip

    def _sentence(self, rows: list[list[str]], before: list[str], begins: int) -> Sentence:
        return Sentence.of(
            [row[self.token] for row in rows],
            self._tags(rows, begins),
            self.join,
            columns=tuple(map(tuple, rows)),
            delimiter="\t" if self.looked.tab else " ",
            before=tuple(before),
            where=f"{self.path}:{begins}",
        )

    def _tags(self, rows: list[list[str]], begins: int) -> list[str] | None:
        if self.tag is None:
            return None
        tags = [row[self.tag].strip() for row in rows]
        if all(tag in UNTAGGED for tag in tags):
            return None
        for place, tag in enumerate(tags):
            if tag in UNTAGGED:
                raise UserError(f"{self.path}:{begins + place}", f"token {rows[place][self.token]!r} has no tag "
                                "although others of its sentence have", "give it one, O for no entity")  # fmt: skip
            header = begins + place == 1 and not self.named
            remedy = "if this line names the columns, give token and tag by their names" if header else None
            _check(tag, f"{self.path}:{begins + place}", remedy)
        return tags


def _tag_like(cell: str) -> bool:
    return cell.strip() in UNTAGGED or is_tag(cell.strip())


def _check(tag: str, where: str, remedy: str | None = None) -> None:
    try:
        split(tag)
    except UserError as error:
        raise UserError(where, f"{error.culprit} {error.evidence}", remedy or error.remedy) from None


# ---- other formats -----------------------------------------------------------------------------------------------


def _texts(path: Path, encoding: str) -> Iterator[Sentence]:
    held: list[Sentence] = []  # blank lines, which are texts only if another follows
    for number, line in lines(path, encoding):
        sentence = Sentence(line, where=f"{path}:{number}")
        if line.strip():
            yield from held
            held = []
            yield sentence
        else:
            held.append(sentence)


def _objects(path: Path, token: Any, tag: Any, encoding: str, join: str | None) -> Iterator[Sentence]:
    rows: Iterator[tuple[int, Any]] = iter(Table(path, format="jsonl", encoding=encoding))
    if join is None:
        first = list(itertools.islice(rows, LOOKED_AT))
        found = (_pick(row, token, TOKENS, "", "token") for _, row in first)
        join = joint(t for tokens in found if isinstance(tokens, list) for t in tokens if isinstance(t, str))
        rows = itertools.chain(first, rows)
    for line, row in rows:
        yield _object(row, token, tag, f"{path}:{line}", join)


def _pick(row: dict[str, Any], option: Any, usual: tuple[str, ...], where: str, name: str) -> Any:
    """The value under the option's key, or under the one usual key that is there; None without it."""
    if isinstance(option, str):
        return row.get(option)
    keys = [key for key in usual if row.get(key) is not None]
    if len(keys) > 1 and where:
        raise UserError(where, f"has the keys {' and '.join(map(repr, keys))}", f"say which with the option {name}")
    return row[keys[0]] if keys else None


def _object(row: dict[str, Any], token: Any, tag: Any, where: str, join: str) -> Sentence:
    tokens = _pick(row, token, TOKENS, where, "token")
    text = row.get("text")
    if isinstance(text, str) and isinstance(tokens, list) and tokens and isinstance(tokens[0], dict):
        tokens = None  # described tokens, as annotation tools write them beside character spans
    if tokens is None:
        if not isinstance(text, str):
            raise UserError(where, f"has neither tokens nor a text; its keys are {', '.join(map(repr, row))}",
                            'give "tokens" (a list) or "text" (a string), or name the key with the option token',
                            )  # fmt: skip
        told = None if tag is None else _pick(row, tag, ENTITIES, where, "tag")
        entities = None if told is None else _entities(told, text, where)
        return Sentence(text, entities=entities, where=where, fields=row)
    tokens = _strings(tokens, "tokens", where)
    tags = None if tag is None else _pick(row, tag, TAGS, where, "tag")
    if tags is not None:
        tags = [t.strip() for t in _strings(tags, "tags", where)]
        for t in tags:
            _check(t, where)
    sentence = Sentence.of(tokens, tags, join, where=where, fields=row)
    if isinstance(text, str):
        starts = list(_find(tokens, text, where))
        sentence = dataclasses.replace(sentence, text=text, starts=tuple(starts),
                                       ends=tuple(s + len(t) for s, t in zip(starts, tokens, strict=True)),
                                       )  # fmt: skip
    return sentence


def _strings(values: Any, what: str, where: str) -> list[str]:
    if not isinstance(values, list):
        raise UserError(where, f"{what} is a JSON {type(values).__name__}", "give a list of strings")
    for place, value in enumerate(values):
        if not isinstance(value, str):
            hint = "write the tags' names, not their numbers" if what == "tags" else "give a list of strings"
            raise UserError(where, f"number {place + 1} of {what} is {value!r}, no string", hint)
    return values


def _find(tokens: list[str], text: str, where: str) -> Iterator[int]:
    """Where each token begins in the text: one after the other, nothing but white space between."""
    at = 0
    for place, token in enumerate(tokens):
        start = at
        while not text.startswith(token, start):
            if start >= len(text) or not text[start].isspace():
                raise UserError(where, f"token {place + 1}, {token!r}, does not come next in the text at character "
                                f"{start}: {text[start : start + 20]!r}",
                                "mend the tokens, or leave the key text out")  # fmt: skip
            start += 1
        yield start
        at = start + len(token)


def _entities(told: Any, text: str, where: str) -> tuple[Span, ...]:
    if not isinstance(told, list):
        raise UserError(where, f"entities is a JSON {type(told).__name__}", "give a list")
    found = sorted({_entity(item, text, where) for item in told}, key=lambda s: (s.start, s.end))
    for one, two in itertools.pairwise(found):
        if two.start < one.end:
            raise UserError(where, f"the entities {_said(one, text)} and {_said(two, text)} overlap",
                            "keep one of them: a word has one tag")  # fmt: skip
    return tuple(found)


def _entity(item: Any, text: str, where: str) -> Span:
    start: Any
    end: Any
    if isinstance(item, dict):
        start, end = item.get("start", item.get("start_offset")), item.get("end", item.get("end_offset"))
        kinds = [item[key] for key in ("label", "type", "entity_group") if key in item]
        kind = kinds[0] if kinds else None
    elif isinstance(item, list) and len(item) == 3:
        start, end, kind = item
    else:
        raise UserError(where, f"the entity {item!r} is not understood",
                        'write {"start": 0, "end": 3, "label": "PER"} or [0, 3, "PER"]')  # fmt: skip
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in (start, end)) or not isinstance(kind, str):
        raise UserError(where, f"the entity {item!r} is not understood: start and end must be whole numbers, the label "
                        "a string", 'write {"start": 0, "end": 3, "label": "PER"} or [0, 3, "PER"]')  # fmt: skip
    span = Span(kind.strip(), start, end)
    if not span.type:
        raise UserError(where, f"the entity {item!r} has an empty label", "name its type")
    if not 0 <= start < end <= len(text):
        raise UserError(where, f"the entity {item!r} does not lie within the text's {len(text)} characters",
                        "count characters from 0; end is the character after the last one")  # fmt: skip
    if isinstance(item, dict) and isinstance(item.get("text"), str) and item["text"] != text[start:end]:
        raise UserError(where, f"the entity says {item['text']!r}, but characters {start} to {end} are "
                        f"{text[start:end]!r}",
                        "count characters (not bytes or UTF-16 units) from 0, the end not included")  # fmt: skip
    return span


def _said(span: Span, text: str) -> str:
    return f"{span.type} {text[span.start : span.end]!r} ({span.start} to {span.end})"


# ---- writing -----------------------------------------------------------------------------------------------------


def write(path: str | Path, sentences: Iterable[Sentence], predicted: Iterable[Sequence[str]]) -> None:
    """Columns, with the predicted tags as a further, last one; the file appears when its last line is written.

    Sentences that came from columns keep all their cells, comments and -DOCSTART- lines; others get token and, if
    they have it, tag. The last two columns are then gold and predicted, which is what conlleval reads. Both
    iterables are read in step, once. In a token that comes from no column, TABs and line ends become blanks.

    Raises:
        UserError: not one prediction a sentence, or not one tag a token; a sentence without tokens; the file
            cannot be written.

    Example:
        >>> write("out.txt", read("test.txt"), predictions)  # doctest: +SKIP
    """
    nothing: Any = object()
    with new_file(path) as file:
        for sentence, tags in itertools.zip_longest(sentences, predicted, fillvalue=nothing):
            if sentence is nothing or tags is nothing:
                raise UserError("predictions", "are not as many as the sentences", "give one list a sentence")
            rows = _rows(sentence)
            if len(tags) != len(rows):
                raise UserError(sentence.where or "sentence", f"has {len(rows)} tokens and {len(tags)} predicted tags",
                                "every token has one tag")  # fmt: skip
            for line in sentence.before:
                file.write(f"{line}{_added(line, sentence.delimiter)}\n")
            file.writelines(sentence.delimiter.join((*row, t)) + "\n" for row, t in zip(rows, tags, strict=True))
            file.write("\n")


def _rows(sentence: Sentence) -> Sequence[Sequence[str]]:
    if sentence.columns is not None:
        return sentence.columns
    if sentence.tokens is None:
        raise UserError(sentence.where or "sentence", "has no words yet", "find them first (Sentence.with_words)")
    tokens = [re.sub("[\t\r\n]", " ", token) for token in sentence.tokens]
    return list(zip(tokens, sentence.tags, strict=True)) if sentence.tags is not None else [(t,) for t in tokens]


def _added(line: str, delimiter: str) -> str:
    """What the new column adds to a line that is no token."""
    if COLUMNS.match(line):
        return " PREDICTED"
    if line.startswith("#"):
        return ""
    return delimiter + (OUTSIDE if line.startswith(DOCSTART) else "predicted")
