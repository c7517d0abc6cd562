import json

import pytest
from lab_toy import toy  # noqa: F401

from krogh.cli import invoke


def krogh(*arguments: str) -> int:
    return invoke(list(arguments))


def test_x(toy, capsys):
    for a in (["list"], ["verify","toy-coins"], ["verify","toy-coins","--json"], ["run","toy-coins"],["run","toy-coins/fig-1","--set","p=0.5", "--seeds","30"], ["runs"], ["show","toy-coins/fig-1"],
      ["report"], ["ledger"],["ledger","--json"],["data"],["bench"],["--help"],[], ["verify", "toy-coins", "--preset", "paper"], ["report"]):
        print("$", a, krogh(*a))
    runs=[m["key"] for m in __import__("krogh.lab.store",fromlist=["x"]).Store().manifests()]
    print(krogh("compare", runs[0], runs[1]))
    import subprocess; print(subprocess.run("find . -type f; cat ledger/*; cp -r report /tmp/toyreport",shell=True,capture_output=True,text=True).stdout)
