"""New processes. They are spawned, because a fork would inherit a broken thread pool."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

from .errors import LabError

_T = TypeVar("_T")


@contextmanager
def starting() -> Iterator[None]:
    """Submit to a pool within this context: its processes do not import the caller's script, which needs no guard.

    Ctrl-C is held back until they call `follow_parent`: one that came early would leave a traceback.
    """
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else ()
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent() -> None:
    """In a new process: hear of Ctrl-C again, and exit when the parent dies, which cannot stop it once it is killed."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def in_new_process(call: Callable[..., _T], *given: object) -> _T:
    """Call a function in a process that has imported none of this one's modules; LabError if it dies."""
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context, initializer=follow_parent) as pool:
            with starting():
                called = pool.submit(call, *given)
            return called.result()
    except BrokenProcessPool:
        raise LabError("the process that tried the task out died: out of memory, or killed from outside") from None
