"""Rows of many lengths as batches with little padding: which rows, in which order, filled up to what.

Rows of like length share a batch, which is padded to its longest row (rounded up to an even number, on a GPU to a
multiple of 8), never to the model's maximum. When training, the order is random but for that, anew every epoch, and the
same again for the same seed. A batch that lacks rows is filled up with copies of weight 0: all are equally large and no
row is dropped.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from .errors import UserError
from .head import Features
from .inputs import INPUTS
from .windows import Windows, spread

POOL = 64  # batches that are sorted by length together: the more, the less padding and the less random
BATCH_TOKENS = 2048  # places of a prediction batch: enough to keep a core busy, few enough for its cache


@dataclass(frozen=True)
class Plan:
    """Which rows make up which batch, in order: batch b is ``rows[splits[b]:splits[b + 1]]``, padded to ``padded[b]``.

    Attributes:
        rows: int64 [all rows], each row once.
        splits: int64 [batches + 1].
        padded: int64 [batches], length of the batch.
        size: rows of every batch after filling up; 0: batches are not filled up.
        tokens: int64 [batches], real tokens of each batch.
    """

    rows: np.ndarray
    splits: np.ndarray
    padded: np.ndarray
    size: int
    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.padded)

    def __iter__(self) -> Iterator[np.ndarray]:
        for begin, end in zip(self.splits[:-1], self.splits[1:], strict=True):
            yield self.rows[begin:end]

    @property
    def inverse(self) -> np.ndarray:
        """int64 [all rows]: results in the plan's order, indexed by this, are in the order of the data."""
        inverse = np.empty_like(self.rows)
        inverse[self.rows] = np.arange(len(self.rows))
        return inverse

    @property
    def padding_share(self) -> float:
        """Share of the places of all batches that hold no token (filler rows included), 0 to 1."""
        sizes = self.size if self.size else np.diff(self.splits)
        places = int((self.padded * sizes).sum())
        return 1 - int(self.tokens.sum()) / places if places else 0.0


@functools.cache
def granule() -> int:
    """Batch lengths are multiples of this: 8 for a GPU's matrix units; 2 on a CPU, which is slow at odd lengths."""
    return 8 if tf.config.list_logical_devices("GPU") else 2


