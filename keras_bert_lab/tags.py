"""Tags of named entities: the schemes, entity spans, conversion, what may follow what, and the scores.

A tag is ``O``, or a prefix and a type, ``B-PER``; a prefix alone, ``B``, has the type ``""``. The type is all that
follows the first hyphen. The schemes (`SCHEMES`), for an entity of one, two and three words:

    IOB1    I          I I        I I I     B instead of the first I right after an entity of the same type
    IOB2    B          B I        B I I
    BIOES   S          B E        B I E     also written IOBES
    BILOU   U          B L        B I L
    BMES    S          B E        B M E

Two ways to read entities from tags that a model or a person wrote, both for every scheme:

* **conlleval**, the script of the CoNLL-2000 to 2003 shared tasks: every stretch of words that are not ``O`` is some
  entity. A new one begins at B and S, after E and S, after O, and where the type changes. `seqeval` calls this its
  default mode; the script itself knows no S, here it is read as `seqeval` reads it.
* **strict**: only entities that are written as the scheme wants them count. This is `seqeval`'s ``mode="strict"``.

On tags that follow their scheme both give the same entities.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .errors import UserError

SCHEMES = ("IOB1", "IOB2", "BIOES", "BILOU", "BMES")
ALIASES = {"IOBES": "BIOES", "IOB": "IOB1", "BIO": "IOB2"}
OUTSIDE = "O"
MODES = ("strict", "conlleval")
# A scheme's own prefixes for first, inner, last and only word of an entity, as the roles B, I, E, S.
ROLES = {
    "IOB1": {"B": "B", "I": "I"},
    "IOB2": {"B": "B", "I": "I"},
    "BIOES": {"B": "B", "I": "I", "E": "E", "S": "S"},
    "BILOU": {"B": "B", "I": "I", "L": "E", "U": "S"},
    "BMES": {"B": "B", "M": "I", "E": "E", "S": "S"},
}
PREFIXES = "BIESLUM"


class Span(NamedTuple):
    """An entity: words (or characters) ``start`` to ``end``, the end not included.

    Example:
        >>> span = Span("PER", 0, 2)
        >>> ["Ann", "Lee", "left"][span.start:span.end]
        ['Ann', 'Lee']
    """

    type: str
    start: int
    end: int


def scheme_name(scheme: str) -> str:
    """The scheme's name as in `SCHEMES`; case does not matter, IOBES, IOB and BIO are aliases.

    Raises:
        UserError: no such scheme.

    Example:
        >>> scheme_name("iobes"), scheme_name("IOB1")
        ('BIOES', 'IOB1')
    """
    name = ALIASES.get(str(scheme).upper(), str(scheme).upper())
    if name not in SCHEMES:
        near = difflib.get_close_matches(name, SCHEMES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"tag scheme {scheme!r}", "is not known", f"{hint}schemes: {', '.join(SCHEMES)}")
    return name


@lru_cache(maxsize=1 << 16)
def split(tag: str) -> tuple[str, str]:
    """(prefix, type) of a tag of any scheme.

    Raises:
        UserError: it is no tag.

    Example:
        >>> split("B-PER"), split("I-GENE-or-protein"), split("E"), split("O")
        (('B', 'PER'), ('I', 'GENE-or-protein'), ('E', ''), ('O', ''))
    """
    prefix, hyphen, kind = tag.partition("-")
    if tag == OUTSIDE or (len(prefix) == 1 and prefix in PREFIXES and bool(hyphen) == bool(kind)):
        return prefix, kind
    if tag.strip() != tag and tag.strip():
        hint = "white space is no part of a tag"
    elif tag[-2:-1] == "-" and tag[-1] in PREFIXES:
        hint = "write the prefix first, as in B-PER"
    else:
        hint = f"tags are {OUTSIDE}, or one of the prefixes {', '.join(PREFIXES)} with a type, as in B-PER, or alone"
    raise UserError(f"tag {tag!r}", "is no tag of any scheme", hint)


def is_tag(tag: str) -> bool:
    """Whether `split` understands it.

    Example:
        >>> is_tag("B-PER"), is_tag("O"), is_tag("NNP"), is_tag("PER-B")
        (True, True, False, False)
    """
    try:
        split(tag)
    except UserError:
        return False
    return True


@lru_cache(maxsize=1 << 16)
def _role(tag: str, scheme: str) -> tuple[str, str]:
    """(role, type): the role is B, I, E, S or O whatever the scheme calls it."""
    prefix, kind = split(tag)
    role = "O" if prefix == OUTSIDE else ROLES[scheme].get(prefix)
    if role is None:
        raise UserError(f"tag {tag!r}", f"is no tag of the scheme {scheme}, whose prefixes are "
                        f"{', '.join([*ROLES[scheme], OUTSIDE])}",
                        "convert the tags, or name their scheme if it was detected or given wrongly")  # fmt: skip
    return role, kind


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether conlleval sees an entity begin at the second of two neighbours (which is not O)."""
    return now[0] in "BS" or before[0] in "OES" or before[1] != now[1]


