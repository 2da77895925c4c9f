"""One optimizer step: `update` is its way, `plan` says what is stepped together."""
