import pytest

from packages.router.tests.part_cases import check_cases, check_guide


def test_a_kind_without_a_case_is_reported_with_what_to_add_and_where() -> None:
    with pytest.raises(AssertionError) as error:
        check_cases(["constant", "x"], ["constant"], to="CASES in a.py", guide="predictors.md")
    message = "add a case for 'x' to CASES in a.py and a row to docs/guides/predictors.md"
    assert str(error.value).startswith(message)


def test_a_case_without_a_kind_is_reported() -> None:
    with pytest.raises(AssertionError, match="there is no kind 'x'; remove it from"):
        check_cases(["constant"], ["constant", "x"], to="CASES in a.py")


def test_a_kind_that_its_guide_lacks_is_reported() -> None:
    check_guide(["constant", "stack"], "predictors.md")
    with pytest.raises(AssertionError, match="add a row for 'x' to"):
        check_guide(["constant", "x"], "predictors.md")
