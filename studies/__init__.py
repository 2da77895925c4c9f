"""The project's own evidence: what is run, the rows of finished runs in docs/data/studies, the pages made of them.

    python -m studies warm-up --plan        # in a checkout's root, after `make setup`

The parts, from the bottom up; autowarm knows none of them:

- `statistics`: paired comparisons over seeds and tasks.
- `rows`: the file of finished runs.      - `cells`: the warm-up study's settings and the studies' names of schedules.
- `verdicts`: the default against the best hand-set warm-up of a cell.
- `plans`: for each study, its stages of runs, each a function of the rows of the stages before.
- `tasks`: what the runs train.      - `runs`: makes planned runs on the lab's engine, as rows.
- `pages`: from rows to the tables, the figures and the text of the documentation.      - `command`: the command.

The lab has verdicts of its own (`autowarm.lab.analysis.summary`), for a user's comparison: there the seeds that choose
the best hand-set warm-up also judge it. Here other seeds do.
"""