def detect(sequences: Iterable[Sequence[str]]) -> str:
    """The scheme that sequences of tags are written in; reads all of them.

    Prefixes decide, except between IOB1 and IOB2: it is IOB2 if every I continues an entity of its type, IOB1 if
    every B separates two neighbours of one type. BIOES and BMES without any inner word look the same: BIOES.

    Raises:
        UserError: a string that is no tag; prefixes of two schemes; both IOB1 and IOB2 are broken (the first
            place of either is shown); no entity at all, so that nothing tells.

    Example:
        >>> detect([["B-PER", "I-PER", "O"]]), detect([["I-PER", "B-PER"]]), detect([["B-X", "L-X", "U-Y"]])
        ('IOB2', 'IOB1', 'BILOU')
    """
    seen: dict[str, str] = {}  # prefix: where first
    not_iob1 = not_iob2 = ""
    count1 = count2 = 0
    outside = (OUTSIDE, "")
    for number, tags in enumerate(sequences, 1):
        before = outside
        for place, tag in enumerate(tags, 1):
            try:
                now = split(tag)
            except UserError as error:
                raise UserError(f"sentence {number}, word {place}: {error.culprit}", error.evidence,
                                error.remedy) from None  # fmt: skip
            prefix = now[0]
            if prefix not in seen:
                seen[prefix] = f"{tag} (sentence {number}, word {place})"
            if prefix == "I" and (before[0] not in "BI" or before[1] != now[1]):
                count2 += 1
                not_iob2 = not_iob2 or f"{tag} begins an entity (sentence {number}, word {place})"
            elif prefix == "B" and (before[0] not in "BI" or before[1] != now[1]):
                count1 += 1
                not_iob1 = not_iob1 or f"{tag} follows no entity of its type (sentence {number}, word {place})"
            before = now
    entity = set(seen) - {OUTSIDE}
    if not entity:
        raise UserError("tags", "there is no entity in them, so nothing tells their scheme",
                        f"name the scheme: {', '.join(SCHEMES)}")  # fmt: skip
    if entity <= {"B", "I"}:
        if not_iob1 and not_iob2:
            raise UserError("tags", f"they are neither IOB2 ({count2} times, first: {not_iob2}) nor IOB1 ({count1} "
                            f"times, first: {not_iob1})", "mend them, or name the scheme that is meant")  # fmt: skip
        return "IOB1" if not_iob2 else "IOB2"
    for scheme in ("BIOES", "BILOU", "BMES"):
        if entity <= set(ROLES[scheme]):
            return scheme
    raise UserError("tags", f"no scheme has all of these prefixes: {', '.join(seen[p] for p in sorted(entity))}",
                    "mend them; one file has one scheme")  # fmt: skip


