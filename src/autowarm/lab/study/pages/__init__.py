"""The pages of the study of warm-ups, from its rows.

- `evidence`, `schedules`: the numbers of docs/evidence.md and docs/schedules.md, by the names in their templates.
- `figures`: what they show.      - `write`: templates, numbers and figures to files.
"""
