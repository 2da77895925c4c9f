"""The project's own evidence: one benchmark of warm-ups, its rows in docs/data/studies, and the pages made of them.

    python -m studies bench --list        # in a checkout's root, after `make setup`

The parts, from the bottom up; autowarm knows none of them:

- `rows`: the file of finished runs.      - `beds`: what is trained.      - `entries`: the warm-ups.
- `bench`: the plan, and the engine that makes its runs.      - `measures`: what a warm-up costs.
- `geometry`, `peak_limit`: judgements of defaults.      - `published`: the default on the paper's own curves.
- `recovery`: what `recover=` is worth.      - `pages`: the documentation's tables and figures.

The lab has verdicts of its own (`autowarm.lab.analysis.summary`), for a user's comparison.
"""
