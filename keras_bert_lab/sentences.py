"""A sentence with its words, tags and text, and the way from entities in characters to entities in words."""

from __future__ import annotations

import dataclasses
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UserError
from .tags import Span, encode


@dataclass(frozen=True)
class Sentence:
    """One sentence (of plain text and character spans: one text).

    Attributes:
        text: what was said. Of columns and of JSONL tokens without ``text``: the tokens, joined.
        tokens: the words as the file gives them, or None if the file has none: see `with_words`. A token may be
            white space or empty.
        starts, ends: of each token, characters of ``text``: ``text[starts[i]:ends[i]] == tokens[i]``. None
            without tokens.
        tags: one a token, each a tag of some scheme (`tags.split` takes it), or None if the file says nothing.
        entities: gold entities in characters of ``text``, in order, without overlap (JSONL with character
            spans), or None.
        columns: all cells of each token's line, if the file has columns, else None.
        delimiter: what stood between those cells, TAB or a blank.
        before: lines ahead of the sentence that are no tokens, as they were: comments, -DOCSTART-, column names.
        where: "file:line" of the first token.
        fields: the whole object of a JSONL line.

    Example:
        >>> s = Sentence.of(["Ann", "left", "."], ["B-PER", "O", "O"])
        >>> s.text, s.starts, s.ends
        ('Ann left .', (0, 4, 9), (3, 8, 10))
    """

    text: str
    tokens: tuple[str, ...] | None = None
    starts: tuple[int, ...] | None = None
    ends: tuple[int, ...] | None = None
    tags: tuple[str, ...] | None = None
    entities: tuple[Span, ...] | None = None
    columns: tuple[tuple[str, ...], ...] | None = None
    delimiter: str = "\t"
    before: tuple[str, ...] = ()
    where: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, tokens: Sequence[str], tags: Sequence[str] | None = None, join: str | None = None, **more: Any
    ) -> Sentence:
        """A sentence of ready tokens.

        Args:
            tokens: the words.
            tags: one each, or None.
            join: what stands between tokens in ``text``; None: what `joint` says of these tokens.
            more: further attributes.

        Raises:
            UserError: not as many tags as tokens.

        Example:
            >>> Sentence.of(["北", "京", "大"]).text
            '北京大'
        """
        join = joint(tokens) if join is None else join
        if tags is not None and len(tags) != len(tokens):
            raise UserError(more.get("where") or "sentence", f"has {len(tokens)} tokens and {len(tags)} tags",
                            "every token has one tag")  # fmt: skip
        ends = list(itertools.accumulate((len(token) + len(join) for token in tokens), initial=-len(join)))[1:]
        return cls(
            text=join.join(tokens),
            tokens=tuple(tokens),
            starts=tuple(end - len(token) for end, token in zip(ends, tokens, strict=True)),
            ends=tuple(ends),
            tags=None if tags is None else tuple(tags),
            **more,
        )

    def with_words(self, starts: Sequence[int], ends: Sequence[int], scheme: str = "IOB2") -> Sentence:
        """The same text with other words; what was said about old ones (tags, columns) is gone.

        Args:
            starts, ends: characters of ``text``, in order.
            scheme: in which ``tags`` are written if the sentence has ``entities``; how those become words says
                `align` (what it cannot place has no tag here: look at its second answer).

        Example:
            >>> s = Sentence("Ann left.", entities=(Span("PER", 0, 3),)).with_words([0, 4, 8], [3, 8, 9])
            >>> s.tokens, s.tags
            (('Ann', 'left', '.'), ('B-PER', 'O', 'O'))
        """
        tags = None
        if self.entities is not None:
            tags = tuple(encode(align(self.entities, starts, ends)[0], len(starts), scheme))
        tokens = tuple(self.text[s:e] for s, e in zip(starts, ends, strict=True))
        return dataclasses.replace(self, tokens=tokens, starts=tuple(map(int, starts)), ends=tuple(map(int, ends)),
                                   tags=tags, columns=None)  # fmt: skip


def joint(tokens: Iterable[str]) -> str:
    """What stands between tokens: nothing if more than half of them are single `wide` characters, else a blank.

    Example:
        >>> joint(["中", "国", "G", "D", "P", "增", "长"]), joint(["中国", "经济", "增长"]), joint(["a", "b"])
        ('', ' ', ' ')
    """
    single = [len(token) == 1 and wide(token) for token in tokens]
    return "" if 2 * sum(single) > len(single) else " "


def wide(character: str) -> bool:
    """Whether it is of East Asian width W or F: Chinese, Japanese, Korean, full-width forms."""
    return unicodedata.east_asian_width(character) in "WF"


def align(
    entities: Iterable[Span], starts: Sequence[int] | np.ndarray, ends: Sequence[int] | np.ndarray
) -> tuple[list[Span], list[tuple[Span, str]]]:
    """Entities in characters -> entities in words.

    An entity takes every word that it shares a character with. White space at its edges does not matter.

    Args:
        entities: in characters, without overlap.
        starts, ends: of the words, in characters, in order.

    Returns:
        The entities in words, and what did not fit, with the reason: an entity "begins or ends inside a word" (it
        is among the first, with the whole word), "covers no word" or "shares a word with another entity"
        (it is not; the earlier one is).

    Example:
        >>> align([Span("LOC", 4, 9)], [0, 4, 10], [3, 9, 12])
        ([Span(type='LOC', start=1, end=2)], [])
        >>> align([Span("LOC", 4, 7)], [0, 4, 10], [3, 9, 12])[1]
        [(Span(type='LOC', start=4, end=7), 'begins or ends inside a word')]
    """
    begin, end = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    placed: list[Span] = []
    trouble: list[tuple[Span, str]] = []
    free = 0  # the first word that no entity has yet
    for entity in sorted(entities, key=lambda e: (e.start, e.end)):
        first = int(np.searchsorted(end, entity.start, "right"))
        last = int(np.searchsorted(begin, entity.end, "left"))
        if first >= last:
            trouble.append((entity, "covers no word"))
            continue
        if first < free:
            trouble.append((entity, "shares a word with another entity"))
            continue
        if begin[first] < entity.start or end[last - 1] > entity.end:
            trouble.append((entity, "begins or ends inside a word"))
        placed.append(Span(entity.type, first, last))
        free = last
    return placed, trouble
