"""Google BERT's tokenizer with character offsets: vocabulary, the table over all code points, WordPiece.

Gives the ids of google-research/bert `tokenization.py` (`BasicTokenizer`, `WordpieceTokenizer`) for every text. What
that code does in several passes over the whole text is here one table over all code points (`code_points`), built
from `unicodedata`, which `graph_text` uses too. Three things depend on a character's neighbours and are done by rule:
the final sigma of `str.lower`, the canonical order of combining marks, and the limit of 200 characters a word.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_lab.errors import UserError
from keras_bert_lab.windows import Pieces, Windows, pack, spread

LONGEST_WORD = 200  # characters after normalisation; a longer word is one [UNK]
SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
ORDINARY, DROP, SPACE, ALONE = range(4)
CODE_POINTS = 0x110000
Row = tuple[list[int], list[int], list[int]]  # ids, starts, ends
SIGMA, FINAL_SIGMA, SMALL_SIGMA = "\u03a3", "\u03c2", "\u03c3"
# What the original calls Chinese (`_is_chinese_char`); such a character is a word of its own.
CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@dataclass(frozen=True, eq=False)
class CodePoints:
    """What becomes of every code point; see `code_points`.

    Attributes:
        kind: uint8 [0x110000], ORDINARY, DROP (vanishes), SPACE (ends a word) or ALONE (a word of its own).
        flat, splits: int32 [n] and int32 [0x110000 + 1]; code point c is replaced by ``flat[splits[c]:splits[c + 1]]``
            (empty for DROP, SPACE and stripped marks).
        punctuation: bool [0x110000], of a code point after replacement: a word of its own.
        order: uint8 [0x110000], of a code point after replacement: canonical combining class if it must be put in
            canonical order, else 0.
        starter: bool [0x110000], its decomposition begins with a starter: combining marks do not move across it.
        cased, ignorable: bool [0x110000], as `str.lower` understands them when it looks for a final sigma.
    """

    kind: np.ndarray
    flat: np.ndarray
    splits: np.ndarray
    punctuation: np.ndarray
    order: np.ndarray
    starter: np.ndarray
    cased: np.ndarray
    ignorable: np.ndarray


@lru_cache(maxsize=1)
def _categories() -> np.ndarray:
    """General category of every code point: bytes2 [0x110000]."""
    text = np.arange(CODE_POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    return np.frombuffer("".join(map(unicodedata.category, text)).encode(), "S2")


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int32)


@lru_cache(maxsize=4)
def code_points(lower_case: bool, strip_accents: bool) -> CodePoints:
    """The table that drives both tokenizers, from the running Python's `unicodedata` (about 0.4 s, then cached).

    Args:
        lower_case: replace by `str.lower`.
        strip_accents: decompose canonically (NFD) and remove non-spacing marks (category Mn).

    Example:
        >>> t = code_points(True, True)
        >>> t.flat[t.splits[ord("É")] : t.splits[ord("É") + 1]].tolist() == [ord("e")]
        True
    """
    category = _categories()
    kind = np.full(CODE_POINTS, ORDINARY, np.uint8)
    for first, last in CHINESE:
        kind[first : last + 1] = ALONE
    kind[(category == b"Cc") | (category == b"Cf")] = DROP
    kind[[0, 0xFFFD]] = DROP
    kind[(category == b"Zs") | (category == b"Zl") | (category == b"Zp")] = SPACE  # Zl, Zp: split by str.split only
    kind[[9, 10, 13]] = SPACE

    # Only assigned characters change; joined by a line feed, which is a starter, uncased and not ignorable, they
    # go through `lower` and `normalize` in one call each without seeing one another.
    assigned = np.flatnonzero(~np.isin(category, (b"Cn", b"Co", b"Cs", b"Cc")))
    text = "\n".join(map(chr, assigned.tolist()))
    mark = category == b"Mn"
    starter = np.ones(CODE_POINTS, bool)
    order = np.zeros(CODE_POINTS, np.uint8)
    cased = np.zeros(CODE_POINTS, bool)
    ignorable = np.zeros(CODE_POINTS, bool)
    if lower_case:
        # `str.lower` tells: after "A" and c, a sigma is final if c is cased or ignorable; after "1" and c, if cased.
        probe = "\n".join([f"A{c}{SIGMA}\n1{c}{SIGMA}" for c in text.split("\n")]).lower().split("\n")
        after_letter, after_digit = (np.array([w[-1] == FINAL_SIGMA for w in probe[i::2]]) for i in (0, 1))
        cased[assigned], ignorable[assigned] = after_digit, after_letter & ~after_digit
        text = text.lower()
    if strip_accents:
        text = unicodedata.normalize("NFD", text)
        combining = np.zeros(CODE_POINTS, np.uint8)
        for c in np.flatnonzero((category == b"Mn") | (category == b"Mc") | (category == b"Me")).tolist():
            combining[c] = unicodedata.combining(chr(c))
        order = np.where(mark, 0, combining).astype(np.uint8)
    new = _numbers(text)
    end = new == 10
    owner = np.cumsum(end)
    if strip_accents:
        first = new[np.concatenate([[True], end[:-1]])]
        starter[assigned] = combining[first] == 0
        end = end | mark[new]
    new, owner = new[~end], assigned[owner[~end]]
    lengths = np.ones(CODE_POINTS, np.int32)
    lengths[assigned] = 0
    lengths += np.bincount(owner, minlength=CODE_POINTS).astype(np.int32)
    gone = (kind == DROP) | (kind == SPACE)
    lengths[gone] = 0
    splits = np.zeros(CODE_POINTS + 1, np.int32)
    np.cumsum(lengths, out=splits[1:])
    flat = np.repeat(np.arange(CODE_POINTS, dtype=np.int32), lengths)
    kept = ~gone[owner]
    here = np.zeros(CODE_POINTS, bool)
    here[assigned] = True
    flat[here[flat]] = new[kept]

    punctuation = np.char.startswith(category, b"P")
    for first, last in ((33, 47), (58, 64), (91, 96), (123, 126)):
        punctuation[first : last + 1] = True
    return CodePoints(kind, flat, splits, punctuation, order, starter, cased, ignorable)


class _Spelling(dict):
    """character -> (kind, replacement, has ordered marks); filled as characters are met."""

    def __init__(self, table: CodePoints) -> None:
        self.table = table

    def __missing__(self, char: str) -> tuple[int, str, bool]:
        t, c = self.table, ord(char)
        new = t.flat[t.splits[c] : t.splits[c + 1]]
        self[char] = found = (int(t.kind[c]), "".join(map(chr, new.tolist())), bool(t.order[new].any()))
        return found


class _Memory(dict):
    """stretch of text -> its number; ``rows[number]`` is (ids, starts, ends), relative to the stretch."""

    def __init__(self, encode: Callable[[str], Row]) -> None:
        self.encode, self.lock = encode, threading.Lock()
        self.rows: list[Row] = []
        self.size = 0
        self._flat = [np.zeros(1024, np.int32) for _ in range(3)]
        self._splits = np.zeros(1024, np.int64)
        self._done = 0  # rows that are in the arrays too

    def __missing__(self, stretch: str) -> int:
        row = self.encode(stretch)
        with self.lock:
            if stretch not in self:
                self.rows.append(row)
                self.size += len(stretch) + 3 * len(row[0]) + 10
                self[stretch] = len(self.rows) - 1
        return self[stretch]

    def flat(self) -> Pieces:
        """All rows so far; the arrays grow by doubling, so that new stretches cost what they hold."""
        with self.lock:
            new, used = self.rows[self._done :], int(self._splits[self._done])
            splits = used + np.cumsum([len(row[0]) for row in new], dtype=np.int64)
            rows, size = self._done + len(new), int(splits[-1]) if new else used
            self._splits = _grown(self._splits, rows + 1)
            self._splits[self._done + 1 : rows + 1] = splits
            for k in range(3):
                self._flat[k] = _grown(self._flat[k], size)
                self._flat[k][used:size] = [v for row in new for v in row[k]]
            self._done = rows
            ids, starts, ends = (a[:size] for a in self._flat)
            return Pieces(ids, starts, ends, self._splits[: rows + 1])


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    return np.concatenate([array, np.zeros(2 * size - len(array), array.dtype)])


class Tokenizer:
    """Text to the ids of Google's BERT, with character offsets into that text.

    Args:
        vocab_bytes: the vocabulary file, byte for byte: one entry a line, id = line number.
        lower_case: lower-case with `str.lower`, as the uncased models (and the Chinese one) need.
        strip_accents: remove non-spacing marks after canonical decomposition; default as `lower_case`.
        special_tokens: read ``[UNK] [CLS] [SEP] [PAD] [MASK]`` in a text as these tokens; off by default, so that
            a user's text cannot smuggle in a separator, and split as the original splits it.

    Attributes:
        tokens: tuple of str, id -> entry. ids: dict, entry -> id (the later line wins, as in the original).
        vocab_bytes, lower_case, strip_accents, special_tokens: as given.
        pad_id, unk_id, cls_id, sep_id, mask_id: int; mask_id None where there is no [MASK].
        warnings: list of str, what looks wrong about the vocabulary together with the switches.

    Raises:
        UserError: [PAD], [UNK], [CLS] or [SEP] is not in the vocabulary.

    Example:
        >>> t = Tokenizer("\\n".join("[PAD] [UNK] [CLS] [SEP] hello ##s".split()).encode(), lower_case=True)
        >>> t.encode("  Hellos you")
        ([4, 5, 1], [2, 7, 9], [7, 8, 12])
    """

    def __init__(
        self,
        vocab_bytes: bytes,
        *,
        lower_case: bool,
        strip_accents: bool | None = None,
        special_tokens: bool = False,
        name: str = "vocabulary",
    ) -> None:
        self.vocab_bytes = bytes(vocab_bytes)
        self.lower_case = bool(lower_case)
        self.strip_accents = self.lower_case if strip_accents is None else bool(strip_accents)
        self.special_tokens = bool(special_tokens)
        self.tokens = read_vocab(self.vocab_bytes)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        missing = [t for t in SPECIAL[:4] if t not in self.ids]
        if missing:
            raise UserError(
                name,
                f"has no {' '.join(missing)} among its {len(self.tokens)} entries",
                "is this BERT's vocab.txt, one entry a line?",
            )
        self.unk_id, self.cls_id, self.sep_id, self.pad_id = (self.ids[t] for t in SPECIAL[:4])
        self.mask_id = self.ids.get("[MASK]")
        self.warnings = _clashes(self.vocab_bytes, self.tokens, self.ids, self.lower_case, name)
        self._table = code_points(self.lower_case, self.strip_accents)
        self._spelling = _Spelling(self._table)
        self._longest = max(map(len, self.tokens))
        self._find, self._find_special = _finder(self._table), None
        if self.special_tokens:
            known = [re.escape(t) for t in SPECIAL if t in self.ids]
            self._find_special = re.compile("(" + "|".join(known) + ")")
        self._memory = _Memory(self._encode_stretch)

    @classmethod
    def from_vocab(
        cls,
        path: str | Path,
        lower_case: bool | None = None,
        strip_accents: bool | None = None,
        special_tokens: bool = False,
    ) -> Tokenizer:
        """From a ``vocab.txt``, or the directory that holds one.

        What is not given is read, in this order, from a ``tokenizer_config.json`` beside the file
        (``do_lower_case``, ``strip_accents``), from the original's habit of naming (``uncased_L-12_...``,
        ``cased_L-12_...``, ``chinese_L-12_...``; folder first, then file), from the vocabulary (cased when it has
        entries with capital letters).

        Raises:
            UserError: no such file, or a tokenizer_config.json that asks for what is not BERT's tokenizer.
        """
        path = Path(path)
        if path.is_dir():
            path = path / "vocab.txt"
        if not path.is_file():
            raise UserError(path, "no such file", "give a vocab.txt or the directory that holds one")
        data = path.read_bytes()
        settings = _settings_beside(path)
        if lower_case is None:
            lower_case = settings.get("lower_case")
        if strip_accents is None:
            strip_accents = settings.get("strip_accents")
        if lower_case is None:
            lower_case = _case_from_names(path)
        if lower_case is None:
            lower_case = not _is_cased(read_vocab(data))
        return cls(
            data,
            lower_case=lower_case,
            strip_accents=strip_accents,
            special_tokens=special_tokens,
            name=str(path),
        )

    def __reduce__(self) -> tuple[Any, ...]:  # copies and other processes begin with an empty memory
        return partial(Tokenizer, **self.settings()), (self.vocab_bytes,)

    def __repr__(self) -> str:
        switches = ", ".join(f"{k}={v}" for k, v in self.settings().items())
        return f"<Tokenizer: {len(self.tokens)} entries, {switches}>"

    def settings(self) -> dict[str, Any]:
        """What to store beside the vocabulary: ``Tokenizer(vocab_bytes, **settings)`` is this tokenizer again."""
        return {
            "lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
            "special_tokens": self.special_tokens,
        }

    def with_options(self, **options: bool) -> Tokenizer:
        """The same vocabulary with other switches, for example ``special_tokens=True`` to fill masks."""
        unknown = sorted(set(options) - set(self.settings()))
        if unknown:
            raise UserError("tokenizer option", ", ".join(unknown), "known: " + ", ".join(self.settings()))
        return Tokenizer(self.vocab_bytes, **{**self.settings(), **options})

    def basic(self, text: str) -> list[tuple[str, int, int]]:
        """The normalised words before WordPiece (the original's `BasicTokenizer`): (word, start, end)."""
        return [(word, at[0], at[-1] + 1) for word, at, _ in self._words(_checked(text))]

    def tokenize(self, text: str) -> list[str]:
        """The pieces as strings (the original's `FullTokenizer.tokenize`)."""
        return [self.tokens[i] for i in self.encode(text)[0]]

    def encode(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """(ids, starts, ends) of one text, without [CLS] and [SEP]; ``text[start:end]`` spells the piece."""
        memory = self._fresh_memory()
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        begin = 0
        for stretch in self._stretches(_checked(text)):
            row = memory.rows[memory[stretch]]
            ids += row[0]
            starts += [begin + v for v in row[1]]
            ends += [begin + v for v in row[2]]
            begin += len(stretch)
        return ids, starts, ends

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Many texts at once; remembers stretches of text between blanks, so it is fast on language.

        Raises:
            UserError: something that is not a string, with its position.
        """
        if isinstance(texts, str):
            raise UserError("texts", "is one string", "give a list of strings")
        parts = [self._pieces(texts[i : i + 1024], i) for i in range(0, len(texts), 1024)]
        return parts[0] if len(parts) == 1 else Pieces.concat(parts)

    def windows(
        self,
        first: Sequence[str],
        second: Sequence[str] | None = None,
        *,
        max_length: int,
        truncation: str = "longest_first",
    ) -> Windows:
        """Texts (or pairs) to rows for the model, see `windows.pack`."""
        return pack(
            self.pieces(first),
            None if second is None else self.pieces(second),
            cls_id=self.cls_id,
            sep_id=self.sep_id,
            pad_id=self.pad_id,
            max_length=max_length,
            truncation=truncation,
        )

    # How a text becomes pieces. In bulk, a text is a row of stretches that no rule looks across; each different
    # stretch is worked out once.

    def _pieces(self, texts: Sequence[str], where: int) -> Pieces:
        memory = self._fresh_memory()
        numbers: list[int] = []
        lengths: list[int] = []
        counts = []
        for row, text in enumerate(texts, where):
            if not isinstance(text, str):
                raise UserError(f"text {row}", f"is {type(text).__name__}, not a string")
            stretches = self._stretches(text)
            numbers += map(memory.__getitem__, stretches)
            lengths += map(len, stretches)
            counts.append(len(stretches))
        known = memory.flat()
        at = np.array(numbers, np.int64)
        size = known.lengths[at]
        flat = spread(known.splits[:-1][at], size)
        # where each stretch begins in its own text
        ends = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))])
        rows = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
        begins = ends[:-1] - np.repeat(ends[rows[:-1]], counts)
        shift = np.repeat(begins, size).astype(np.int32)
        splits = np.concatenate([[0], np.cumsum(size)])[rows]
        return Pieces(known.ids[flat], known.starts[flat] + shift, known.ends[flat] + shift, splits)

    def _fresh_memory(self) -> _Memory:
        if self._memory.size > 1 << 23:  # bounds what is remembered; calls under way keep the old one
            self._memory = _Memory(self._encode_stretch)
        return self._memory

    def _stretches(self, text: str) -> list[str]:
        """What spells the text, up to blanks at its end."""
        if self._find_special is None or "[" not in text:
            return self._find(text)
        stretches: list[str] = []
        for i, part in enumerate(self._find_special.split(text)):
            found = [part] if i % 2 else self._find(part)
            stretches += found
            rest = len(part) - sum(map(len, found))
            if rest:
                stretches.append(part[-rest:])
        return stretches

    def _encode_stretch(self, stretch: str) -> Row:
        plain = stretch.lstrip(" ")
        if plain.isascii() and plain.isalnum():  # most words: nothing to look up but the case
            found = self._wordpiece(plain.lower() if self.lower_case else plain)
            begin = len(stretch) - len(plain)
            return [f[0] for f in found], [begin + f[1] for f in found], [begin + f[2] for f in found]
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for word, at, special in self._words(stretch):
            if special:
                ids.append(self.ids[word])
                starts.append(at[0])
                ends.append(at[-1] + 1)
                continue
            for piece, begin, end in self._wordpiece(word):
                ids.append(piece)
                starts.append(at[begin])
                ends.append(at[end - 1] + 1)
        return ids, starts, ends

    def _wordpiece(self, word: str) -> list[tuple[int, int, int]]:
        """Greedy longest match first: [(id, begin, end)] in characters of the word."""
        whole = [(self.unk_id, 0, len(word))]
        if len(word) > LONGEST_WORD:
            return whole
        pieces = []
        begin, prefix = 0, ""
        while begin < len(word):
            for end in range(min(len(word), begin + self._longest), begin, -1):
                found = self.ids.get(prefix + word[begin:end])
                if found is not None:
                    break
            else:
                return whole
            pieces.append((found, begin, end))
            begin, prefix = end, "##"
        return pieces

    def _words(self, text: str) -> list[tuple[str, list[int], bool]]:
        """Normalised words: (word, position in the text of each of its characters, whether it is a special token)."""
        parts = self._find_special.split(text) if self._find_special else [text]
        words: list[tuple[str, list[int], bool]] = []
        spelling, start = self._spelling, 0
        for number, part in enumerate(parts):
            if number % 2:
                words.append((part, list(range(start, start + len(part))), True))
                start += len(part)
                continue
            chars: list[str] = []
            at: list[int] = []
            for i, char in enumerate(part, start):
                kind = spelling[char][0]
                if kind == ORDINARY:
                    chars.append(char)
                    at.append(i)
                elif kind != DROP:
                    self._cut(chars, at, words)
                    chars, at = [], []
                    if kind == ALONE:
                        self._cut([char], [i], words)
            self._cut(chars, at, words)
            start += len(part)
        return words

    def _cut(self, chars: list[str], at: list[int], words: list) -> None:
        """Normalises what stands between blanks and cuts it at punctuation."""
        if not chars:
            return
        found = [self._spelling[c] for c in chars]
        new = [f[1] for f in found]
        if self.lower_case and SIGMA in chars:
            _set_sigmas(chars, new, self._table)
        where = [i for i, n in zip(at, new, strict=True) for _ in n]
        spelled = "".join(new)
        if any(f[2] for f in found):
            spelled = _in_canonical_order(chars, new, self._table)
        begin, punctuation = 0, self._table.punctuation
        for i, c in enumerate(spelled):
            if punctuation[ord(c)]:
                if begin < i:
                    words.append((spelled[begin:i], where[begin:i], False))
                words.append((c, where[i : i + 1], False))
                begin = i + 1
        if begin < len(spelled):
            words.append((spelled[begin:], where[begin:], False))


def over_marks(text: str, end: int) -> int:
    """An end in ``text``, moved over the combining marks (category Mn) that follow: the tokenizer drops them.

    Example:
        >>> over_marks("Cafe\u0301 ok", 4)
        5
    """
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


def read_vocab(data: bytes) -> tuple[str, ...]:
    """The entries of a vocabulary file, id = position.

    Only LF and CRLF end a line (U+2028 does not: the Chinese vocabulary has it as an entry); a byte order mark and
    white space around an entry are removed; a final line end makes no difference. Bytes that are not UTF-8 are left
    out, as in the original.
    """
    lines = data.decode("utf-8", "ignore").removeprefix("\ufeff").split("\n")
    if lines[-1] == "":
        lines.pop()
    return tuple(line.strip() for line in lines)


def _set_sigmas(chars: list[str], new: list[str], table: CodePoints) -> None:
    """As in `str.lower`: a capital sigma becomes final if a cased letter precedes it in the word and none follows."""
    solid = [i for i, c in enumerate(chars) if not table.ignorable[ord(c)]]
    cased = [bool(table.cased[ord(chars[i])]) for i in solid]
    for k, i in enumerate(solid):
        if chars[i] == SIGMA:
            final = k > 0 and cased[k - 1] and not (k + 1 < len(solid) and cased[k + 1])
            new[i] = FINAL_SIGMA if final else SMALL_SIGMA


def _in_canonical_order(chars: list[str], new: list[str], table: CodePoints) -> str:
    """Sorts what is left of the combining marks as NFD sorts them: stably, by class, never across a starter."""
    keyed, run = [], 0
    for char, part in zip(chars, new, strict=True):
        run += bool(table.starter[ord(char)])
        keyed += [(run, int(table.order[ord(c)]), c) for c in part]
    return "".join(c for _, _, c in sorted(keyed, key=lambda k: k[:2]))


def _finder(table: CodePoints) -> Callable[[str], list[str]]:
    """A function: text -> stretches that together spell it, up to blanks at its end; nothing looks across them."""

    def among(kind: int) -> str:
        points = np.flatnonzero(table.kind == kind)
        cuts = np.flatnonzero(np.diff(points) > 1) + 1
        runs = [(run[0], run[-1]) for run in np.split(points, cuts)]
        return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in runs)

    space, alone = among(SPACE), among(ALONE)
    return re.compile(f"[{space}]*(?:[{alone}]|[^{space}{alone}]+)").findall


def _checked(text: str) -> str:
    if not isinstance(text, str):
        raise UserError("text", f"is {type(text).__name__}, not a string")
    return text


def _is_cased(tokens: Sequence[str]) -> bool:
    """Whether more than 2 in 1000 entries have capitals; markers such as [CLS] or <S> do not count."""
    count = sum(t != t.lower() and t[:1] not in "[<" for t in tokens)
    return count > 0.002 * len(tokens)


def _clashes(data: bytes, tokens: Sequence[str], ids: dict[str, int], lower_case: bool, name: str) -> list[str]:
    found = []
    if _is_cased(tokens) == lower_case:
        found.append(
            f"{name}: many entries have capital letters, but lower_case is on: they are never used"
            if lower_case
            else f"{name}: no entries with capital letters, but lower_case is off: capitals become [UNK]"
        )
    twice = len(tokens) - len(ids) - max(0, tokens.count("") - 1) - max(0, tokens.count("##") - 1)
    if twice:
        found.append(f"{name}: {twice} entries stand there twice; the later line counts")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found.append(f"{name}: line {line} is not UTF-8; the bytes in question are left out")
    return found


def _settings_beside(path: Path) -> dict[str, bool | None]:
    """Switches from a Hugging Face tokenizer_config.json in the same directory."""
    file = path.parent / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(file, f"is not JSON: {error}", "mend or remove it, or pass lower_case") from error
    if not isinstance(config, dict):
        raise UserError(file, "is not a JSON object", "mend or remove it")
    for key in ("do_basic_tokenize", "tokenize_chinese_chars"):
        if config.get(key, True) is False:
            raise UserError(file, f"{key} is false: not the tokenizer of Google's BERT", f"remove {key} to use that")
    settings = {"lower_case": config.get("do_lower_case"), "strip_accents": config.get("strip_accents")}
    for key, value in settings.items():
        if value is not None and not isinstance(value, bool):
            raise UserError(file, f"{key} is {value!r}", "write true, false or null")
    return settings


def _case_from_names(path: Path) -> bool | None:
    """What the original's names of models say (its `validate_case_matches_checkpoint`)."""
    for name in (path.absolute().parent.name.lower(), path.name.lower()):
        said = re.search(r"(?<![a-z])(un)?cased(?![a-z])", name)
        if said:
            return said[1] is not None
        if re.match(r"(chinese|multilingual)_l-", name):
            return True
    return None
