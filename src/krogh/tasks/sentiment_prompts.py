"""Sentences with labels in context: words have a fixed meaning, which a prompt may invert."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from krogh.errors import InputError
from krogh.tasks.base import Batch, Task
from krogh.tasks.parity import cube


class SentimentPrompts(Task):
    """`examples` sentences, each followed by its label word, and a sentence whose label is asked for.

        SentimentPrompts(words=4, length=3, examples=2):  0 3 1 P  2 3 0 N  1 1 2 ?   →  y = (1, 0, 1)

    The first half of the words is positive, the second negative (which is which is the prior a network can learn by
    heart); a sentence is positive or negative by majority, ties do not occur. y are the classes at all label
    positions, 1 for positive, the last one the query's.

    inverted     share of the prompts in which all label words, the query's included, mean their opposite
    flip         share of the examples with the wrong label word; the query keeps its meaning
    irrelevant   words of a separate vocabulary (as many as there are words) appended to every sentence
    """

    words: int = eqx.field(static=True, default=200)
    length: int = eqx.field(static=True, default=6)
    examples: int = eqx.field(static=True, default=16)
    inverted: float = 0.0
    flip: float = 0.0
    irrelevant: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if self.words < 2 or self.words % 2 or self.length < 1 or self.examples < 1:
            raise InputError(
                f"SentimentPrompts needs an even number of words, length >= 1 and examples >= 1, got "
                f"words={self.words}, length={self.length}, examples={self.examples}"
            )

    @property
    def stride(self) -> int:
        """Tokens from one label position to the next."""
        return self.length + self.irrelevant + 1

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.stride * (self.examples + 1) - 1,)

    @property
    def elements(self) -> int:
        """Words, irrelevant words (if any) and two label words, the last ones."""
        return self.words * (2 if self.irrelevant else 1) + 2

    @property
    def outputs(self) -> int:
        return 2

    def kinds(self) -> Int[np.ndarray, " n"]:
        """What stands at every position: 0 a word, 1 an irrelevant word, 2 a label word."""
        one = np.repeat([0, 1, 2], [self.length, self.irrelevant, 1])
        return np.tile(one, self.examples + 1)[:-1]

    def sample(self, key: PRNGKeyArray, size: int) -> Batch:
        sign_key, word_key, invert_key, flip_key, extra_key = jax.random.split(key, 5)
        sentences = self.examples + 1
        patterns = cube(self.length)
        decided = jnp.asarray(patterns[patterns.sum(axis=1) != 0])
        pattern = decided[jax.random.randint(sign_key, (size, sentences), 0, len(decided))]
        half = self.words // 2
        words = jax.random.randint(word_key, pattern.shape, 0, half) + jnp.where(pattern > 0, 0, half)
        truth = pattern.sum(axis=-1) > 0
        flips = jax.random.uniform(flip_key, (size, self.examples))
        # exactly the share `flip` of a prompt's examples is flipped, in random places
        wrong = jnp.argsort(jnp.argsort(flips)) < jnp.round(self.flip * self.examples)
        inverted = jax.random.uniform(invert_key, (size, 1)) < self.inverted
        said = truth ^ inverted ^ jnp.pad(wrong, ((0, 0), (0, 1)))
        label = self.elements - 2 + said.astype(int)
        extra = jax.random.randint(extra_key, (size, sentences, self.irrelevant), self.words, 2 * self.words)
        x = jnp.concatenate([words, extra, label[..., None]], axis=-1).reshape(size, -1)[:, :-1]
        return Batch(x, said.astype(int))


def at_labels(outputs: Float[Array, "n 2"], labels: int) -> Float[Array, "labels 2"]:
    """The outputs at the positions after which a label word comes."""
    stride = (len(outputs) + 1) // labels
    return outputs[stride - 2 :: stride]
