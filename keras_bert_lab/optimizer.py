"""How far a step goes: AdamW as BERT needs it (one fused kernel a variable), and the learning rate over the steps.

The formulas and how they differ from Keras' own are in docs/training.md.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_bert_lab.errors import UserError

__all__ = ["NO_DECAY", "AdamW", "Schedule"]

# create_optimizer of google-research/bert (optimization.py) excludes the first three, searched for in the
# variable's whole name. The others are what Keras itself calls the same things.
NO_DECAY = ("LayerNorm", "layer_norm", "bias", "layer_?normalization", "(^|/)gamma$", "(^|/)beta$")

COMPILED = 1 << 16  # a variable of this many elements or more is large: compiling takes a second, once


@keras.saving.register_keras_serializable("keras_bert_lab")
class AdamW(keras.optimizers.AdamW):
    r"""Adam with decoupled weight decay on kernels and embeddings only.

    For a parameter p with gradient g at step t (the first is 1), all in the variable's dtype::

        m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
        p = p - lr wd p                (before the line below, only where the path matches none of ``no_decay``)
        p = p - lr c_t m / (sqrt(v) + eps),   c_t = sqrt(1 - b2^t) / (1 - b1^t), or 1 without bias correction

    ``bias_correction=False`` is AdamWeightDecayOptimizer of google-research/bert (optimization.py). With it the
    formula is that of ``keras.optimizers.AdamW`` (Kingma & Ba 2015, end of section 2, "epsilon hat"; Loshchilov &
    Hutter 2019), which decays everything and whose defaults are eps 1e-7, wd 0.004.

    The slots (momentums, velocities), their order, saving, EMA and loss scaling are Keras'. The update is one kernel a
    variable (ResourceApplyAdam) instead of about ten passes over memory; on one CPU, large float32 variables are
    clipped, decayed and updated in a single pass that XLA compiles. ``amsgrad`` uses Keras' formula.

    Args:
        learning_rate: float, ``Schedule`` or any Keras schedule, read at ``iterations`` before the step.
        weight_decay: wd above, per unit of learning rate.
        beta_1, beta_2, epsilon: b1, b2, eps above.
        bias_correction: see above.
        no_decay: regular expressions; a variable whose path contains a match is not decayed.
        **kwargs: what ``keras.optimizers.AdamW`` takes: ``global_clipnorm``, ``use_ema``, ``loss_scale_factor``, ...

    Raises:
        UserError: bfloat16 variables (mixed_bfloat16 keeps them in float32).

    Example:
        >>> optimizer = AdamW(Schedule(5e-5, steps=1000), global_clipnorm=1.0)
        >>> original = AdamW(Schedule(5e-5, steps=1000, kind="bert"), bias_correction=False, global_clipnorm=1.0)
    """

    def __init__(
        self,
        learning_rate: Any = 5e-5,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        *,
        bias_correction: bool = True,
        no_decay: Sequence[str] = NO_DECAY,
        name: str = "adamw",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, beta_1, beta_2, epsilon, name=name, **kwargs)
        if self.amsgrad and not bias_correction:
            raise UserError(
                "AdamW(amsgrad=True)", "without bias correction there is no such thing", "drop one of the two"
            )
        self.bias_correction = bool(bias_correction)
        self.no_decay = tuple(no_decay)
        self._decays: dict[Any, bool] = {}
        # past the tracking of attributes: a checkpoint has no place for programs
        object.__setattr__(self, "_programs", {})

    def build(self, var_list: Sequence[keras.Variable]) -> None:
        """Makes the slots, and decides by each variable's path whether it decays."""
        if self.built:
            return
        for variable in var_list:
            if tf.as_dtype(variable.dtype) == tf.bfloat16 and self.beta_2 > 0.998:
                raise UserError(
                    f"variable {variable.name}",
                    "is bfloat16, in which beta_2 is 1: it would stand still",
                    "keep variables in float32 (policy mixed_bfloat16)",
                )
        super().build(var_list)
        pattern = re.compile("|".join(f"(?:{p})" for p in self.no_decay)) if self.no_decay else None
        for variable in var_list:
            # plain tf.Variables have no path; their name is the nearest thing
            path = getattr(variable, "path", None) or variable.name.split(":")[0]
            self._decays[self._var_key(variable)] = pattern is None or pattern.search(path) is None

    def _use_weight_decay(self, variable: Any) -> bool:
        # Keras looks at the variable's name, which is `kernel` or `bias`; ours is by path. What the user
        # excluded through exclude_from_weight_decay() stays excluded.
        return self._decays[self._var_key(variable)] and super()._use_weight_decay(variable)

    def decays(self, variable: keras.Variable) -> bool:
        """Whether this variable is decayed (after ``build``)."""
        return bool(self.weight_decay) and self._use_weight_decay(variable)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Nothing here: ``update_step`` decays, one pass a variable, with the step's one learning rate."""

    def _clip_gradients(self, grads: list) -> list:
        """With ``global_clipnorm`` nothing yet: ``_backend_update_step``, which comes next, takes care of it."""
        return grads if self._clips else super()._clip_gradients(grads)

    @property
    def _clips(self) -> bool:
        return bool(self.global_clipnorm) and self.global_clipnorm > 0

    def _clip_factor(self, grads: list) -> Any:
        """What brings the global norm of the gradients down to ``global_clipnorm``: 1 or less, float32."""
        # l2_loss reads each gradient once and writes nothing; Keras' own writes all the squares.
        norm = tf.sqrt(tf.add_n([2.0 * tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in grads]))
        # inf or NaN in the norm makes every gradient NaN, as in Keras and in the original: it must not pass as 0
        return self.global_clipnorm / tf.maximum(norm, self.global_clipnorm) + (norm - norm)

    def _backend_update_step(self, grads: list, trainable_variables: list, learning_rate: Any) -> None:
        # The powers of the betas are the same for all variables: take them once and let them travel with the rate.
        step = tf.cast(self.iterations + 1, tf.float32)
        powers = [tf.pow(tf.constant(b, tf.float32), step) for b in (self.beta_1, self.beta_2)]
        rate = tf.convert_to_tensor(learning_rate, tf.float32)
        grads = [dense(g) for g in grads]
        factor = self._clip_factor(grads) if self._clips else tf.constant(1.0)
        large = [self._compiles(variable) for variable in trainable_variables]
        if any(large):
            chosen = [v for v, is_large in zip(trainable_variables, large, strict=True) if is_large]
            given = [g for g, is_large in zip(grads, large, strict=True) if is_large]
            self._compiled(chosen)(given, factor, rate, *powers)
        pairs = zip(grads, trainable_variables, large, strict=True)
        rest = [(g, v) for g, v, is_large in pairs if not is_large]
        if self._clips:
            rest = [(g * tf.cast(factor, g.dtype), v) for g, v in rest]
        if rest:
            super()._backend_update_step([g for g, _ in rest], [v for _, v in rest], (rate, *powers))

    def _compiles(self, variable: Any) -> bool:
        """Whether XLA updates this variable: a large float32 one, on one CPU. Elsewhere there is less to win."""
        return (
            tf.as_dtype(variable.dtype) == tf.float32
            and (variable.shape.num_elements() or 0) >= COMPILED
            and not self.amsgrad
            and sys.platform == "linux"
            and not tf.distribute.has_strategy()
            and not tf.config.list_logical_devices("GPU")
            and not tf.config.list_logical_devices("TPU")
        )

    def _compiled(self, variables: list) -> Any:
        """One XLA program that clips, decays and updates all these variables in place: each is read and written once.

        See docs/training.md for what that saves.
        """
        key = tuple(self._var_key(variable) for variable in variables)
        if key in self._programs:
            return self._programs[key]

        def update(grads: list, factor: Any, rate: Any, power_1: Any, power_2: Any) -> None:
            along = rate * tf.sqrt(1 - power_2) / (1 - power_1) if self.bias_correction else rate
            for gradient, variable in zip(grads, variables, strict=True):
                index = self._get_variable_index(variable)
                m, v = self._momentums[index].value, self._velocities[index].value
                gradient = gradient * factor
                m.assign(m + (gradient - m) * (1 - self.beta_1))
                v.assign(v + (gradient * gradient - v) * (1 - self.beta_2))
                value = variable.value if isinstance(variable, keras.Variable) else variable
                kept = value * (1 - rate * self.weight_decay) if self.decays(variable) else value
                value.assign(kept - along * m / (tf.sqrt(v) + self.epsilon))

        self._programs[key] = tf.function(update, jit_compile=True, autograph=False)
        return self._programs[key]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable's step. ``learning_rate``: scalar, or (rate, b1^t, b2^t)."""
        if not isinstance(learning_rate, tuple | list):
            step = tf.cast(self.iterations + 1, tf.float32)
            learning_rate = (tf.convert_to_tensor(learning_rate, tf.float32), self.beta_1**step, self.beta_2**step)
        dtype = tf.as_dtype(variable.dtype)
        rate, power_1, power_2 = (tf.cast(x, dtype) for x in learning_rate)
        gradient = tf.cast(dense(gradient), dtype)
        if self.weight_decay and self._use_weight_decay(variable):
            # one product whose buffer the assignment takes over: half the traffic of assign_sub(variable * ...)
            variable.assign(variable * (1 - rate * tf.cast(self.weight_decay, dtype)))
        index = self._get_variable_index(variable)
        slots = self._momentums[index].value, self._velocities[index].value
        variable = getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable
        if self.amsgrad:
            super().update_step(gradient, variable, rate)
            return
        if not self.bias_correction:
            power_1 = power_2 = tf.zeros([], dtype)  # the kernel's factor sqrt(1 - 0) / (1 - 0) is then exactly 1
        m, v = slots
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=power_1,
            beta2_power=power_2,
            lr=rate,
            beta1=tf.cast(self.beta_1, dtype),
            beta2=tf.cast(self.beta_2, dtype),
            epsilon=tf.cast(self.epsilon, dtype),
            grad=gradient,
        )

    def get_config(self) -> dict:
        """What ``from_config`` needs."""
        return {**super().get_config(), "bias_correction": self.bias_correction, "no_decay": list(self.no_decay)}


