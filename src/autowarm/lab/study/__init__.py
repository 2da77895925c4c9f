"""The study of warm-ups: what is run, the rows of finished runs, and the pages computed from them."""
