"""The experiments behind the `autowarm` command: configs, data, one training loop, sweeps and their report.

Parts, in the order in which they build on each other::

    files      durable writes, checksums, locks
    config     what decides a run, and its id
    data       text → tokens → batches, and images, each a pure function of (seed, step)
    models     the networks                       optimizers  optimizers and schedules from their configs
    peers      other authors' optimizers and schedules, to compare with
    tasks      what a network learns from what data
    parallel   ranks, DDP, FSDP2                  checkpoint  what a run goes on from
    metrics    what it notes                      stopping    signals
    train      the one training loop
    grid       a sweep's short description → its runs
    pool       many jobs on one machine       cluster  on many, by Ray       display  what they look like meanwhile
    sweep      runs, each made once → results.json
    results    rows → statistics (pure)       figures, report  statistics → pictures and a page
    gallery    figures by name                experiments  the paper's, and the sweeps behind them
    cli        the commands

Importing this package imports none of them, so `autowarm --help` stays quick.
"""
