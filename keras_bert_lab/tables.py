"""Data files: rows of a TSV, CSV or JSONL file, streamed, with the line of every row for messages.

What is said here once, for every head that reads tables:

* The form follows the file's name: ``.tsv .tab .txt`` are TSV, ``.csv`` is CSV, ``.jsonl .ndjson .json`` hold
  one JSON object a line. Any other name needs the option ``format``.
* TSV is not quoted: a ``"`` is a character like any other (as in the GLUE files, where quotes do not
  balance). CSV is quoted as in RFC 4180: a cell in ``"`` may hold the delimiter and line ends, ``""`` stands
  for one ``"``. The option ``quoted`` says otherwise. A cell that is quoted wrongly is an error, not a guess.
* A byte-order mark and CRLF line ends are not part of the data. Blank lines at the end of the file are no
  rows; a blank line elsewhere is a row with one empty cell (in JSONL: no row).
* Every row has as many cells as the first one; rows that have not are an error that lists their lines.
* Nothing but one row (and one quoted cell, at most 16 M characters) is in memory at a time.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from .errors import UserError
from .files import new_file

FORMATS = {
    ".tsv": "tsv", ".tab": "tsv", ".txt": "tsv", ".csv": "csv",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
LARGEST_CELL = 1 << 24
LISTED = 10  # so many bad rows are listed before reading stops


class Table:
    """A data file, opened anew by each iteration.

    Args:
        path: the file.
        header: True if the first row of a TSV or CSV file names the columns. Ignored for JSONL.
        format: "tsv", "csv" or "jsonl"; None: by the file's name.
        delimiter: one character between cells; None: TAB for TSV, comma for CSV.
        quoted: True if cells may stand in double quotes; None: only in CSV.
        encoding: a Python codec name. "utf-8" accepts a byte-order mark.

    Attributes:
        names: the columns' names (TSV and CSV with a header; in JSONL the first object's keys), or None.
        width: number of cells of a row, or None for JSONL and for a file without any row.

    Iterating gives ``(line, row)``: the 1-based line of the file where the row begins, and a list of str
    cells, or the object (dict) of a JSONL line.

    Raises:
        UserError: no such file, unknown form, wrong encoding (with the byte's position), a row with another
            number of cells than the first, bad quoting, a line that is not a JSON object.

    Example:
        >>> table = Table("reviews.tsv", header=True)  # doctest: +SKIP
        >>> key = table.find("text", "text_column")  # doctest: +SKIP
        >>> [row[key] for line, row in table]  # doctest: +SKIP
        ['a fine film', 'dull']
    """

    def __init__(
        self,
        path: str | Path,
        *,
        header: bool = True,
        format: str | None = None,
        delimiter: str | None = None,
        quoted: bool | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self.path = Path(path)
        self.format = format or FORMATS.get(self.path.suffix.lower())
        if self.format not in ("tsv", "csv", "jsonl"):
            seen = f"format {format!r}" if format else f"a file name that ends in {self.path.suffix!r}"
            raise UserError(self.path, f"{seen} says nothing known", "set file_format to tsv, csv or jsonl")
        if not self.path.is_file():
            what = "is a directory" if self.path.is_dir() else "does not exist"
            raise UserError(self.path, what, "name a TSV, CSV or JSONL file")
        self.delimiter = delimiter or {"tsv": "\t", "csv": ","}.get(self.format, "")
        if self.format != "jsonl" and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise UserError("delimiter", f"{delimiter!r} is not one character", "for example ';' or '\\t'")
        self.quoted = self.format == "csv" if quoted is None else quoted
        self.encoding = _codec(encoding)
        self.header = header and self.format != "jsonl"
        first = next(self._records(), None)
        row = None if first is None else first[1]
        self.width = len(row) if isinstance(row, list) else None
        self.first = row
        self.names: tuple[str, ...] | None = None
        if isinstance(row, dict):
            self.names = tuple(row)
        elif self.header and row is not None:
            self.names = tuple(cell.strip() for cell in row)
        if isinstance(row, list) and not self.quoted and any("\r" in cell for cell in row):
            raise UserError(self.path, "lines end with CR alone", "save the file with LF or CRLF line ends")

    def __iter__(self) -> Iterator[tuple[int, list[str] | dict[str, Any]]]:
        records = self._records()
        if self.header and next(records, None) is None:
            raise UserError(self.path, "is empty, it has no header row", "name the columns in the first row")
        for record in records:
            if self.width is not None and len(record[1]) != self.width:
                self._refuse_width(record, records)
            yield record

    def _refuse_width(self, record, records) -> None:
        bad = [record]
        for _, other in zip(range(100_000), records, strict=False):
            if len(other[1]) != self.width:
                bad.append(other)
                if len(bad) == LISTED:
                    break
        lines = ", ".join(f"line {line} has {len(row)}" for line, row in bad)
        remedy = (
            "mend those rows; if a double quote is an ordinary character in this file, set quoted to false"
            if self.quoted
            else f"mend those rows (a {self.delimiter!r} inside a text?); if cells stand in quotes, set quoted to true"
        )
        raise UserError(self.path, f"the first row has {self.width} cells, but {lines}", remedy)

    def find(self, column: str | int, option: str, required: bool = True) -> Any:
        """The key of a column: ``row[key]`` is its cell, key an int; for JSONL ``row.get(key)``, key a str.

        Args:
            column: a name from the header (or a key of the JSONL objects), or a number counted from 0.
            option: the option that named the column, for the message.
            required: False: the answer for a column that is not there is None.
        """
        if self.format == "jsonl":
            if isinstance(column, int):
                raise UserError(self.path, f"{option} is {column}, but JSONL has no numbered columns",
                                f"name a key: {self._seen()}")  # fmt: skip
            if self.names is None or column in self.names or not required:
                return column  # later objects may have keys that the first has not
            raise self._absent(column, option)
        if isinstance(column, int):
            if self.width is None or 0 <= column < self.width:
                return column
            if not required and column >= 0:
                return None
            raise self._absent(column, option)
        if self.names is None:
            if self.first is None:
                raise UserError(self.path, "is empty, it has no header row", "name the columns in the first row")
            raise UserError(option, f"is the name {column!r}, but header is false",
                            "give column numbers (from 0), or set header to true")  # fmt: skip
        places = [i for i, name in enumerate(self.names) if name == column]
        if len(places) == 1:
            return places[0]
        if places:
            raise UserError(self.path, f"columns {places} (from 0) are all named {column!r}",
                            f"rename them or give {option} as a number together with header=true")  # fmt: skip
        if required:
            raise self._absent(column, option)
        return None

    def _absent(self, column: str | int, option: str) -> UserError:
        near = difflib.get_close_matches(str(column), self.names or (), n=1)
        hint = f"set {option} to one of these" + (f" (did you mean {near[0]!r}?)" if near else "")
        if self.header:
            hint += "; if this first row is data and not a header, give column numbers (from 0) and header=false"
        return UserError(self.path, f"has no column {column!r}; it has {self._seen()}", hint)

    def _seen(self) -> str:
        """The columns as this file shows them, short enough for one line of a message."""
        cells = self.names if self.names is not None else self.first if isinstance(self.first, list) else ()
        shown = [c if len(c) <= 40 else c[:37] + "..." for c in cells[:20]]
        more = f" and {len(cells) - 20} more" if len(cells) > 20 else ""
        if self.names is None:
            return ", ".join(f"{i}: {c!r}" for i, c in enumerate(shown)) + more
        return ", ".join(repr(c) for c in shown) + more

    def fields(self, row: list[str] | dict[str, Any]) -> dict[Any, Any]:
        """The raw row by column name (without a header: by number; a repeated name gets its number appended)."""
        if isinstance(row, dict):
            return row
        if self.names is None:
            return dict(enumerate(row))
        if len(set(self.names)) == len(self.names):
            return dict(zip(self.names, row, strict=True))
        names = [n if self.names.count(n) == 1 else f"{n} ({i})" for i, n in enumerate(self.names)]
        return dict(zip(names, row, strict=True))

    def _records(self) -> Iterator[tuple[int, Any]]:
        """All rows, a header included."""
        if self.format == "jsonl":
            yield from self._objects()
        elif self.quoted:
            # newline="": the csv module treats line ends itself
            with _opened(self.path, self.encoding, newline="") as file:
                yield from _rows(self._quoted(file))
        else:
            yield from _rows((n, line.split(self.delimiter)) for n, line in lines(self.path, self.encoding))

    def _quoted(self, file: TextIO) -> Iterator[tuple[int, list[str]]]:
        if csv.field_size_limit() < LARGEST_CELL:
            csv.field_size_limit(LARGEST_CELL)  # the module's own limit, 131072, is shorter than real documents
        reader = csv.reader(file, delimiter=self.delimiter, strict=True)
        begins = 1
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise UserError(f"{self.path}:{begins}", f"the row that begins here is quoted wrongly ({error})",
                                "mend it; if a double quote is an ordinary character in this file, set quoted to false",
                                ) from None  # fmt: skip
            yield begins, row or [""]
            begins = reader.line_num + 1

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in lines(self.path, self.encoding):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{self.path}:{number}", f"is not JSON: {error.msg} at character {error.pos}",
                                "write one JSON object a line") from None  # fmt: skip
            if not isinstance(row, dict):
                raise UserError(f"{self.path}:{number}", f"holds a JSON {type(row).__name__}, not an object",
                                "write one JSON object a line")  # fmt: skip
            yield number, row


def lines(path: str | Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of a text file, streamed.

    A byte-order mark is no part of the first line. Lines end with LF or CRLF, and with nothing else: not with
    U+2028, U+0085 or a form feed.

    Raises:
        UserError: the file cannot be opened, the encoding is not known or not the file's (with the byte's place).

    Example:
        >>> [line for number, line in lines("notes.txt")]  # doctest: +SKIP
        ['first', 'second']
    """
    with _opened(path, _codec(encoding), newline="\n") as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip("\r\n")


def _codec(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise UserError("encoding", f"Python knows no {encoding!r}", "for example utf-8, latin-1, gb18030") from None
    return "utf-8-sig" if name == "utf-8" else name  # strips a byte-order mark if there is one


@contextlib.contextmanager
def _opened(path: str | Path, encoding: str, newline: str) -> Iterator[TextIO]:
    try:
        file = open(path, encoding=encoding, newline=newline)  # noqa: SIM115  closed below
    except OSError as error:
        raise UserError(path, f"cannot be read ({error.strerror})", "name a text file") from None
    try:
        with file:
            yield file
    except UnicodeDecodeError:
        raise _where_undecodable(Path(path), encoding) from None
    except UnicodeError as error:  # UTF-16 without its mark, for example
        raise UserError(path, f"is not {encoding}: {error}", "set encoding to the file's own") from None


def _rows(records: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The records without the blank ones at the end."""
    held: list[tuple[int, list[str]]] = []
    for record in records:
        if len(record[1]) == 1 and not record[1][0].strip():
            held.append(record)
            continue
        if held:
            yield from held
            held = []
        yield record


def _where_undecodable(path: Path, encoding: str) -> UserError:
    """Finds the first byte that is not in the encoding, reading in pieces."""
    decoder = codecs.getincrementaldecoder(encoding)()
    read, lines = 0, 1
    with open(path, "rb") as file:
        while piece := file.read(1 << 16):
            pending = decoder.getstate()[0]
            try:
                decoder.decode(piece)
            except UnicodeDecodeError as error:
                at = read - len(pending) + error.start
                lines += piece[: max(0, at - read)].count(b"\n")
                byte = (pending + piece)[error.start]
                break
            read += len(piece)
            lines += piece.count(b"\n")
        else:
            at, byte = read, None
    with open(path, "rb") as file:
        mark = file.read(2)
    guess = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "latin-1, cp1252 or gb18030"
    evidence = f"byte {at} (line {lines})" + (
        " ends the file inside a character" if byte is None else f", 0x{byte:02x},"
    )
    if byte is not None:
        evidence += f" is not {encoding.removesuffix('-sig')}"
    return UserError(path, evidence, f"set the option encoding to the file's own, for example {guess}")


def blank(value: object) -> bool:
    """True for what counts as missing: None, the float NaN, "nan" or "NaN" alone, and text of white space only."""
    if value is None or (isinstance(value, float) and value != value):
        return True
    return isinstance(value, str) and (not value.strip() or value.strip() in ("nan", "NaN"))


def label_name(value: object) -> str | None:
    """A label as a string: stripped; integers and integral floats agree; None if missing.

    ``"1"``, ``" 1"``, ``1``, ``1.0`` and ``"1.0"`` are all ``"1"``; JSON's true is ``"true"``.

    Example:
        >>> [label_name(x) for x in (" pos ", 1, 1.0, "1.0", "2.50", True, "", None)]
        ['pos', '1', '1', '1', '2.50', 'true', None, None]
    """
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()  # a NumPy scalar
    if blank(value):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    whole, point, zeros = text.partition(".")
    digits = whole[1:] if whole[:1] == "-" else whole
    if point and digits.isascii() and digits.isdigit() and not zeros.strip("0"):
        return str(int(whole))
    return text


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The labels once each, in an order that depends on them alone: by value if all are integers, else by text.

    Example:
        >>> label_order(["10", "9", "9"]), label_order(["b", "10", "a"])
        (('9', '10'), ('10', 'a', 'b'))
    """
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))


@contextlib.contextmanager
def writer(to: str | Path | TextIO) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields a function that writes one record as a row of ``to``: TSV, CSV or JSONL by the file's name.

    JSONL takes records as they are. In TSV and CSV the first record's keys are the header; a dict inside a
    record becomes columns ``key.inner``, a list its JSON. TSV is not quoted: tabs and line ends in a cell
    become blanks. A file appears under its name when the last row is written, so that it is never half there.

    Args:
        to: a file name, or an open text stream, which gets JSON lines.

    Raises:
        UserError: the name's ending is unknown, or the file cannot be written.

    Example:
        >>> with writer("answers.tsv") as write:  # doctest: +SKIP
        ...     write({"label": "good", "probabilities": {"bad": 0.1, "good": 0.9}})
    """
    if not isinstance(to, str | Path):
        yield lambda record: print(json.dumps(record, ensure_ascii=False), file=to)
        return
    path = Path(to)
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise UserError(path, f"the ending {path.suffix!r} says no format", "name it .tsv, .csv or .jsonl")
    with new_file(path) as file:
        yield _row_writer(file, form)


def _row_writer(file: TextIO, form: str) -> Callable[[Mapping[str, Any]], None]:
    if form == "jsonl":
        return lambda record: print(json.dumps(record, ensure_ascii=False), file=file)
    rows: Any = csv.writer(file, lineterminator="\n")
    if form == "tsv":
        rows = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
    columns: list[str] = []

    def write(record: Mapping[str, Any]) -> None:
        cells: dict[str, Any] = {}
        for key, value in record.items():
            if isinstance(value, Mapping):
                cells |= {f"{key}.{inner}": v for inner, v in value.items()}
            else:
                cells[key] = value
        if not columns:
            columns.extend(cells)
            rows.writerow([_cell(name, form) for name in columns])
        if list(cells) != columns:
            raise UserError("answers", f"a row has the columns {list(cells)}, the first had {columns}", "write .jsonl")
        rows.writerow([_cell(value, form) for value in cells.values()])

    return write


def _cell(value: Any, form: str) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.replace("\r", "\n").replace("\t", "\n").split("\n")) if form == "tsv" else text
