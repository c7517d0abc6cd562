"""An experiment outside the engine goes on from its finished cells, also after kill -9."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from krogh.train import cells as module
from krogh.train.cells import Cells
from krogh.train.checkpoint import Checkpoint, workspace


@pytest.fixture
def every_cell_is_saved(monkeypatch):
    for name in ("SECONDS_BETWEEN_CHECKPOINTS", "SAVING_SHARE"):
        monkeypatch.setattr(sys.modules[Checkpoint.__module__], name, 0.0)


def test_finished_cells_are_not_computed_again(tmp_path, every_cell_is_saved):
    ran, told = [], []

    def compute(i):
        ran.append(i)
        return {"square": i * i}

    for stop in (3, 5):
        with workspace(tmp_path, lambda label, done, total, rate: told.append((label, done, total))):
            cells = Cells(5)
            found = [cells(("cell", i), lambda i=i: compute(i))["square"] for i in range(stop)]
    assert found == [0, 1, 4, 9, 16] and ran == [0, 1, 2, 3, 4]
    assert told[-1] == ("cell, 4", 5, 5)


def test_the_last_cell_is_kept_however_fast_it_was(tmp_path):
    with workspace(tmp_path):
        for name in "ab":
            cells = Cells(1)
            cells(name, lambda name=name: name)
        kept = Cells(2)
        assert [kept(name, lambda: pytest.fail("computed again")) for name in "ab"] == ["a", "b"]


def test_cells_of_two_processes_are_all_kept(tmp_path, every_cell_is_saved):
    with workspace(tmp_path):
        one, other = Cells(2), Cells(2)
        one("a", lambda: 1)
        other("b", lambda: 2)
        both = Cells(2)
        assert [both(name, lambda: pytest.fail("computed again")) for name in "ab"] == [1, 2]


def test_without_a_workspace_cells_are_computed_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Cells(1)("one", lambda: 7) == 7 and not list(tmp_path.iterdir())


def test_a_killed_experiment_goes_on_from_its_cells(tmp_path):
    """Killed in its third cell of four; the next run computes the last two."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import importlib, os, sys
            from pathlib import Path
            checkpoint = importlib.import_module("krogh.train.checkpoint")
            from krogh.train.cells import Cells
            checkpoint.SECONDS_BETWEEN_CHECKPOINTS = checkpoint.SAVING_SHARE = 0.0
            log = Path(sys.argv[2])

            def compute(i):
                if i == 2 and not log.read_text().count("killed"):
                    log.open("a").write("killed ")
                    os.kill(os.getpid(), 9)
                log.open("a").write(f"{i} ")
                return i

            log.open("a").close()
            with checkpoint.workspace(Path(sys.argv[1])):
                cells = Cells(4)
                print([cells(i, lambda i=i: compute(i)) for i in range(4)])
            """
        )
    )
    log = tmp_path / "log"
    source = str(Path(module.__file__).parents[2])
    command = [sys.executable, str(program), str(tmp_path / "partial"), str(log)]
    ends = [
        subprocess.run(command, env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert ends[0].returncode == -signal.SIGKILL and ends[1].returncode == 0
    assert ends[1].stdout.strip() == "[0, 1, 2, 3]" and log.read_text().split() == ["0", "1", "killed", "2", "3"]


def test_what_takes_long_to_save_is_saved_less_often(tmp_path, monkeypatch):
    clock = sys.modules[Checkpoint.__module__].time
    now = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    with workspace(tmp_path):
        checkpoint = Checkpoint("slow")
        now = 11.0
        assert checkpoint.due()
        now = 14.0  # fetching and writing took 3 s
        checkpoint.save({})
        now = 14.0 + 59.0
        assert not checkpoint.due()
        now = 14.0 + 61.0
        assert checkpoint.due()


def test_cells_of_other_processes_keep_their_order_and_are_kept(tmp_path, every_cell_is_saved):
    for last, word in ((3, "first"), (5, "second")):
        with workspace(tmp_path):
            computations = {i: lambda i=i, word=word: (i, word, os.getpid()) for i in range(last)}
            found = Cells(last).in_processes(computations)
    assert [(i, word) for i, word, _ in found] == [
        (0, "first"),
        (1, "first"),
        (2, "first"),
        (3, "second"),
        (4, "second"),
    ]
    assert os.getpid() not in {process for *_, process in found}
