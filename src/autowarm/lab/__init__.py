"""The experiments behind the `autowarm` command: configs, data, one training loop, sweeps and their report.

Parts, in the order in which they build on each other::

    files      durable writes, checksums, locks
    config     what decides a run, and its id
    data       text → tokens → batches, each a pure function of (seed, step)
    models     the networks
    train      the one training loop
    compare    many runs side by side         display  what they look like meanwhile
    results    rows → statistics (pure)       figures, report  statistics → pictures and a page
    cli        the commands

Importing this package imports none of them, so `autowarm --help` stays quick.
"""
