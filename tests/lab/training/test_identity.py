import dataclasses
import json

from autowarm.lab.config import RunConfig, differences
from autowarm.lab.training.identity import identity, run_id


def test_an_id_follows_from_all_that_decides_the_numbers() -> None:
    run = RunConfig()
    who = identity(run, "corpus")
    assert run_id(who) == run_id(json.loads(json.dumps(who)))
    assert run_id(who) != run_id(identity(dataclasses.replace(run, seed=1), "corpus"))
    assert run_id(who) != run_id(identity(run, "another"))
    changed = identity(dataclasses.replace(run, steps=7), "corpus")
    assert differences(who, changed) == [f"config.steps: {run.steps} → 7"]
