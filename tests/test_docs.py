"""The documents work as written, and the README says what the ledger says."""

import re
import subprocess
import sys
from pathlib import Path

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
