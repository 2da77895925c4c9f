"""The pages of the studies, computed from their rows.

- `tables`: the tables of docs/evidence.md.      - `figures`: its figures.
- `insurance`: what the default is worth, at a glance, and each claim with its noise.
- `which_rate`: those of docs/which-rate.md.      - `write`: puts all of them into a checkout.
"""
