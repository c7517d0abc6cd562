"""The notebook: systems, experiments, claims and verdicts; the store, the ledger and the report."""

from krogh.lab.claims import (
    Verdict,
    all_of,
    at_least,
    at_most,
    between,
    equals,
    every,
    share_at_least,
    share_at_most,
)
from krogh.lab.system import Claim, Experiment, System, systems

__all__ = [
    "Claim",
    "Experiment",
    "System",
    "Verdict",
    "all_of",
    "at_least",
    "at_most",
    "between",
    "equals",
    "every",
    "share_at_least",
    "share_at_most",
    "systems",
]
