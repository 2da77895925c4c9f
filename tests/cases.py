"""Cases that take less time than tests of their own would."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["each"]


def each(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, but in one test, whose failure names its case.

    Use it where a case takes milliseconds and shares no fixture that another case could disturb.

    Args:
        names: the arguments that a case gives; several take a tuple for each case.
        cases: their values.
    """
    several = not isinstance(names, str)
    names, cases = ([names] if isinstance(names, str) else list(names)), list(cases)
    assert cases, "there is no case"

    def over_cases(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**others: Any) -> None:
            for case in cases:
                given = dict(zip(names, case if several else [case], strict=True))
                try:
                    test(**others, **given)
                except BaseException as failure:  # pytest's own failures are no Exception
                    failure.add_note(f"in the case {given}")
                    raise

        own = [one for name, one in inspect.signature(test).parameters.items() if name not in names]
        run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        return run

    return over_cases