def spans(tags: Sequence[str], scheme: str, strict: bool = False) -> list[Span]:
    """The entities of one sequence, in order; they do not overlap.

    Args:
        tags: of one sentence.
        scheme: one of `SCHEMES` or an alias.
        strict: only well-formed entities; else conlleval's reading (see the module).

    Raises:
        UserError: a tag that is none of the scheme.

    Example:
        >>> spans(["I-PER", "I-PER", "O", "B-LOC"], "IOB2")
        [Span(type='PER', start=0, end=2), Span(type='LOC', start=3, end=4)]
        >>> spans(["I-PER", "I-PER", "O", "B-LOC"], "IOB2", strict=True)
        [Span(type='LOC', start=3, end=4)]
    """
    scheme = scheme_name(scheme)
    roles = [_role(tag, scheme) for tag in tags]
    if strict:
        return _strict_iob1(roles) if scheme == "IOB1" else _strict(roles, scheme == "IOB2")
    found: list[Span] = []
    begin = -1  # of the entity that is open
    before = (OUTSIDE, "")
    for place, now in enumerate(roles):
        if now[0] == OUTSIDE:
            if begin >= 0:
                found.append(Span(before[1], begin, place))
            begin = -1
        elif _begins(before, now):
            if begin >= 0:
                found.append(Span(before[1], begin, place))
            begin = place
        before = now
    if begin >= 0:
        found.append(Span(before[1], begin, len(roles)))
    return found


def _strict(roles: list[tuple[str, str]], open_ended: bool) -> list[Span]:
    """B I* of one type with ``open_ended`` (IOB2), else B I* E of one type, and S."""
    found: list[Span] = []
    place, length = 0, len(roles)
    while place < length:
        role, kind = roles[place]
        end = place + 1
        if role == "S":
            found.append(Span(kind, place, end))
        elif role == "B":
            while end < length and roles[end] == ("I", kind):
                end += 1
            if open_ended:
                found.append(Span(kind, place, end))
            elif end < length and roles[end] == ("E", kind):
                end += 1
                found.append(Span(kind, place, end))
        place = end
    return found


def _strict_iob1(roles: list[tuple[str, str]]) -> list[Span]:
    """As `seqeval` has it: a B that follows no entity of its type is nothing, and an I may begin right after it.

    Of B-X B-Y the second is such a B, and `seqeval` then does not count the first, either.
    """
    found: list[Span] = []
    before = outside = (OUTSIDE, "")
    place, length = 0, len(roles)
    while place < length:
        role, kind = roles[place]
        end = place + 1
        if (role == "I" and (before[0] != "I" or before[1] != kind)) or (
            role == "B" and before[0] in "BI" and before[1] == kind
        ):
            while end < length and roles[end] == ("I", kind):
                end += 1
            after = roles[end] if end < length else outside
            if not (roles[end - 1][0] == after[0] == "B" and after[1] != kind):
                found.append(Span(kind, place, end))
        place, before = end, roles[end - 1]
    return found


