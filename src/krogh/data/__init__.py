"""Real data: `catalogue()`, `fetch(name)`, `load(name)`, `pack(name, into)`."""

from krogh.data import images as images
from krogh.data import language as language
from krogh.data import sentences as sentences
from krogh.data import tabular as tabular
from krogh.data.sources import Entry, Source, catalogue, fetch, folder, load, pack, register

__all__ = ["Entry", "Source", "catalogue", "fetch", "folder", "load", "pack", "register"]
