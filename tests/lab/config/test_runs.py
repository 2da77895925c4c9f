from autowarm.lab.config import OptimizerConfig, RunConfig, ScheduleConfig


def test_a_run_has_a_label_that_tells_ramps_apart() -> None:
    shapes = (ScheduleConfig("linear", 0), ScheduleConfig("linear", 5), ScheduleConfig("linear", 5, div=100))
    labels = [RunConfig(schedule=shape, steps=10).label for shape in shapes]
    assert [label.split("-", 2)[2] for label in labels] == ["linear0-seed0", "linear5-seed0", "linear5-div100-seed0"]


def test_a_runs_folder_is_one_folder_whatever_its_optimizer_is_called() -> None:
    run = RunConfig(task="mine@1", optimizer=OptimizerConfig(name="ours/v2 [a]"))
    assert run.label.startswith("ours_v2__a_-lr")
