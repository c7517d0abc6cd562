"""What the trainings of this system share: the learner, both forms of the transformer, stages and times."""

from collections.abc import Callable
from typing import Any

import xarray as xr

from krogh.errors import check_choice
from krogh.lab.times import first_time
from krogh.nn.decoder import CausalTransformer
from krogh.tasks.markov import MarkovChains
from krogh.train import Adam, Run, train
from krogh.train.losses import mean_cross_entropy

UNIFORM, UNIGRAM, BIGRAM, TRIGRAM = range(4)
FORMS = ("public", "thesis")


def transformer(form: str, dropout: float, **settings: Any) -> CausalTransformer:
    """The attention-only transformer with relative positions (003 §8.2.3).

    public   layer norms, output projections and dropout, as in the authors' code
    thesis   none of them, as printed in (8.4)-(8.5)
    """
    check_choice("form", form, FORMS)
    public = form == "public"
    return CausalTransformer(norm=public, projection=public, dropout=dropout if public else 0.0, **settings)


def adamw(lr: float, batch: int = 64) -> Adam:
    """AdamW of the public code: betas (0.9, 0.95), decay 0.1, cross-entropy over all positions.

    Everything with two axes decays. The public code spares tokens, lags and learned positions, which here shrink by
    1 − 5e-5 a step too (lr 5e-4).
    """
    return Adam(
        lr=lr,
        b2=0.95,
        batch=batch,
        loss=mean_cross_entropy,
        weight_decay=0.1,
        decay="decoupled",
        decay_matrices=True,
    )


def on_chains(
    task: MarkovChains, network: CausalTransformer, s: Any, *probes: Callable, slower: int = 1, **options: Any
) -> Run:
    """The training of an experiment with the settings s; `slower` times as many steps, as many times apart."""
    return train(
        task,
        network,
        adamw(s.lr),
        slower * s.steps,
        seeds=s.seeds,
        every=slower * s.every,
        validation=s.validation,
        probes=probes,
        **options,
    )


def nearest(ds: xr.Dataset) -> xr.DataArray:
    """Number of the strategy with the smallest KL(strategy ‖ model) at every record."""
    return ds.kl_to.argmin("strategy")


def plateau(ds: xr.Dataset) -> xr.DataArray:
    """Records at which unigrams are the nearest strategy and the test KL is within 30 % of theirs."""
    return (nearest(ds) == UNIGRAM) & (abs(ds.kl / ds.level.isel(strategy=UNIGRAM) - 1) <= 0.3)


def transition(ds: xr.Dataset) -> xr.DataArray:
    """The first recorded step at which bigrams are nearer than unigrams, after these have been the nearest."""
    seen = (nearest(ds) == UNIGRAM).cumsum("step") > 0
    nearer = ds.kl_to.isel(strategy=BIGRAM) < ds.kl_to.isel(strategy=UNIGRAM)
    return first_time(nearer & seen)


def halved(ds: xr.Dataset) -> xr.DataArray:
    """The first recorded step at which the test KL is below half of the unigram level."""
    return first_time(ds.kl < 0.5 * ds.level.isel(strategy=UNIGRAM, step=0))
