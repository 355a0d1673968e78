"""Assertions of the model say what was compared, as those of tests do."""

import pytest

pytest.register_assert_rewrite("tests.soak.model", "tests.soak.walks")
