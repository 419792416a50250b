"""An encoder reads descriptions of targets and tasks, only while a router is fitted."""

import numpy as np
import pytest

from prefill_router.errors import MissingExtraError
from prefill_router.fitting.inputs import describe, group_text, target_text
from prefill_router.targets import Pool, Target

pytestmark = pytest.mark.slow

POOL = Pool(
    (
        Target(name="math-large", input_price=2, output_price=8),
        Target(name="math-larger", input_price=2, output_price=8),
        Target(name="poet"),
    )
)


def test_texts() -> None:
    assert target_text(POOL["poet"]) == "The language model poet."
    assert "costs 2 dollars per million" in target_text(POOL["math-large"])
    assert group_text("law") == "Questions of law."
    assert group_text("") == "Questions of any kind."


def test_like_texts_have_like_vectors() -> None:
    try:
        descriptions = describe(POOL, ("algebra", "poetry", "algebra", ""), "minilm")
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert list(descriptions.groups) == ["algebra", "poetry", ""]
    unit = descriptions.targets / np.linalg.norm(descriptions.targets, axis=1, keepdims=True)
    near = unit @ unit.T
    assert near[0, 1] > max(near[0, 2], near[1, 2]) + 0.1
