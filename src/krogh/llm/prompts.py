"""Labelled sentences as a prompt: some labels flipped, letters misspelt, irrelevant sentences added (000 §5.6).

sentence: show us a good time
The answer is positive.

sentence: as dumb and cheesy
The answer is
"""

from __future__ import annotations

import string
from dataclasses import dataclass

import numpy as np

from krogh.errors import InputError, check_integer, check_number

QUERY = "sentence: {}\nThe answer is"
EXAMPLE = QUERY + " {}.\n\n"


def misspelt(text: str, share: float, rng: np.random.Generator) -> str:
    """The text with this share of its letters replaced by others; of one generator's state, less is a part of more."""
    letters, drawn = rng.integers(1, 26, len(text)), rng.random(len(text))
    alphabet = string.ascii_lowercase

    def other(letter: str, by: int) -> str:
        return alphabet[(alphabet.index(letter.lower()) + by) % 26]

    return "".join(
        other(c, letters[i]) if c.lower() in alphabet and drawn[i] < share else c for i, c in enumerate(text)
    )


def irrelevant_sentence(rng: np.random.Generator) -> str:
    """A remark with a number in it that bears on nothing, in the manner of GSM-IC."""
    name = rng.choice(["Anna", "Ben", "Clara", "David", "Emily", "Frank", "Grace", "Henry"])
    kin = rng.choice(["brother", "sister", "neighbour", "teacher", "cousin", "uncle"])
    number = rng.integers(3, 60)
    remark = rng.choice(
        [
            "{name}'s {kin} is {number} years old.",
            "The shoes of {name}'s {kin} weigh {number} ounces.",
            "{name}'s {kin} walked {number} miles last week.",
            "The house of {name}'s {kin} has the number {number}.",
            "{name}'s {kin} keeps {number} stamps in a box.",
            "The garden of {name}'s {kin} is {number} feet long.",
        ]
    )
    return str(remark).format(name=name, kin=kin, number=number)


@dataclass(frozen=True)
class LabelledPrompts:
    """`examples` sentences with their labels and `asked` others to be labelled, both half of each class, by seed.

    With one seed the sentences stay the same at every share of flips and noise, and more contains less.
    """

    text: np.ndarray
    y: np.ndarray
    words: tuple[str, str]
    examples: int = 16
    asked: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("the number of examples", self.examples, least=0)
        check_integer("the number of sentences asked", self.asked, least=1)
        least, needed = np.bincount(self.y, minlength=2).min(), (self.examples + 1) // 2 + (self.asked + 1) // 2
        if least < needed:
            raise InputError(f"{needed} sentences of each class are needed, but of one there are only {least}.")

    def _drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Which sentences are examples, and which are asked: disjoint."""
        rng = np.random.default_rng([self.seed, 0])
        classes = [rng.permutation(np.flatnonzero(self.y == label)) for label in (0, 1)]
        half, rest = (self.examples + 1) // 2, (self.asked + 1) // 2
        shown = np.concatenate([c[:half] for c in classes])
        asked = np.concatenate([c[half : half + rest] for c in classes])
        return rng.permutation(shown)[: self.examples], rng.permutation(asked)[: self.asked]

    @property
    def truth(self) -> np.ndarray:
        """The classes of the sentences asked, (asked,); they are never flipped."""
        return self.y[self._drawn()[1]]

    def labels(self, flip: float = 0.0) -> np.ndarray:
        """The classes shown, (examples,): exactly round(flip · examples) of them wrong, in random places."""
        check_number("the share of flipped labels", flip, 0, 1)
        order = np.random.default_rng([self.seed, 1]).permutation(self.examples)
        return self.y[self._drawn()[0]] ^ (order < round(flip * self.examples))

    def context(self, flip: float = 0.0, noise: float = 0.0) -> str:
        """The examples as text; `noise` of their letters are wrong."""
        check_number("the share of wrong letters", noise, 0, 1)
        rng = np.random.default_rng([self.seed, 2])
        shown = [misspelt(text, noise, rng) for text in self.text[self._drawn()[0]]]
        return "".join(EXAMPLE.format(t, self.words[label]) for t, label in zip(shown, self.labels(flip), strict=True))

    def asked_texts(self) -> list[str]:
        return [str(text) for text in self.text[self._drawn()[1]]]

    def queries(self) -> list[str]:
        return [QUERY.format(text) for text in self.asked_texts()]