def plan(
    lengths: np.ndarray,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    pool: int = POOL,
    multiple: int | None = None,
    fill: bool = True,
) -> Plan:
    """Batches of ``batch_size`` rows of like length.

    With ``shuffle``: all rows in random order, cut into pools of ``pool`` batches, each pool sorted by length and cut
    into batches, the batches in random order (Keras' and PyTorch users know this as bucketing by length). Without:
    the same with one pool and no randomness: the longest first, so that a batch that does not fit fails at once.

    Args:
        lengths: int [rows], tokens of each row.
        batch_size: rows a batch; the last may lack some.
        seed, epoch: together decide the order; another epoch has another order.
    """
    lengths, multiple = np.asarray(lengths, np.int64), multiple or granule()
    rows = np.arange(len(lengths))
    if shuffle:
        random_state = np.random.default_rng([seed, epoch])
        rows = random_state.permutation(rows)
        pools = np.arange(len(rows)) // (pool * batch_size)
        rows = rows[np.lexsort((-lengths[rows], pools))]  # by pool, then by length; stable
        batches = np.arange(-(-len(rows) // batch_size))
        if len(rows) % batch_size:  # the short batch stays at the end of its pool, where rows are shortest
            order = np.append(random_state.permutation(batches[:-1]), batches[-1])
        else:
            order = random_state.permutation(batches)
        sizes = np.minimum((order + 1) * batch_size, len(rows)) - order * batch_size
        rows = rows[spread(order * batch_size, sizes)]
    else:
        rows = rows[np.argsort(-lengths, kind="stable")]
        sizes = np.diff(np.append(np.arange(0, len(rows), batch_size), len(rows)))
    return _plan(lengths, rows, sizes, batch_size if fill else 0, multiple)


def ordered(windows: Windows, batch_tokens: int = BATCH_TOKENS, multiple: int | None = None, most: int = 1024) -> Plan:
    """Batches for prediction: sorted by length, longest first, each of at most ``batch_tokens`` places (or one row).

    Iterating yields int64 row numbers; ``.inverse`` leads back to the order of the data. Batches are not filled up.

    Args:
        windows: the rows.
        batch_tokens: rows times padded length at most.
        most: rows of a batch at most.
    """
    lengths, multiple = np.asarray(windows.lengths, np.int64), multiple or granule()
    rows = np.argsort(-lengths, kind="stable")
    up = np.maximum(-(-lengths[rows] // multiple) * multiple, multiple)
    room = np.clip(batch_tokens // up, 1, most)  # rows that fit into a batch that begins here
    sizes = []
    begin = 0
    while begin < len(rows):
        sizes.append(min(int(room[begin]), len(rows) - begin))
        begin += sizes[-1]
    return _plan(lengths, rows, np.asarray(sizes, np.int64), 0, multiple)


def _plan(lengths: np.ndarray, rows: np.ndarray, sizes: np.ndarray, size: int, multiple: int) -> Plan:
    splits = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    in_order = lengths[rows]
    longest = np.maximum.reduceat(in_order, splits[:-1]) if len(sizes) else np.zeros(0, np.int64)
    tokens = np.add.reduceat(in_order, splits[:-1]) if len(sizes) else np.zeros(0, np.int64)
    return Plan(rows, splits, np.maximum(-(-longest // multiple) * multiple, multiple), size, tokens)


def padding_share(plan: Plan) -> float:
    """Share of the places of all batches that hold no token, 0 to 1."""
    return plan.padding_share


def steps(features: Features, batch_size: int) -> int:
    """Number of batches of an epoch."""
    return -(-len(features.windows) // batch_size)


def describe(features: Features, batch_size: int, max_length: int) -> str:
    """One line on how many batches an epoch has and how much of them is padding, beside padding to ``max_length``."""
    lengths = features.windows.lengths
    planned = plan(lengths, batch_size, shuffle=True)
    if not len(planned):
        return "no rows"
    fixed = 1 - lengths.sum() / (max_length * len(lengths))
    return (
        f"{len(lengths)} rows of {lengths.min()} to {lengths.max()} tokens (mean {lengths.mean():.1f}) in "
        f"{len(planned)} batches of {batch_size}; {planned.padding_share:.0%} padding "
        f"({fixed:.0%} at a fixed length of {max_length})"
    )


def batch(features: Features, rows: np.ndarray, length: int, size: int = 0) -> tuple[dict, dict, dict]:
    """(x, y, weights) of some rows, each a dict of arrays, padded to ``length`` and filled up to ``size`` rows.

    Returns:
        x: the three inputs, int32 [size, length]. y: per output [size, ...], or [size, length, ...] for targets per
        piece (0 where there is none). weights: float32 [size] or [size, length], 0 at padding and in filler rows,
        which are copies of the first row (their numbers are as finite as a real row's).
    """
    windows, real = features.windows, len(rows)
    if size > real:
        rows = np.concatenate([rows, np.repeat(rows[:1], size - real)])
    begins, lengths = windows.splits[rows], windows.splits[rows + 1] - windows.splits[rows]
    if len(rows) and lengths.max() > length:
        raise UserError(
            f"row {rows[lengths.argmax()]}", f"has {lengths.max()} tokens, padded to {length}", "pad to more"
        )
    mask = np.arange(length) < lengths[:, None]
    at = np.where(mask, begins[:, None] + np.arange(length), 0)  # 0: any place that exists; what it gives is not used
    ids = np.where(mask, windows.input_ids[at], np.int32(windows.pad_id))
    types = np.where(mask, windows.token_type_ids[at], np.int32(0))
    x = dict(zip(INPUTS, (ids, mask.astype(np.int32), types), strict=True))
    y, w = {}, {}
    for name, values in features.y.items():
        weights = features.w.get(name)
        if len(values) == len(windows):
            y[name] = values[rows]
            w[name] = (
                np.ones(len(rows), np.float32) if weights is None else weights[rows].astype(np.float32, copy=False)
            )
        elif len(values) == len(windows.input_ids):
            there = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
            y[name] = np.where(there, values[at], np.zeros((), values.dtype))
            w[name] = mask.astype(np.float32) if weights is None else np.where(mask, weights[at], 0).astype(np.float32)
        else:
            raise UserError(
                f"targets of {name!r}",
                f"{len(values)} for {len(windows)} rows of {len(windows.input_ids)} pieces",
                "give one a row or one a piece",
            )
        w[name][real:] = 0
    return x, y, w


SEEDS = tf.TensorSpec([None, 2], tf.int64)  # of ``Head.prepare``


def signature(features: Features) -> tuple[dict, dict, dict]:
    """The ``tf.TensorSpec`` of each part of a ``batch``, batch and length free."""
    lengths = features.windows.lengths
    first = batch(features, np.zeros(min(1, len(lengths)), np.int64), int(lengths[0]) if len(lengths) else 1)
    found = tf.nest.map_structure(lambda a: tf.TensorSpec([None] * min(a.ndim, 2) + list(a.shape[2:]), a.dtype), first)
    # a target a row may itself have fixed axes: [rows, k]
    for part in (1, 2):
        for name, values in features.y.items():
            if len(values) == len(lengths):
                found[part][name] = tf.TensorSpec([None, *first[part][name].shape[1:]], first[part][name].dtype)
    return found


def fingerprints(windows: Windows) -> np.ndarray:
    """int64 [rows, 2]: 64 bits of each row's pieces, as two numbers of 32; the seeds with which a row is scored.

    Equal rows have equal ones, wherever they stand; different rows practically never.
    """
    if not len(windows):
        return np.zeros((0, 2), np.int64)
    place = np.arange(len(windows.input_ids)) - np.repeat(windows.splits[:-1], windows.lengths)
    with np.errstate(over="ignore"):  # the finisher of SplitMix64 (Steele et al. 2014) over piece and place
        mixed = (place.astype(np.uint64) << np.uint64(32)) + windows.input_ids.astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        whole = np.add.reduceat(mixed ^ (mixed >> np.uint64(31)), windows.splits[:-1])
    return np.stack([whole >> np.uint64(32), whole & np.uint64(0xFFFFFFFF)], 1).astype(np.int64)


def dataset(
    features: Features,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    pool: int = POOL,
    multiple: int | None = None,
    prepare: Callable[..., tuple] | None = None,
) -> tf.data.Dataset:
    """One epoch of batches (x, y, weights) for ``fit`` or ``evaluate``, each a dict of tensors; see ``batch``.

    Every pass through it is a further epoch: with ``shuffle`` the first is in the order of (seed, epoch), the second
    in that of (seed, epoch + 1), and so on. Its cardinality is known; every batch has ``batch_size`` rows; shapes are
    declared [None, None], so that a step function is traced once for all lengths.

    Args:
        features: rows with targets and weights.
        batch_size: rows of a batch over all replicas.
        shuffle: see ``plan``.
        seed, epoch: decide the order, and what ``prepare`` draws.
        prepare: ``Head.prepare``, for a head that draws; applied to every batch in the graph with seeds made of
            (seed, epoch) and the row's number: what is drawn for a row is new in every epoch, and the same for any
            size of batches.

    Example:
        >>> for x, y, w in dataset(features, 32):  # doctest: +SKIP
        ...     print(x["input_ids"].shape)
    """
    if batch_size < 1:
        raise UserError("batch_size", f"is {batch_size}", "give 1 or more")
    lengths, passes = features.windows.lengths, iter(range(epoch, 2**62))

    def planned(epoch: int = epoch) -> Plan:
        return plan(lengths, batch_size, shuffle=shuffle, seed=seed, epoch=epoch, pool=pool, multiple=multiple)

    def batches() -> Iterator[tuple[dict, dict, dict]]:
        number = next(passes)
        current, drawn = planned(number), np.random.SeedSequence([seed, number]).generate_state(1).astype(np.int64)
        for rows, length in zip(current, current.padded, strict=True):
            made = batch(features, rows, int(length), batch_size)
            if prepare is None:
                yield made
            else:
                seeds = np.stack([np.repeat(drawn, batch_size), np.resize(rows, batch_size)], 1)
                yield made, seeds  # type: ignore[misc]  # filler rows have weight 0, whatever is drawn

    described: Any = signature(features)
    if prepare is not None:
        described = described, SEEDS
    data = tf.data.Dataset.from_generator(batches, output_signature=described)
    if prepare is not None:
        data = data.map(
            lambda made, seeds: prepare(*made, seeds), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
    data = data.apply(tf.data.experimental.assert_cardinality(-(-len(lengths) // batch_size))).prefetch(4)
    data.plan = planned  # for logs: which rows and how many tokens each step of an epoch has
    return data


def split(
    examples: Sequence[Any], fraction: float, seed: int, stratum: Callable[[Any], Hashable] | None = None
) -> tuple[list, list]:
    """Holds out a share of the examples, of every stratum (label) the same share; both parts keep their order.

    Args:
        examples: any number of them.
        fraction: share to hold out, 0 to below 1; of each stratum the nearest number of examples, but never the whole
            stratum. Strata are taken largest first, and rounding errors are carried on, so that the total is right too.
        stratum: example -> its stratum; None: one stratum.

    Returns:
        (examples to train on, examples held out).
    """
    strata: dict[Hashable, list[int]] = {}
    for row, example in enumerate(examples):
        strata.setdefault(stratum(example) if stratum else None, []).append(row)
    chance, held, debt = random.Random(seed), set(), 0.0
    for rows in sorted(strata.values(), key=lambda r: (-len(r), r[0])):
        wanted = len(rows) * fraction + debt
        number = max(0, min(round(wanted), len(rows) - 1))
        debt = wanted - number
        held.update(chance.sample(rows, number))
    return [e for i, e in enumerate(examples) if i not in held], [e for i, e in enumerate(examples) if i in held]