def dense(gradient: Any) -> Any:
    """An IndexedSlices (a gather's gradient) as a dense tensor: rows that occur twice are summed."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])


KINDS = ("linear", "bert", "cosine", "constant")


@keras.saving.register_keras_serializable("keras_bert_lab")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of step i (the first is 0): up to ``peak`` during warm-up, then down to exactly 0 at ``steps``.

    - ``linear``: ``peak * (i + 1) / (warmup + 1)`` while i < warmup, then ``peak * (steps - i) / (steps - warmup)``.
      No step is wasted at rate 0, there is no jump, and after the last step the rate is exactly 0.
    - ``bert``: create_optimizer of google-research/bert (optimization.py), in its float32 arithmetic:
      ``peak * i / warmup`` while i < warmup (the first step's rate is 0), then ``peak * (1 - i / steps)`` (a jump
      down where warm-up ends: the decay counts from step 0).
    - ``cosine``: linear's warm-up, then half a cosine to 0 (Loshchilov & Hutter 2017, one cycle).
    - ``constant``: linear's warm-up, then ``peak``.

    Args:
        peak: highest learning rate, > 0.
        steps: number of optimizer steps in the whole training, > 0.
        warmup: below 1 a share of ``steps`` (rounded down, as the original does), else a number of steps.
        kind: one of the above.

    Raises:
        UserError: an option out of its range.

    Example:
        >>> rate = Schedule(5e-5, steps=100, warmup=0.1)
        >>> [f"{float(rate(i)):.2g}" for i in (0, 10, 100)]
        ['4.5e-06', '5e-05', '0']
    """

    def __init__(self, peak: float, steps: int, warmup: float = 0.1, kind: str = "linear") -> None:
        super().__init__()
        if kind not in KINDS:
            raise UserError("Schedule(kind=...)", f"unknown kind {kind!r}", f"use one of {', '.join(KINDS)}")
        if not peak >= 0 or not steps >= 1:
            raise UserError("Schedule", f"peak={peak}, steps={steps}", "peak must be 0 or more, steps 1 or more")
        if not 0 <= warmup <= steps:
            raise UserError(
                "Schedule(warmup=...)",
                f"{warmup} of {steps} steps",
                "give a share below 1 or a number of steps up to the whole",
            )
        self.peak, self.steps, self.warmup, self.kind = float(peak), int(steps), warmup, kind
        self.warmup_steps = int(steps * warmup) if warmup < 1 else int(warmup)

    def __call__(self, step: Any) -> tf.Tensor:
        """Rate at ``step`` (scalar or array of integers), float32, same shape."""
        i = tf.cast(tf.convert_to_tensor(step), tf.float32)
        peak, steps, warmup = (tf.constant(x, tf.float32) for x in (self.peak, self.steps, self.warmup_steps))
        if self.kind == "bert":
            # TensorFlow's graph optimizer divides by a constant through its reciprocal: so did the original's graph
            later = peak * (1.0 - tf.minimum(i, steps) * (1.0 / steps))
            return tf.where(i < warmup, peak * (i * (1.0 / warmup)), later) if self.warmup_steps else later
        left = tf.clip_by_value((steps - i) / tf.maximum(steps - warmup, 1.0), 0.0, 1.0)
        if self.kind == "constant":
            later = tf.fill(tf.shape(i), peak)
        elif self.kind == "cosine":
            later = peak * tf.where(left > 0, 0.5 - 0.5 * tf.cos(left * 3.141592653589793), 0.0)
        else:
            later = peak * left
        return tf.where(i < warmup, peak * ((i + 1.0) / (warmup + 1.0)), later)

    def get_config(self) -> dict:
        """What ``from_config`` needs."""
        return {"peak": self.peak, "steps": self.steps, "warmup": self.warmup, "kind": self.kind}
