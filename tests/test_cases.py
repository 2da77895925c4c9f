"""`each`: every case is tried, the one that fails is named, and no cases are an error."""

import pytest

from tests.cases import each


def test_every_case_is_tried_until_one_fails_which_is_named(tmp_path: object) -> None:
    seen = []

    @each(("a", "b"), [(1, 2), (3, 4), (5, 6)])
    def one(a: int, b: int, tmp_path: object) -> None:
        seen.append((a, b, tmp_path))
        if a == 3:
            pytest.fail("wrong")

    with pytest.raises(BaseException, match="wrong") as failure:
        one(tmp_path=tmp_path)
    assert seen == [(1, 2, tmp_path), (3, 4, tmp_path)]
    assert failure.value.__notes__ == ["in the case {'a': 3, 'b': 4}"]
    with pytest.raises(AssertionError, match="no case"):
        each("a", [])
