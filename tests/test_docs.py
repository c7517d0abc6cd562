"""The documents work as written, and the README says what the ledger says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from krogh.lab import ledger, systems
from krogh.lab.store import settings_dict

ROOT = Path(__file__).parents[1]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_the_guide_runs_as_written():
    space: dict = {"__name__": "guide"}
    for block in blocks("docs/guide.md"):
        exec(compile(block, "docs/guide.md", "exec"), space)
    assert space["fails"].judge(space["chance"]("quick")).outcome == "holds"
    assert (space["run"].data.status == "reached").all()


def test_the_readme_example_runs_as_written_at_a_smaller_size(monkeypatch):
    (example,) = blocks("README.md")
    for large, small in (("20_000", "200"), ("seeds=64", "seeds=2"), ("[10, 100, 1000]", "[10]")):
        example = example.replace(large, small)
    space: dict = {}
    exec(compile(example, "README.md", "exec"), space)
    assert set(space["run"].data.data_vars) >= {"accuracy", "fourier_gap", "loss", "status"}


def test_the_readme_tables_are_those_of_the_ledger():
    subprocess.run([sys.executable, "docs/readme.py", "--check"], cwd=ROOT, check=True)


@pytest.mark.parametrize("slug", sorted(systems()))
def test_the_ledger_judges_claims_and_presets_as_they_are(slug, monkeypatch):
    monkeypatch.setenv("KROGH_LEDGER", str(ROOT / "ledger"))
    stale = []
    for row in ledger.rows(slug):
        experiment = systems()[slug].experiments[row["experiment"]]
        claim = next((c for c in experiment.claims if c.id == row["claim"] and row["preset"] in c.presets), None)
        settings = settings_dict(experiment.settings(row["preset"]))
        # a setting added since had no influence then
        same = all(settings.get(name, "removed") == value for name, value in row["settings"].items())
        if claim is None or (claim.statement, claim.finding) != (row["statement"], row["finding"]) or not same:
            stale.append((row["experiment"], row["claim"], row["preset"], row["device_kind"]))
    assert not stale, f"judge again: krogh verify {slug}/EXPERIMENT --preset PRESET"
