"""The project's own evidence: what is run, the rows of finished runs in docs/data/studies, the pages made of them.

    python -m studies warm-up --plan        # in a checkout's root, after `make setup`

The parts, from the bottom up; autowarm knows none of them:

- `statistics`: what a schedule costs, over a few seeds.
- `rows`: the file of finished runs.      - `cells`: the warm-up study's settings and the studies' names of schedules.
- `plans`: for each study, its stages of runs, each a function of the rows of the stages before.
- `tasks`: what the runs train.      - `runs`: makes planned runs on the lab's engine, as rows.
- `regret`: judges warm-ups by one measure.      - `pages`: the documentation's tables and figures.
- `shapes`: the warm-up's form: η(Δ), linear in the gap, a ramp.      - `second_stage`: of a search for the rate.
- `peers`: ScheduleFree+, and WSD with our warm-up.      - `in_process`: makes these runs one by one.
- `command`: the command.      - `curves`: the rule on public loss curves.      - `recovery`: what `recover=` is worth.

The lab has verdicts of its own (`autowarm.lab.analysis.summary`), for a user's comparison: there the seeds that choose
the best hand-set warm-up also judge it. Here other seeds do.
"""
