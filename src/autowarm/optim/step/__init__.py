"""One optimizer step: `update` is its way, `reference` the same on one screen."""
