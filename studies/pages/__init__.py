"""The pages of the warm-up study, computed from its rows.

- `evidence`: the numbers of docs/evidence.md, by their names in its template.
- `tables`: the tables that this page shows from files.
- `figures`: its figures.
- `write`: fills the templates, and writes pages, tables and figures to files.
"""
