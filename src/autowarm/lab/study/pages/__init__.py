"""The pages of the study of warm-ups, from its rows.

- `evidence`: the numbers of docs/evidence.md, by the names in its template.
- `tables`: what that page shows from files.      - `figures`: what it draws.
- `write`: template, tables, numbers and figures to files.
"""