def encode(spans: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags of ``length`` words with these entities.

    Args:
        spans: in any order.
        length: number of words.
        scheme: one of `SCHEMES` or an alias.

    Raises:
        UserError: a span that is empty, leaves the sentence, or overlaps another.

    Example:
        >>> encode([Span("PER", 0, 2), Span("LOC", 3, 4)], 4, "BIOES")
        ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    scheme = scheme_name(scheme)
    letter = {role: prefix for prefix, role in ROLES[scheme].items()}
    tags = [OUTSIDE] * length
    before = Span("", -1, -1)
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        kind, start, end = span
        if not 0 <= start < end <= length:
            raise UserError(f"entity {kind!r} at {start}:{end}", f"does not lie within {length} words",
                            "0 <= start < end <= length")  # fmt: skip
        if start < before.end:
            raise UserError(f"entity {kind!r} at {start}:{end}",
                            f"overlaps {before.type!r} at {before.start}:{before.end}",
                            "a word has one tag: give entities that do not overlap")  # fmt: skip
        roles = ["B"] + ["I"] * (end - start - 1)
        if scheme == "IOB1":
            roles[0] = "B" if before.end == start and before.type == kind else "I"
        elif scheme != "IOB2":
            roles[-1] = "S" if end - start == 1 else "E"
        tags[start:end] = [letter[role] + (f"-{kind}" if kind else "") for role in roles]
        before = span
    return tags


def convert(tags: Sequence[str], from_: str, to: str, strict: bool = True) -> list[str]:
    """The same entities in another scheme. Tags that follow their scheme lose nothing: converting back gives them.

    Args:
        tags: of one sentence.
        from_, to: schemes.
        strict: refuse tags that do not follow ``from_``; else they are read as conlleval does.

    Raises:
        UserError: a tag that is none of the scheme; with ``strict``, tags that break it (the first is shown).

    Example:
        >>> convert(["B-PER", "I-PER", "B-PER"], "IOB2", "IOB1")
        ['I-PER', 'I-PER', 'B-PER']
        >>> convert(["B-PER", "I-PER", "B-PER"], "IOB2", "BILOU")
        ['B-PER', 'L-PER', 'U-PER']
    """
    found = spans(tags, from_)
    if strict:
        wrong = broken(tags, from_)
        if wrong is not None:
            before = tags[wrong - 1] if wrong else "the beginning"
            now = tags[wrong] if wrong < len(tags) else "the end"
            raise UserError(f"word {wrong + 1}", f"{now} after {before} is not {scheme_name(from_)}",
                            "mend it, or read it leniently (strict=False)")  # fmt: skip
    return encode(found, len(tags), to)


def broken(tags: Sequence[str], scheme: str) -> int | None:
    """The first word whose tag may not follow the one before, ``len(tags)`` if only the end is wrong, or None.

    Example:
        >>> broken(["B-X", "I-X"], "IOB2"), broken(["O", "I-X"], "IOB2"), broken(["B-X"], "BIOES")
        (None, 1, 1)
    """
    scheme = scheme_name(scheme)
    outside = (OUTSIDE, "")
    before = outside
    for place, tag in enumerate(tags):
        now = _role(tag, scheme)
        if not _may_follow(before, now, scheme):
            return place
        before = now
    return None if _may_follow(before, outside, scheme) else len(tags)


def _may_follow(before: tuple[str, str], now: tuple[str, str], scheme: str) -> bool:
    """Whether a scheme allows two neighbours; O stands for the sentence's ends as well."""
    same = before[1] == now[1]
    if scheme == "IOB1":
        return now[0] != "B" or (before[0] in "BI" and same)
    if scheme == "IOB2":
        return now[0] != "I" or (before[0] in "BI" and same)
    if before[0] in "BI":  # an entity is open: it must go on
        return now[0] in "IE" and same
    return now[0] not in "IE"


def labels(types: Iterable[str], scheme: str) -> list[str]:
    """All tags of a scheme for these types: ``O`` first, then by type in the given order.

    Example:
        >>> labels(["LOC", "PER"], "IOB2")
        ['O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER']
    """
    prefixes = ROLES[scheme_name(scheme)]
    return [OUTSIDE] + [p + (f"-{kind}" if kind else "") for kind in types for p in prefixes]


def legal(scheme: str, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a tagger may answer, for decoding under constraints.

    Args:
        scheme: one of `SCHEMES` or an alias.
        labels: n tags, in the order of the logits.

    Returns:
        ``start`` bool [n]: may stand at the first word; ``transition`` bool [n, n]: ``[i, j]``, label j may stand
        right after label i; ``end`` bool [n]: may stand at the last word. A sequence of one or more labels is legal
        by these three exactly if `broken` finds nothing in it. With ``O`` among the labels every length has a
        legal sequence; without E, say, a B of BIOES leads nowhere, so decode over whole sequences.

    Raises:
        UserError: a label that is no tag of the scheme, or is listed twice.

    Example:
        >>> start, transition, end = legal("IOB2", ["O", "B-X", "I-X"])
        >>> start.tolist(), transition[0].tolist(), end.tolist()
        ([True, True, False], [True, True, False], [True, True, True])
    """
    scheme = scheme_name(scheme)
    if twice := [label for label, count in Counter(labels).items() if count > 1]:
        raise UserError(f"label {twice[0]!r}", "is listed more than once", "list every label once")
    roles = [_role(label, scheme) for label in labels]
    outside = (OUTSIDE, "")
    start = np.array([_may_follow(outside, now, scheme) for now in roles], bool)
    end = np.array([_may_follow(before, outside, scheme) for before in roles], bool)
    pairs = [_may_follow(before, now, scheme) for before in roles for now in roles]
    return start, np.array(pairs, bool).reshape(len(roles), len(roles)), end


class Scorer:
    """Precision, recall and F1 of entities, over any number of sentences; nothing but counts is kept.

    An entity is right if its type, first and last word are. Rates without anything to count are 0.

    Args:
        scheme: the scheme of both gold and predicted tags.
        mode: "strict" or "conlleval": how entities are read from tags, gold and predicted alike (see the module).

    Raises:
        UserError: no such scheme or mode.

    Example:
        >>> scorer = Scorer("IOB2", "strict")
        >>> scorer.add(["B-PER", "I-PER", "O"], ["I-PER", "I-PER", "O"])
        >>> scorer.result()["f1"]
        0.0
        >>> lenient = Scorer("IOB2", "conlleval")
        >>> lenient.add(["B-PER", "I-PER", "O"], ["I-PER", "I-PER", "O"])
        >>> lenient.result()["f1"]
        1.0
    """

    def __init__(self, scheme: str, mode: str = "strict") -> None:
        self.scheme = scheme_name(scheme)
        if mode not in MODES:
            raise UserError(f"scoring mode {mode!r}", "is not known", f"choose {' or '.join(MODES)}")
        self.mode = mode
        self.words = self.right_words = self.sentences = 0
        self.gold: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.correct: Counter[str] = Counter()

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """Counts one sentence.

        Raises:
            UserError: the two differ in length, or have a tag that is none of the scheme.
        """
        self.sentences += 1
        if len(gold) != len(predicted):
            raise UserError(f"sentence {self.sentences}", f"has {len(gold)} gold and {len(predicted)} predicted tags",
                            "every word has one of each")  # fmt: skip
        self.words += len(gold)
        self.right_words += sum(g == p for g, p in zip(gold, predicted, strict=True))
        strict = self.mode == "strict"
        wanted = spans(gold, self.scheme, strict)
        found = spans(predicted, self.scheme, strict)
        self.gold.update(span.type for span in wanted)
        self.predicted.update(span.type for span in found)
        self.correct.update(span.type for span in set(wanted).intersection(found))

    def result(self) -> dict[str, Any]:
        """The scores so far.

        Returns:
            ``precision``, ``recall``, ``f1`` over all entities (micro average), ``accuracy`` of single tags,
            numbers from 0 to 1; ``gold``, ``predicted``, ``correct``, numbers of entities; ``per_type``, the
            same six for each type, by name; ``scheme`` and ``mode``.
        """
        kinds = sorted({*self.gold, *self.predicted})
        counts = (self.gold, self.predicted, self.correct)
        return {
            **_rates(*(sum(count.values()) for count in counts)),
            "accuracy": self.right_words / self.words if self.words else 0.0,
            "per_type": {kind: _rates(*(count[kind] for count in counts)) for kind in kinds},
            "scheme": self.scheme,
            "mode": self.mode,
        }


def _rates(gold: int, predicted: int, correct: int) -> dict[str, Any]:
    precision = correct / predicted if predicted else 0.0
    recall = correct / gold if gold else 0.0
    f1 = 2 * correct / (gold + predicted) if correct else 0.0
    return {"f1": f1, "precision": precision, "recall": recall,
            "gold": gold, "predicted": predicted, "correct": correct}  # fmt: skip
